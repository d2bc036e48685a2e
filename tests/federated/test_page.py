"""The page for Flower's users: its app runs as it stands, and its names exist."""
# ruff: noqa: E402

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fmrl[federated]'")
pytest.importorskip("torch")

from direct import Direct
from flwr.app import Context, RecordDict

from fmrl import federated

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import snippets

PAGE = (ROOT / "docs" / "federated.md").read_text(encoding="utf-8")


def test_the_app_on_the_page_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    apps, results = [], []
    for block in snippets.blocks(PAGE):
        space: dict = {}
        exec(compile(block.code, "docs/federated.md", "exec"), space)
        apps.append(space["app"])
    server, client = apps
    start = federated.FedFMRL.start
    monkeypatch.setattr(
        federated.FedFMRL, "start", lambda *a, **k: results.append(start(*a, **k)) or results[0]
    )
    server(Direct(client, 8), Context(1, 0, {}, RecordDict(), {}))
    told = results[0]
    scores, first = told.evaluate_metrics_clientapp[3], told.evaluate_metrics_clientapp[1]
    assert told.train_metrics_clientapp[3]["clients"] == 4 and scores["clients"] == 8
    assert scores["accuracy-mean"] > scores["unadapted-accuracy-mean"] - 0.05
    assert scores["unadapted-loss-mean"] < first["unadapted-loss-mean"]
    assert (tmp_path / "runs" / "state" / "round-000003.npz").exists()


def test_names_on_the_pages_exist():
    for name in re.findall(r"^::: (\S+)", (ROOT / "docs/api/federated.md").read_text(), re.M):
        module, _, own = name.rpartition(".")
        assert getattr(import_module(module), own).__doc__


def test_public_callables_explain_their_arguments():
    for name in federated.__all__:
        value = getattr(federated, name)
        if value is not federated.Reply:
            assert "Args:" in value.__doc__, name


def test_reasons_are_those_that_the_page_names():
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == set(federated.server.REASONS)
