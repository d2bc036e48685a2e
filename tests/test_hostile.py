"""Files of others, locks that are links, processes that were forked: a value or words, always.

benchmarks/soak/forge.py has ten thousand forged files; this is a share of them, and each fault that
once went wrong.
"""

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fmrl
from fmrl.errors import FMRLError, TableError
from fmrl.files import atomic, from_json, read_json, scratch, sweep
from fmrl.runs.folder import writing

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "soak"))
import forge

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    home = tmp_path_factory.mktemp("frame")
    held = pl.DataFrame(
        {"t": ["a"] * 4 + ["b"] * 4, "x": range(8), "y": [0.5 * i for i in range(8)]}
    )
    held.write_csv(home / "t.csv")
    held.write_ipc(home / "t.arrow")
    held.write_parquet(home / "t.parquet")
    return home


@pytest.mark.parametrize("seed", range(6))
def test_forged_files(seed):
    wrong = [forge.check(n) for n in range(25 * seed, 25 * seed + 25)]
    assert [w for w in wrong if w] == []


def test_a_text_that_asks_for_billions_of_classes_is_refused_at_once():
    before = time.perf_counter()
    with pytest.raises(FMRLError, match="99,999,999,999 classes"):
        fmrl.parse("OneVsAll(99999999999)")
    assert time.perf_counter() - before < 1


def test_nested_json_is_refused():
    for depth in (65, 100_000):
        with pytest.raises(ValueError, match="nested"):
            from_json("[" * depth + "]" * depth)
    assert from_json('{"a": [1, [2]]}') == {"a": [1, [2]]}
    with pytest.raises(FMRLError):
        fmrl.tables.encoder.Encoder.from_json(DEEP)
    with pytest.raises(FMRLError):
        fmrl.Certificate.from_json(DEEP)


def test_nested_json_in_files_is_refused(tmp_path):
    from safetensors.numpy import save

    (tmp_path / "model").write_bytes(save({"a": np.zeros(1)}, {"fmrl": DEEP}))
    with pytest.raises(FMRLError, match="damaged"):
        fmrl.MetaRegressor.load(tmp_path / "model")
    with (tmp_path / "state").open("wb") as file:
        np.savez(file, layout=np.frombuffer(DEEP.encode(), np.uint8))
    for load in (fmrl.load_state, fmrl.load_history):
        with pytest.raises(FMRLError, match="damaged"):
            load(tmp_path / "state")


def test_a_file_too_large_for_json_is_not_read(tmp_path):
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no room
    with pytest.raises(ValueError, match="too many"):
        read_json(tmp_path / "huge.json")


@pytest.mark.parametrize("kind", ["compressed", "longer than it is"])
def test_arrays_that_would_take_all_memory_are_refused_before(kind, tmp_path):
    """Two megabytes that unpack to two gigabytes, and a header that says so of nothing."""
    path, before = tmp_path / "bomb", time.perf_counter()
    layout = json.dumps({"fmrl": 1, "state": {}}).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if kind == "compressed" else 0) as file:
        text = io.BytesIO()
        np.save(text, np.frombuffer(layout, np.uint8))
        file.writestr("layout.npy", text.getvalue())
        head = io.BytesIO()
        count = 1 << 28 if kind == "compressed" else 1 << 40
        about = {"descr": "<f8", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(head, about)
        with file.open("big.npy", "w", force_zip64=True) as big:
            big.write(head.getvalue())
            for _ in range(64 if kind == "compressed" else 0):
                big.write(bytes(1 << 22))
    with pytest.raises(FMRLError, match="damaged"):
        fmrl.load_state(path)
    assert time.perf_counter() - before < 20


def test_a_lock_that_is_a_link_is_refused_and_its_target_left(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("do not lose")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").symlink_to(precious)
    with pytest.raises(FMRLError, match="link"), writing(tmp_path / "out"):
        pass
    assert precious.read_text() == "do not lose"


def test_what_killed_processes_left_is_swept(tmp_path):
    old, new = tmp_path / ".0123abcd.partial.x", tmp_path / ".4567cdef.partial.x"
    mine = tmp_path / ".mine.partial.x"  # of somebody else
    for path in (old, new, mine):
        path.write_text("half")
    for path in (old, mine):
        os.utime(path, (0, 0))
    with atomic(tmp_path / "y") as part:
        part.write_text("whole")
    assert {p.name for p in tmp_path.iterdir()} == {new.name, mine.name, "y"}
    sweep(tmp_path, older=0)
    assert not new.exists()


def test_scratch_folders_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    with scratch("work-", tmp_path) as living:
        dead = tmp_path / "work-dead"
        dead.mkdir()
        (dead / "rows").write_text("half")
        for folder in (dead, living):
            os.utime(folder, (0, 0))
        with scratch("work-", tmp_path) as mine:
            assert living.exists() and mine.exists() and not dead.exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["t.arrow", "t.parquet"])
def test_damaged_columns_are_an_error_in_words(name, frame, tmp_path):
    whole, raised = (frame / name).read_bytes(), 0
    for at in range(0, len(whole) - 8, max(1, len(whole) // 40)):
        path = tmp_path / name
        path.write_bytes(whole[:at] + bytes(b ^ 0xFF for b in whole[at : at + 8]) + whole[at + 8 :])
        try:
            list(fmrl.tasks_from_frame(path, task="t", target="y"))
        except FMRLError:
            raised += 1
    assert raised > 5


def _child(path, told):
    try:
        list(fmrl.tasks_from_frame(path, task="t", target="y"))
        told.put("read")
    except TableError as error:
        told.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_after_a_table_was_read_is_told_so(frame):
    list(fmrl.tasks_from_frame(frame / "t.csv", task="t", target="y"))
    forks = multiprocessing.get_context("fork")
    told = forks.SimpleQueue()
    process = forks.Process(target=_child, args=(frame / "t.csv", told), daemon=True)
    process.start()
    process.join(20)
    assert process.exitcode == 0 and "forked" in told.get()


def test_header_names_with_quotes(tmp_path):
    path = tmp_path / "quoted.csv"
    path.write_text('"say ""x""",t,y\n1,a,2\n2,a,3\n3,b,4\n4,b,5\n')
    stream = fmrl.tasks_from_frame(
        path, task="t", target="y", features=['say "x"'], loss="regression"
    )
    assert [t.X.shape for t in stream] == [(2, 1), (2, 1)]
    path.write_text('"a""b","a""b",t,y\n1,1,a,2\n')
    with pytest.raises(TableError):
        fmrl.tasks_from_frame(path, task="t", target="y")


def test_no_torch_in_words(tmp_path):
    """A bare ModuleNotFoundError said nothing of the extra."""
    code = "import sys; sys.modules['torch'] = None; import fmrl.deep"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 1 and "pip install 'fmrl[deep]'" in said.stderr


@pytest.mark.parametrize("imports", [1, 2, 30, 200, 700, None])
def test_control_c_while_the_program_loads_is_one_line(imports):
    """Pressed at the first module, at later ones, and when all are there but no command runs."""
    code = (
        "import os, sys; from fmrl_program import run\n"
        f"left, press = {imports}, lambda: os.kill(os.getpid(), {int(signal.SIGINT)})\n"
        "def count(event, given):\n"
        "    global left\n"
        "    if event == 'import' and left is not None:\n"
        "        left -= 1\n"
        "        if not left: press()\n"
        "sys.addaudithook(count)\n"
        "if left is None:\n"
        "    from fmrl.cli.guard import Guarded\n"
        "    Guarded.parse_args = lambda *given: press()\n"
        "run()"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 128 + signal.SIGINT and said.stderr == "stopped\n"


def test_an_error_without_a_number_still_says_what(tmp_path):
    with pytest.raises(FMRLError, match="the disk is odd"), atomic(tmp_path / "p.csv"):
        raise OSError("the disk is odd")


def test_a_demo_that_cannot_write_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    words = [sys.executable, "-c", "from fmrl_program import run; run()", "demo", "--out"]
    said = subprocess.run(
        [*words, str(tmp_path / "file" / "x")], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2 and "Traceback" not in said.stderr and "error:" in said.stderr


def test_a_damaged_manifest_of_a_cluster_run_is_named(tmp_path):
    from fmrl.cluster.plan import _manifest

    for body in (b"", b"{", b"[]", b'{"run": 3}', b"\xff", DEEP.encode()):
        (tmp_path / "run.json").write_bytes(body)
        with pytest.raises(FMRLError, match=r"run\.json is damaged"):
            _manifest(tmp_path / "run.json")
