"""A table of users, and a finished run on it, made once."""

import sys
from pathlib import Path

import pytest

# faults.py holds what the tests of faults share with the benchmark.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from faults import write_table

from fmrl.runs import Options, Run, train


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """60 users with 12 rows each: two numbers (one sometimes missing), a colour, and whether they
    liked it.
    """
    return write_table(tmp_path_factory.mktemp("table") / "likes.csv", 60, 12)


@pytest.fixture(scope="session")
def run(table, tmp_path_factory):
    """A finished run, of linear models, which can be checked by hand."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(Options(str(table), "user", "liked", holdout=0.2, common="linear"), out)
    return Run.load(out)
