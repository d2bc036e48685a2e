"""Blocks in one process: the same numbers as `run` however the tasks are cut, and what happens to
tables that are not whole.
"""

import dataclasses
import io
import sys

import numpy as np
import pytest
from folders import make, pa, pq, write
from instances import METAS, same
from rich.console import Console

import fmrl
from fmrl.cluster import Ray, Tables, watch
from fmrl.cluster.workers import Here
from fmrl.core.rules.meta import End
from fmrl.core.rules.similarity import Doubling

RULES = (
    fmrl.Doubling(0.05, 1.2), fmrl.ReleasedDoubling(0.05, 1.2), fmrl.AverageDeviation(),
    fmrl.Known(0.4), fmrl.EWOO(0.2), fmrl.KnownStep((0.1, 0.2, 0.3, 0.4, 0.5)),
)  # fmt: skip
OBSERVING = (
    fmrl.Isotropic(0.3), fmrl.PerCoordinate(0.3), fmrl.Observed(fmrl.AverageDeviation(), 0.5),
    fmrl.MetaSGD(0.1), fmrl.FullMatrix(0.3), fmrl.LowRank(2, 0.3), fmrl.Covariance(0.3),
)  # fmt: skip


def played_by(rule):
    return fmrl.FTRL() if isinstance(rule, fmrl.Covariance) else fmrl.OMD()


def here(out, tasks, algo, *, block=None, meta_batch=1, keep="all", **options):
    given = {name: options.pop(name) for name in ("phi", "state") if name in options}
    given |= {"meta_batch": meta_batch, "keep": keep, "mapper": Here()}
    return Ray(out=out, block=block, **options).play(algo, tasks, **given)


@dataclasses.dataclass(frozen=True)
class Own(Doubling):
    """A similarity rule nobody knows: half of Doubling's guess."""

    def update(self, domain, phi, guess, memory, end):
        found, memory = super().update(domain, phi, guess, memory, end)
        return found / 2, memory


@pytest.mark.parametrize("block", [1, 7, 20, 1000, None])
def test_any_number_of_blocks(tmp_path, block):
    tasks, table = make(20)
    algo = fmrl.FMRL()
    expected = fmrl.run(algo, tasks)
    same(here(tmp_path / "list", tasks, algo, block=block).history(), expected)
    folder = write(tmp_path / "data", table, (40, 41, 80), rows=23)
    played = here(tmp_path / "folder", Tables(folder), algo, block=block)
    same(played.history(), expected)
    assert played.tasks == 20 and abs(played.tar - expected.tar) < 1e-12
    assert abs(played.history("totals").tar - expected.tar) < 1e-12
    with pytest.raises(AttributeError, match="losses was not kept"):
        _ = played.history("vectors").losses
    assert len(played.blocks) == {1: 20, 7: 3, 20: 1, 1000: 1, None: 1}[block]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("meta", METAS, ids=repr)
def test_every_meta_update_and_similarity_rule(tmp_path, meta, rule):
    tasks, _ = make(14)
    algo = fmrl.FMRL(fmrl.Ball(1.0), meta=meta, similarity=rule)
    same(here(tmp_path / "out", tasks, algo, block=5).history(), fmrl.run(algo, tasks))


@pytest.mark.parametrize("rule", OBSERVING, ids=repr)
def test_rules_that_observe_the_play(tmp_path, rule):
    """Tasks in turn and meta-batches of several blocks; then from a state that holds a metric."""
    tasks, _ = make(14)
    cases = [(update, size) for update in (fmrl.FAL(), fmrl.FLIBatch()) for size in (1, 2, 9)]
    for i, (update, size) in enumerate(cases):
        algo = fmrl.FMRL(within=played_by(rule), update=update, similarity=rule)
        expected = fmrl.run(algo, tasks, meta_batch=size)
        found = here(tmp_path / str(i), tasks, algo, block=4, meta_batch=size).history()
        same(found, expected, 0 if size == 1 else 1e-12)
    half = fmrl.run(algo, tasks[:5])
    later = here(tmp_path / "later", tasks[5:], algo, block=4, state=half.state)
    same(later.history(), fmrl.run(algo, tasks[5:], state=half.state), 0)
    other = half.state._replace(guess=fmrl.run(algo, tasks[:4]).state.guess)
    with pytest.raises(fmrl.FMRLError, match="differs in data, blocks or start"):
        here(tmp_path / "later", tasks[5:], algo, block=4, state=other)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_prior_is_that_of_one_machine(tmp_path, loss):
    tasks, table = make(60, features=3, loss=loss)
    kind = tasks[0].loss
    folder = write(tmp_path / "data", table, (200,))
    for family in ("full", 1):
        expected = fmrl.estimate_prior(tasks, family, steps=8)
        for source in (iter(tasks), Tables(folder, loss=kind)):
            found = Ray(block=7).estimate_prior(source, family, steps=8, mapper=Here())
            for name in ("mean", "covariance", "noise", "tasks", "information"):
                one, other = getattr(found, name), getattr(expected, name)
                np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12, err_msg=name)
    assert (found.noise == 1.0) == (loss == "logistic")


def test_rules_of_the_users_own(tmp_path):
    tasks, _ = make(18)
    cases = (fmrl.FAL(), 1), (fmrl.FLIBatch(), 1), (fmrl.FLIOnline(), 12)
    for i, (update, size) in enumerate(cases):
        algo = fmrl.FMRL(update=update, similarity=Own(0.1, 1.3))
        found = here(tmp_path / str(i), tasks, algo, block=6, meta_batch=size).history()
        same(found, fmrl.run(algo, tasks, meta_batch=size))


BATCHES = [
    (fmrl.FLIOnline(), 10, 1), (fmrl.FLIBatch(), 10, 4), (fmrl.FLIOnline(), 10, 10),
    (fmrl.FLIBatch(), 3, 10), (fmrl.FAL(), 3, 10), (fmrl.FLIOnline(), 7, 100),
]  # fmt: skip


@pytest.mark.parametrize(("update", "block", "size"), BATCHES)
def test_meta_batches(tmp_path, update, block, size):
    tasks, table = make(24)
    algo = fmrl.FMRL(update=update, similarity=fmrl.Doubling(0.05, 1.3))
    expected = fmrl.run(algo, tasks, meta_batch=size)
    folder = write(tmp_path / "data", table, (120,))
    played = here(tmp_path / "out", Tables(folder), algo, block=block, meta_batch=size)
    same(played.history(), expected)
    for file in (tmp_path / "out" / "rounds").glob("*.parquet"):  # labelled in every record
        assert set(pq.read_table(file)["meta_batch"].to_pylist()) == {size}
    assert f'"meta_batch": {size}' in (tmp_path / "out" / "record.json").read_text()


def test_other_domains_start_and_state(tmp_path):
    rng = np.random.default_rng(1)
    tasks = [fmrl.Task(rng.random((4, 3)), loss=fmrl.Linear()) for _ in range(30)]
    algo = fmrl.FMRL(fmrl.Simplex(0.01), similarity=fmrl.AverageDeviation())
    phi = np.array([0.5, 0.3, 0.2])
    same(here(tmp_path / "a", tasks, algo, block=8, phi=phi).history(), fmrl.run(algo, tasks, phi))
    half = fmrl.run(algo, tasks[:11], phi)
    later = here(tmp_path / "b", tasks[11:], algo, block=8, state=half.state).history()
    same(later, fmrl.run(algo, tasks[11:], state=half.state))


@pytest.mark.parametrize("gamma", [1.0, 1.0001, 3.0])
def test_the_scan_is_the_rule(gamma):
    """Against the rule itself, task by task, where violations are many and come in runs."""
    far = np.random.default_rng(0).lognormal(-2, 1, 5000)
    rule, domain = fmrl.Doubling(0.01, gamma), fmrl.Ball(1e9)
    guess, memory = rule.init(fmrl.Ball(1.0), np.zeros(1))
    ends = End(far[:, None], far[:, None], np.ones(5000))
    phi = np.zeros((5000, 1))
    guesses, last, count = rule.scan(fmrl.Ball(1.0), phi, guess, memory, ends)
    for t in range(5000):
        assert guesses[t] == pytest.approx(float(guess), rel=1e-14)
        end = fmrl.core.rules.meta.End(np.array([far[t]]), None, None)
        guess, memory = rule.update(domain, np.zeros(1), guess, memory, end)
    assert last == pytest.approx(float(guess), rel=1e-14) and count == memory and memory > 3


def test_resume_reuses_finished_blocks(tmp_path):
    _tasks, table = make(32)
    folder, out = write(tmp_path / "data", table, (100, 250)), tmp_path / "out"
    updates = [(fmrl.FAL(), 1), (fmrl.FLIBatch(), 2), (fmrl.FLIBatch(), 16)]
    cases = [(update, size, fmrl.Doubling(0.1, 1.1)) for update, size in updates]
    cases += [(fmrl.FAL(), 1, fmrl.FullMatrix(0.3)), (fmrl.FLIBatch(), 16, fmrl.LowRank(2, 0.3))]
    for update, size, rule in cases:
        algo = fmrl.FMRL(within=played_by(rule), update=update, similarity=rule)
        first = here(out, Tables(folder), algo, block=4, meta_batch=size, resume=False)
        files = sorted((out / "rounds").iterdir())
        for file in files[3:]:
            file.unlink()
        files[2].write_bytes(files[2].read_bytes()[:-60])  # damaged: must be made again
        (out / "optima" / files[5].name).unlink()
        times = {f: f.stat().st_mtime_ns for f in files[:2]}
        again = here(out, Tables(folder), algo, block=4, meta_batch=size)
        assert {f: f.stat().st_mtime_ns for f in files[:2]} == times
        assert again.ledger.reused == len(files) - 1 + 2  # optima, and two rounds
        same(again.history(), first.history(), 1e-14)


def test_another_run_is_not_resumed(tmp_path):
    tasks, _ = make(20)
    here(tmp_path, tasks, fmrl.FMRL(), block=8)
    other_rule = dict(algo=fmrl.FMRL(similarity=fmrl.Known(0.2)))
    for other in dict(block=7), other_rule, dict(tasks=tasks[1:]), dict(phi=np.full(5, 0.1)):
        given = dict(tasks=tasks, algo=fmrl.FMRL(), block=8) | other
        with pytest.raises(fmrl.FMRLError, match="another run"):
            here(tmp_path, **given)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("a")
    with pytest.raises(fmrl.FMRLError, match="not empty"):
        here(tmp_path / "mine", tasks, fmrl.FMRL(), resume=False)


def spoil(file, group, column):
    """Overwrite the middle of one column's pages in one row group."""
    meta = pq.ParquetFile(file).metadata.row_group(group).column(column)
    start = meta.dictionary_page_offset or meta.data_page_offset
    data = bytearray(file.read_bytes())
    middle = start + meta.total_compressed_size // 2
    data[middle : middle + 8] = bytes(255 - b for b in data[middle : middle + 8])
    file.write_bytes(data)


@pytest.mark.parametrize("column", [0, 3], ids=["the task ids", "a feature"])
def test_a_corrupt_row_group_is_named_or_skipped(tmp_path, column):
    tasks, table = make(80)
    options = {"write_page_checksum": True, "use_dictionary": False}
    folder = write(tmp_path / "data", table, (200,), rows=50, **options)
    file = folder / "part-001.parquet"
    spoil(file, 2, column)
    with pytest.raises(fmrl.FMRLError, match=r"part-001\.parquet, row group 2 cannot be read"):
        here(tmp_path / "stops", Tables(folder), fmrl.FMRL(), block=10)
    played = here(tmp_path / "skips", Tables(folder), fmrl.FMRL(), block=10, skip_bad_tasks=True)
    assert any("part-001.parquet, row group 2" in s.where for s in played.skipped)
    lost = set(table["task"].to_pylist()[300:350])  # rows of that group
    if column == 0:  # nobody knows whose rows they were: neighbours that may have lost some go too
        lost |= {table["task"][299].as_py(), table["task"][350].as_py()}
    rest = [t for t in tasks if t.name not in lost]
    same(played.history(), fmrl.run(fmrl.FMRL(), rest))


def test_a_file_that_is_no_parquet_file(tmp_path):
    tasks, table = make(40)
    ends = np.flatnonzero(np.diff(table["task"].to_numpy())) + 1
    folder = write(tmp_path / "data", table, (ends[9], ends[19]))  # whole tasks in every file
    (folder / "part-001.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(fmrl.FMRLError, match=r"part-001\.parquet cannot be read"):
        here(tmp_path / "stops", Tables(folder), fmrl.FMRL())
    played = here(tmp_path / "skips", Tables(folder), fmrl.FMRL(), skip_bad_tasks=True)
    assert len(played.skipped) == 1 and played.tasks == 30
    same(played.history(), fmrl.run(fmrl.FMRL(), tasks[:10] + tasks[20:]))


def test_bad_tasks_are_named_or_skipped(tmp_path):
    tasks, table = make(30, loss="logistic")
    values = table["x1"].to_pylist()
    at = next(i for i in range(len(table)) if table["task"][i].as_py() == 13)
    values[at] = float("nan")
    one = np.where(table["task"].to_numpy() == 21, 0, table["target"].to_numpy())
    bad = table.set_column(3, "x1", pa.array(values)).set_column(1, "target", pa.array(one))
    folder = write(tmp_path / "data", bad, (90,))
    rows = Tables(folder, loss=fmrl.Logistic((0, 1)))
    with pytest.raises(fmrl.FMRLError, match="task 13: column 'x1' has no value"):
        here(tmp_path / "stops", rows, fmrl.FMRL(), block=5)
    played = here(tmp_path / "skips", rows, fmrl.FMRL(), block=5, skip_bad_tasks=True)
    assert sorted(s.where.rsplit("task ", 1)[1] for s in played.skipped) == ["13", "21"]
    assert "only the class" in " ".join(s.what for s in played.skipped)
    same(played.history(), fmrl.run(fmrl.FMRL(), [t for t in tasks if t.name not in (13, 21)]))
    again = here(tmp_path / "skips", rows, fmrl.FMRL(), block=5, skip_bad_tasks=True)
    assert again.skipped == played.skipped  # a resumed run still says what it left out


def test_a_task_in_two_places(tmp_path):
    _, table = make(12)
    twice = pa.concat_tables([table, table.slice(0, 2)])
    folder = write(tmp_path / "data", twice, ())
    again = r"task 0: the task 0 appears again at row .* sort the table"
    with pytest.raises(fmrl.FMRLError, match=again):
        here(tmp_path / "stops", Tables(folder), fmrl.FMRL())
    assert here(tmp_path / "skips", Tables(folder), fmrl.FMRL(), skip_bad_tasks=True).tasks == 12


def test_categories_and_missing_values_use_the_encoder(tmp_path):
    from fmrl.datasets import Policy, tasks_from_frame

    _, table = make(30)
    colour = pa.array([("red", "blue", None)[i % 3] for i in range(len(table))])
    names = pa.array([f"shop {t.as_py():03d}" for t in table["task"]])
    shops = table.set_column(0, "task", names).append_column("colour", colour)
    files = str(write(tmp_path / "data", shops, (50,)) / "*.parquet")
    for missing in ("indicator", "drop"):
        policy = Policy(missing=missing, scale="standard" if missing == "indicator" else "none")
        stream = tasks_from_frame(files, task="task", target="target", policy=policy)
        rows = Tables(files, encoder=stream.encoder, loss=stream.loss)
        found = here(tmp_path / missing, rows, fmrl.FMRL(), block=7)
        same(found.history(), fmrl.run(fmrl.FMRL(), stream))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (dict(task="shop"), "no column 'shop'"),
        (dict(target="sold"), "no column 'sold'"),
        (dict(features=("x1", "x9")), "no column 'x9'"),
        (dict(source="nowhere"), "no Parquet file"),
    ],
)
def test_what_is_no_table(tmp_path, given, what):
    _, table = make(5)
    folder = write(tmp_path / "data", table, ())
    with pytest.raises(fmrl.FMRLError, match=what):
        here(tmp_path / "out", Tables(**{"source": folder} | given), fmrl.FMRL())


def test_single_precision_and_lists_of_files(tmp_path):
    tasks, table = make(20)
    rows = [(t.X.astype(np.float32), t.open().target[:, 0].astype(np.float32)) for t in tasks]
    short = [fmrl.Task(X, y, loss=fmrl.Squared()) for X, y in rows]
    found = here(tmp_path / "a", short, fmrl.FMRL(), block=6).history()
    expected = fmrl.run(fmrl.FMRL(), short)
    assert found.regret.dtype == found.state.phi.dtype == expected.state.phi.dtype == np.float32
    np.testing.assert_allclose(found.regret, expected.regret, atol=1e-5)
    files = sorted(map(str, write(tmp_path / "data", table, (50,)).iterdir()))
    same(here(tmp_path / "b", files, fmrl.FMRL()).history(), fmrl.run(fmrl.FMRL(), tasks))


def test_tasks_that_cannot_travel(tmp_path):
    tasks, _ = make(5)
    odd = fmrl.Task(np.eye(2), [0.0, 1.0], loss=fmrl.Squared())
    with pytest.raises(fmrl.FMRLError, match="task 5: tasks that are played together need one"):
        here(tmp_path / "a", [*tasks, odd], fmrl.FMRL())
    with pytest.raises(fmrl.FMRLError, match="no tasks"):
        here(tmp_path / "b", [], fmrl.FMRL())
    with pytest.raises(fmrl.FMRLError, match="phi of length 5"):
        here(tmp_path / "c", tasks, fmrl.FMRL(), phi=np.zeros(3))


def test_the_ledger_counts(tmp_path):
    _tasks, table = make(60)
    rows = Tables(write(tmp_path / "data", table, ()))
    played = here(tmp_path / "out", rows, fmrl.FMRL(), block=10)
    ledger = played.ledger
    assert ledger.tasks["solve"] == ledger.tasks["deviate"] == ledger.tasks["play"] == 60
    assert ledger.blocks["play"] == (6, 6) and len(ledger.rates()) == 1
    written = sum(f.stat().st_size for f in (tmp_path / "out").glob("*/*"))
    assert ledger.written == written and ledger.read > 2 * table.nbytes
    assert "play 6/6" in ledger.line() and ledger.table().row_count == 1
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with watch(console) as view:
        view(ledger)
    assert "tasks/s" in console.file.getvalue()


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fmrl.FMRLError, match=r"fmrl\[ray\]"):
        fmrl.run(fmrl.FMRL(), make(3)[0], engine="ray")


def test_a_block_of_another_run_and_another_loss_are_not_reused(tmp_path):
    tasks = {}
    for name, loss in (("one", fmrl.OneVsAll(3)), ("soft", fmrl.Softmax(3))):
        rng = np.random.default_rng(0)
        rows = [(rng.normal(size=(6, 2)), rng.integers(0, 3, 6)) for _ in range(8)]
        tasks[name] = [fmrl.Task(X, y, loss=loss) for X, y in rows]
    ray = fmrl.cluster.Ray(out=tmp_path / "a", block=4)
    first = ray.play(fmrl.FMRL(), tasks["one"], mapper=Here())
    with pytest.raises(fmrl.FMRLError, match="another run"):
        ray.play(fmrl.FMRL(), tasks["soft"], mapper=Here())
    other = fmrl.cluster.Ray(out=tmp_path / "b", block=4)
    other.play(fmrl.FMRL(fmrl.Ball(0.05)), tasks["one"], mapper=Here())
    for kind in ("optima", "rounds"):
        mine, theirs = (tmp_path / name / kind / "00000001.parquet" for name in "ab")
        mine.write_bytes(theirs.read_bytes())
    assert ray.play(fmrl.FMRL(), tasks["one"], mapper=Here()).tar == first.tar


@pytest.mark.parametrize("bad", [[8], [9], [10], [12], [8, 10], [1, 3], [22, 24]])
def test_beside_a_lost_row_group_no_task_is_played_in_part(tmp_path, bad):
    """Tasks of 13 rows in groups of 5: one reaches into three or four of them."""
    ids, rng = np.repeat(np.arange(10), 13), np.random.default_rng(0)
    table = pa.table({"task": ids, "target": rng.normal(size=130), "x": rng.normal(size=130)})
    file = tmp_path / "data" / "p.parquet"
    file.parent.mkdir()
    pq.write_table(table, file, row_group_size=5, write_page_checksum=True, use_dictionary=False)
    for group in bad:
        spoil(file, group, 0)
    engine = Ray(out=tmp_path / "out", skip_bad_tasks=True)
    rows = Tables(file.parent, loss=fmrl.Squared())
    played = engine.play(fmrl.FMRL(), rows, keep="scalars", mapper=Here())
    files = sorted((tmp_path / "out" / "rounds").glob("*.parquet"))
    rounds = pa.concat_tables([pq.read_table(f) for f in files])
    lost = {int(i) for g in bad for i in ids[5 * g : 5 * g + 5]}
    assert set(rounds["rounds"].to_pylist()) == {13}
    assert not lost & set(rounds["task"].to_pylist())
    assert len(rounds) >= 10 - len(lost) - 2 * len(bad)
    assert all("are left out too" in s.what for s in played.skipped)
