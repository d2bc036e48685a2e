"""Modules that need Flower are not collected where it is missing: `make federated` runs them."""

from importlib.util import find_spec

NEED_FLOWER = ("client", "network_client", "records", "replies", "strategy")
collect_ignore_glob = (
    []
    if find_spec("flwr")
    else [*(f"src/fmrl/federated/{name}.py" for name in NEED_FLOWER), "tests/federated/direct.py"]
)
