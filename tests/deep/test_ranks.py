"""torchrun with two gloo ranks against one process: the same numbers in float64, one checkpoint,
resumed at another size.
"""
# ruff: noqa: E402

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from ranked import KINDS, trainer

import fmrl
from fmrl.deep import Ranks, load, save


def test_two_ranks_equal_one_process(tmp_path):
    alone, whole = {}, {}
    for kind in KINDS:
        made, tasks = trainer(kind, None)
        save(made.fit(tasks, 6), tmp_path / "alone" / f"{kind}-6.safetensors")
        alone[kind] = made.phi.clone()
        whole[kind] = made.fit(tasks, 12)
    script = Path(__file__).with_name("ranked.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for kind in KINDS:
        start, tasks = trainer(kind, None)
        assert (whole[kind].phi - start.phi).abs().max() > 1e-3  # something was learned
        half = load(trainer(kind, None)[0], tmp_path / f"{kind}-6.safetensors")
        assert (half.phi - alone[kind]).abs().max() < 1e-12
        # Written by two ranks and gone on by one; written by one and gone on by two; two all the
        # way.
        for found in (
            half.fit(tasks, 12),
            *(
                load(trainer(kind, None)[0], tmp_path / f"{kind}-{n}.safetensors")
                for n in (12, "resumed")
            ),
        ):
            assert found.iteration == 12
            assert (found.phi - whole[kind].phi).abs().max() < 1e-12
            assert torch.allclose(found.eta, whole[kind].eta, rtol=1e-12)
        for rank in (0, 1):
            losses = torch.load(tmp_path / f"{kind}-losses-{rank}.pt")
            assert torch.allclose(losses, torch.cat(whole[kind].losses), rtol=1e-10)
    if "doubling" in KINDS:
        assert not torch.equal(
            whole["doubling"].eta, trainer("doubling", None)[0].eta
        )  # the rule moved the step


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_no_rank(kind):
    (one, tasks), (none, _) = trainer(kind, Ranks()), trainer(kind, None)
    assert (one.fit(tasks, 5).phi - none.fit(tasks, 5).phi).abs().max() < 1e-13


def test_shares_cover_the_meta_batch():
    for count in (3, 5, 8):
        taken = [i for r in range(3) for i in range(count)[Ranks(r, 3).share(count)]]
        assert taken == list(range(count))
    with pytest.raises(fmrl.FMRLError, match="without one"):
        Ranks(0, 4).share(3)


def test_outside_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(fmrl.FMRLError, match="torchrun"):
        Ranks.start()
