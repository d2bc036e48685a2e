"""`fmrl train --engine ray` on two workers of this machine: the model of the local engine,
resumed, and with files that are broken.
"""
# ruff: noqa: E402

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fmrl[ray]'")
pq = pytest.importorskip("pyarrow.parquet", reason="not installed: pip install 'fmrl[ray]'")
from typer.testing import CliRunner

from fmrl.cli.main import app
from fmrl.cli.train import train_command
from fmrl.errors import FMRLError
from fmrl.runs import Options, Run, train


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    quiet = {"include_dashboard": False, "log_to_driver": False}
    ray.init("local", num_cpus=2, object_store_memory=80 * 2**20, **quiet)
    yield
    ray.shutdown()


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few row groups, so that a small table has several."""
    monkeypatch.setattr("fmrl.cluster.groups.TARGET", 40)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """150 shops of 4 to 9 rows in three files of small row groups; a shop may go on in the next
    one.
    """
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(150), rng.integers(4, 10, size=150))
    size, day = rng.normal(size=(2, len(shop)))
    amount = 20 + 5 * size + (2 + rng.normal(size=150)[shop]) * day + rng.normal(size=len(shop))
    table = pl.DataFrame(
        {
            "shop": [f"s{s}" for s in shop],
            "size": np.where(rng.random(len(shop)) < 0.05, None, size).astype(float),
            "day": day,
            "colour": rng.choice(["red", "blue"], size=len(shop)),
            "amount": amount,
            "sold": np.where(amount > 20, "yes", "no"),
        }
    ).with_columns(pl.col("size").fill_nan(None))
    folder = tmp_path_factory.mktemp("parts")
    edges = [0, len(shop) // 3 + 1, 2 * len(shop) // 3 + 1, len(shop)]
    for i in range(3):
        rows = table[edges[i] : edges[i + 1]].to_arrow()
        how = {"row_group_size": 90, "write_page_checksum": True}
        pq.write_table(rows, folder / f"part-{i}.parquet", **how)
    return folder


def options(parts, target="sold", **more):
    given = {"features": ("size", "day", "colour"), "holdout": 0.2} | more
    return Options(str(parts), "shop", target, **given)


def same(ours, theirs):
    """Model, history, tasks and held-out scores of two runs."""
    one, other = ours.history, theirs.history
    scalars = ("regret", "gap", "guess", "eta", "divergence", "deviation", "lipschitz", "rounds")
    pairs = [(getattr(one, n), getattr(other, n)) for n in (*scalars, "theta", "optimum")]
    pairs += [(one.state.phi, other.state.phi), (one.state.guess, other.state.guess)]
    for ours_, theirs_ in pairs:
        np.testing.assert_allclose(ours_, theirs_, rtol=0, atol=1e-10)
    for name in ("coef_", "intercept_"):
        pair = (getattr(run.estimator, name) for run in (ours, theirs))
        np.testing.assert_allclose(*pair, atol=1e-8)
    assert ours.prior.rule == theirs.prior.rule
    for name in ("tasks", "rows", "heldout_tasks", "features", "rows_per_task", "classes"):
        assert ours.record[name] == theirs.record[name], name
    assert ours.record["heldout"]["names"] == theirs.record["heldout"]["names"]
    means = ([m["mean"] for m in run.record["heldout"]["methods"]] for run in (ours, theirs))
    np.testing.assert_allclose(*(np.array(m, dtype=float) for m in means), atol=1e-8)
    assert ours.models.ids == theirs.models.ids
    np.testing.assert_allclose(ours.models.coef, theirs.models.coef, atol=1e-8)


@pytest.mark.parametrize("target, update", [("sold", None), ("amount", "FLIOnline()")])
def test_the_model_is_that_of_the_local_engine(
    cluster, small_blocks, parts, tmp_path, target, update
):
    local = options(f"{parts}/*.parquet", target, update=update)
    train(local, tmp_path / "local")
    record = train(options(parts, target, update=update, engine="ray"), tmp_path / "ray")
    same(Run.load(tmp_path / "ray"), Run.load(tmp_path / "local"))
    engine = {"name": "ray", "nodes": 1, "cpus": 2, "meta_batch": 1}
    assert engine.items() <= record["engine"].items()
    assert record["skipped"] == [] and record["resumed_after"] == 0
    rounds = sorted((tmp_path / "ray/rounds").glob("*.parquet"))
    assert len(rounds) >= 3 and len(pl.read_parquet(rounds)) == record["tasks"]
    for command in (["certify"], ["report", "--out", str(tmp_path / "page.html")], ["cite"]):
        done = CliRunner().invoke(app, [command[0], str(tmp_path / "ray"), *command[1:]])
        assert done.exit_code == 0, done.output


def test_a_stopped_run_goes_on_from_its_finished_blocks(cluster, small_blocks, parts, tmp_path):
    asked, out = options(parts, "amount", engine="ray"), tmp_path / "run"
    whole = train(asked, tmp_path / "whole")
    told = []
    watch = {"progress": lambda what, done, total: done and told.append(1)}
    with pytest.raises(FMRLError, match=r"stopped; .* --resume") as stopped:
        train(asked, out, stop=lambda: bool(told), **watch)
    assert stopped.value.exit_code == 130 and not (out / "record.json").exists()
    said = int(re.search(r"stopped; (\d+) of", str(stopped.value)).group(1))
    assert 0 < said <= whole["tasks"]
    with pytest.raises(FMRLError, match="holds a run already"):
        train(asked, out)
    record = train(asked, out, resume=True)
    assert record["resumed_after"] >= said  # a worker that had a block in hand finished it
    assert record["engine"]["progress"]["blocks_reused"] > 0
    same(Run.load(out), Run.load(tmp_path / "whole"))
    assert record["tar"] == whole["tar"] and train(asked, out, resume=True) == record


def test_meta_batches_are_said_everywhere(cluster, small_blocks, parts, tmp_path):
    asked = options(parts, "amount", update="FLIOnline()", engine="ray", meta_batch=10)
    record = train(asked, tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert record["engine"]["meta_batch"] == 10
    assert run.history.meta_batch == 10
    assert "--meta-batch 10" in record["command"]
    assert len(np.unique(run.history.guess)) < len(run.history) / 5


def test_a_broken_file_is_named_and_may_be_skipped(cluster, small_blocks, parts, tmp_path):
    broken = shutil.copytree(parts, tmp_path / "broken")
    held = pq.ParquetFile(broken / "part-1.parquet")
    column = held.metadata.row_group(2).column(2)  # day, of the third row group
    body = bytearray((broken / "part-1.parquet").read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    body[middle : middle + 40] = b"\xff" * 40
    (broken / "part-1.parquet").write_bytes(body)
    asked = ["train", str(broken), "--task", "shop", "--target", "sold"]
    asked += ["--engine", "ray", "--holdout", "0.2"]
    stopped = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "stops")])
    assert stopped.exit_code == 2
    for words in ("part-1.parquet", "row group 2", "--skip-bad-tasks"):
        assert words in stopped.output.replace("\n", ""), stopped.output
    done = CliRunner().invoke(app, [*asked, "--skip-bad-tasks", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    run = Run.load(tmp_path / "run")
    (place, *torn) = run.record["skipped"]
    assert place["where"].endswith("part-1.parquet, row group 2") and "skipped" in done.output
    assert all("rows that cannot be read" in t["what"] for t in torn)
    lost = pl.read_parquet(parts / "part-1.parquet").slice(180, 90)["shop"].unique().to_list()
    everyone = pl.read_parquet(f"{parts}/*.parquet")["shop"].n_unique()
    names = pl.read_parquet(run.file("tasks.parquet"))["task"].to_list()
    assert not set(lost) & set(names)
    assert len(names) + run.record["heldout_tasks"] == everyone - len(lost)
    assert run.record["tasks"] == len(run.history) == len(names) == len(run.models.ids)


def test_the_example_of_help_runs(cluster, parts, tmp_path):
    (line,) = [line for line in train_command.__doc__.splitlines() if "--engine ray" in line]
    line = line.replace("visits/", str(parts)).replace("/shared/run", str(tmp_path / "run"))
    done = CliRunner().invoke(app, line.split()[1:])
    assert done.exit_code == 0 and "played on Ray: 1 nodes" in done.output, done.output
    assert Run.load(tmp_path / "run").record["features"][-1] == "amount"


def test_what_ray_cannot_do_is_said(parts, table, tmp_path, monkeypatch):
    with pytest.raises(FMRLError, match=r"Parquet files only, and .*likes.csv"):
        train(Options(str(table), "user", "liked", engine="ray"), tmp_path / "csv")
    apart = pl.read_parquet(f"{parts}/*.parquet").sample(fraction=1.0, shuffle=True, seed=0)
    apart.write_parquet(tmp_path / "apart.parquet")
    with pytest.raises(FMRLError, match="sort the table by task"):
        train(options(tmp_path / "apart.parquet", engine="ray"), tmp_path / "apart")
    sorted_ = {"engine": "ray", "order": ("day",)}
    for wrong in ({"meta_batch": 2}, {"skip_bad_tasks": True}, sorted_, {"engine": "spark"}):
        with pytest.raises(FMRLError):
            options(parts, **wrong)
    asked = options(parts, engine="ray", skip_bad_tasks=True, meta_batch=4)
    assert asked.command("run").endswith("--engine ray --meta-batch 4 --skip-bad-tasks --out run")
    assert Options.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    monkeypatch.setattr("fmrl.runs.cluster.find_spec", lambda name: None)
    with pytest.raises(FMRLError, match=r'pip install "fmrl\[ray\]"'):
        train(asked, tmp_path / "absent")


def test_the_local_engine_does_not_import_ray():
    code = "import sys, fmrl.runs.training, fmrl.cli.train; "
    code += "sys.exit('ray' in sys.modules or 'fmrl.cluster' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_run_that_never_began_leaves_the_way_free(parts, tmp_path, monkeypatch):
    # Else that cluster is used, whatever the address.
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(FMRLError, match=f"there is no Ray cluster at '{address}'"):
            train(options(parts, engine="ray"), tmp_path / "run", address=address)
    assert not (tmp_path / "run").exists()
