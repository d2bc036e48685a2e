"""Federated meta-learning: tasks are clients, and only update vectors travel. Needs the extra
``fmrl[federated]``; what is done with the replies (`Server`, `Form`, `Reply`, `spread`) needs
no Flower.
"""

from importlib import import_module
from typing import Any

from fmrl.errors import FMRLError
from fmrl.federated.server import Form, Reply, Server, spread

_FLOWER = {
    "FedFMRL": "strategy",
    "evaluate_network": "network_client",
    "evaluate_task": "client",
    "host": "records",
    "train_network": "network_client",
    "train_task": "client",
}

__all__ = [
    "FedFMRL", "Form", "Reply", "Server", "evaluate_network", "evaluate_task", "host", "spread",
    "train_network", "train_task",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names that need Flower are imported when they are asked for."""
    if name not in _FLOWER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_FLOWER[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise FMRLError(
            "Flower (flwr) is not installed", fix="pip install 'fmrl[federated]'"
        ) from None
