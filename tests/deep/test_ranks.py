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
from fmrl.core.rules.similarity import ReleasedDoubling
from fmrl.deep import SGD, Adam, Arrays, FollowLeader, MetaTrainer, Ranks, load, save
from fmrl.deep.ranks import by_distance


def test_two_ranks_equal_one_process(tmp_path):
    alone, whole = {}, {}
    for kind in KINDS:
        made, tasks = trainer(kind, None)
        save(made.fit(tasks, 6), tmp_path / "alone" / f"{kind}-6.safetensors")
        alone[kind] = made.phi.clone()
        whole[kind] = made.fit(tasks, 12)
    script = Path(__file__).with_name("ranked.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), str(tmp_path)]
    quiet = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)
    assert done.returncode == 0, done.stderr[-3000:]
    for kind in KINDS:
        start, tasks = trainer(kind, None)
        assert (whole[kind].phi - start.phi).abs().max() > 1e-3  # something was learned
        half = load(trainer(kind, None)[0], tmp_path / f"{kind}-6.safetensors")
        assert (half.phi - alone[kind]).abs().max() < 1e-12
        # Written by two ranks and gone on by one; written by one and gone on by two; two all the
        # way.
        saved = [tmp_path / f"{kind}-{n}.safetensors" for n in (12, "resumed")]
        for found in (half.fit(tasks, 12), *(load(trainer(kind, None)[0], s) for s in saved)):
            assert found.iteration == 12
            assert (found.phi - whole[kind].phi).abs().max() < 1e-12
            assert torch.allclose(found.eta, whole[kind].eta, rtol=1e-12)
        for rank in (0, 1):
            losses = torch.load(tmp_path / f"{kind}-losses-{rank}.pt")
            assert torch.allclose(losses, torch.cat(whole[kind].losses), rtol=1e-10)
    fresh = trainer("doubling", None)[0]
    assert not torch.equal(whole["doubling"].eta, fresh.eta)  # the rule moved the step


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


def launched(monkeypatch, ranks, gpus):
    """An environment as torchrun makes it on a machine with so many GPUs; what was called."""
    world = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    for name, value in (world | {"MASTER_ADDR": "localhost"}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    called = []
    monkeypatch.setattr(torch.cuda, "set_device", called.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", called.append)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    return called


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    called = launched(monkeypatch, ranks=3, gpus=2)
    with pytest.raises(fmrl.FMRLError, match=r"3 ranks .* 2 GPUs; .*--nproc-per-node 2.*gloo"):
        Ranks.start()
    assert called == []
    assert Ranks.start("gloo") == Ranks(0, 3) and called == [0, "gloo"]


@pytest.mark.parametrize(("gpus", "calls"), [(0, ["gloo"]), (2, [0, "nccl"])])
def test_ranks_start_where_they_fit(monkeypatch, gpus, calls):
    called = launched(monkeypatch, ranks=2, gpus=gpus)
    assert Ranks.start() == Ranks(0, 2) and called == calls


class Farthest:
    """A similarity rule that asks for distances alone, with a number as memory."""

    def init(self, domain, phi):
        return torch.ones_like(phi[..., 0]), 0.1

    def update(self, domain, phi, guess, memory, end):
        far = torch.sqrt(domain.divergence(end.theta, phi))
        return torch.maximum(guess * memory, far), memory * 0.9


class Eastward(Farthest):
    """One that asks where tasks ended."""

    def update(self, domain, phi, guess, memory, end):
        return (end.theta - phi)[..., 0].abs(), memory


def test_ranks_take_any_rule_of_distances():
    assert by_distance(Farthest()) and by_distance(ReleasedDoubling(0.1, 1.1))
    X, y = torch.eye(4).double(), [0, 1, 0, 1]
    tasks, found = Arrays([(X, y)], batch=2, steps=2), []
    for ranks in (None, Ranks()):
        net = torch.nn.Linear(4, 2).double()
        torch.nn.init.zeros_(net.weight)
        torch.nn.init.zeros_(net.bias)
        rules = {"meta": FollowLeader(), "similarity": Farthest(), "meta_batch": 3}
        found.append(MetaTrainer(net, SGD(lipschitz=1.0), **rules, ranks=ranks).fit(tasks, 4))
    assert (found[0].phi - found[1].phi).abs().max() < 1e-13
    assert torch.allclose(found[0].eta, found[1].eta, rtol=1e-12)
    assert float(found[0].state.similarity) == pytest.approx(0.1 * 0.9**12)
    with pytest.raises(fmrl.FMRLError, match="asks where"):
        Ranks(0, 2).check(SGD(0.1), Eastward())
    with pytest.raises(fmrl.FMRLError, match="cannot be shared"):
        Ranks(0, 2).check(Adam(carry="in turn"), None)
