"""Which tests are slow: those listed in slow.txt, one function a line, are left out by `make
check`.

``pytest --write-slow`` measures all tests and writes the list anew.
"""

import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "core"))  # instances.py, for other folders too
LIST, SECOND = Path(__file__).parent / "slow.txt", 1.0
_SPENT: dict[str, float] = defaultdict(float)


def pytest_addoption(parser):
    parser.addoption("--write-slow", action="store_true", help="measure, and write tests/slow.txt")


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def pytest_collection_modifyitems(items):
    listed = set(LIST.read_text().split()) if LIST.exists() else set()
    counted = find_spec("dp_accounting") is not None
    for item in items:
        if not counted and "core/rules/private.py" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="not installed: pip install 'fmrl[private]'"))
        if _function(item.nodeid) in listed:
            item.add_marker(pytest.mark.slow)


def pytest_runtest_logreport(report):
    _SPENT[_function(report.nodeid)] += report.duration


def pytest_sessionfinish(session):
    worker = hasattr(session.config, "workerinput")
    if session.config.getoption("--write-slow") and not worker:
        names = sorted(name for name, seconds in _SPENT.items() if seconds >= SECOND)
        LIST.write_text("\n".join(names) + "\n")
