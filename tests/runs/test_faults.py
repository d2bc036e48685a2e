"""A share of benchmarks/faults.py, which has 50 kills and 1,000 fuzzed files."""

import faults
import pytest
from fmrl.estimators.playing import WINDOW


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return faults.write_table(tmp_path_factory.mktemp("faults") / "table.csv", int(3.2 * WINDOW), 4)


def test_killed_runs_go_on_to_the_same_bits(table):
    assert faults.kills(table, 4, seed=0, points=False) == []


@pytest.mark.parametrize("fault", [("before", 3), ("after", 3)])
def test_killed_while_a_checkpoint_is_put_in_place(fault, table, tmp_path):
    faults.run(table, tmp_path / "whole")
    assert faults.survives(table, faults.digests(tmp_path / "whole"), tmp_path / "run", fault) == ""


def test_a_full_disk_leaves_the_checkpoint_before(table):
    assert faults.full_disk(table) == []


def test_fuzzed_tables_and_model_files():
    assert faults.fuzz(100, seed=0, training=0.1) == []
