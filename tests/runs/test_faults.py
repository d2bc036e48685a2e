"""A share of benchmarks/faults.py, which has 50 kills and 1,000 fuzzed files."""

import faults
import pytest

from fmrl.runs.algorithm_run import WINDOW


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return faults.write_table(tmp_path_factory.mktemp("faults") / "table.csv", int(3.2 * WINDOW), 4)


@pytest.fixture(scope="module")
def undisturbed(table):
    return faults.undisturbed(table)


@pytest.mark.parametrize("moment", [0.2, 0.5, 0.8])
def test_killed_runs_go_on_to_the_same_bits(moment, table, undisturbed, tmp_path):
    whole, seconds = undisturbed
    assert faults.survives(table, whole, tmp_path / "run", kill_after=moment * seconds) == ""


@pytest.mark.parametrize("fault", [("before", 3), ("after", 3)])
def test_killed_while_a_checkpoint_is_put_in_place(fault, table, undisturbed, tmp_path):
    assert faults.survives(table, undisturbed[0], tmp_path / "run", fault) == ""


def test_a_full_disk_leaves_the_checkpoint_before(table, undisturbed):
    assert faults.full_disk(table, undisturbed[0]) == []


def test_fuzzed_tables_and_model_files():
    assert faults.fuzz(60, seed=0, training=0.1) == []
