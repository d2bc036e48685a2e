"""A headless Chromium, as the report's tests start it, and the page in it."""

import importlib.util
import json
from pathlib import Path

import pytest
from report.conftest import ATTACKS, browser  # noqa: F401

from fmrl import playground

ROOT = Path(__file__).parents[2]
PROBES = (Path(__file__).parent / "probes.js").read_text(encoding="utf-8")
SCENES = json.loads((Path(__file__).parent / "scenes.json").read_text(encoding="utf-8"))


def script(name):
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def training():
    """scripts/train_playground.py."""
    pytest.importorskip("torch")
    return script("train_playground")


@pytest.fixture
def attacks():
    return ATTACKS


@pytest.fixture
def open_page(browser, tmp_path):  # noqa: F811
    pages = []

    def opened(weights=None, table=None, **how):
        path = playground.write(tmp_path / f"page-{len(pages)}.html", weights, table)
        pages.append(browser.page(path, **how))
        pages[-1].js(PROBES)
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
