"""MetaTrainer under bad input, interruptions and short time: nothing is misread, and what was
done can be gone on with.
"""
# ruff: noqa: E402

import math
import os
import subprocess
import sys
import time
from functools import partial
from importlib import import_module

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

from fmrl.core.domains import Euclidean
from fmrl.core.rules.meta import End
from fmrl.deep import (
    SGD,
    Adam,
    Arrays,
    AverageDeviation,
    DoG,
    FollowLeader,
    Interpolate,
    Layout,
    MetaTrainer,
    Pool,
    SameConv2d,
    cross_entropy,
    load,
    omniglot_net,
    save,
    squared_error,
    summed_cross_entropy,
)
from fmrl.deep.checkpoint import _made
from fmrl.deep.engines import iteration as iteration_module
from fmrl.deep.engines.inner import InnerLoop
from fmrl.deep.engines.threads import share
from fmrl.errors import FMRLError

torch.set_num_threads(1)


def arrays(steps=4, seed=0):
    rng = np.random.default_rng(0)
    return Arrays(
        [(rng.normal(size=(6, 3)), rng.integers(0, 2, 6)) for _ in range(7)],
        batch=3,
        steps=steps,
        seed=seed,
    )


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def trainer(within=None, meta=None, **options):
    return MetaTrainer(
        net(),
        within or Adam(0.01, carry=True),
        meta=meta or Interpolate(1.0, 0.0, 40),
        meta_batch=3,
        **options,
    )


class Interrupting:
    """A loss that raises at its n-th call."""

    __name__ = "interrupting"

    def __init__(self, at, error):
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, outputs, labels):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return cross_entropy(outputs, labels)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("boom")])
@pytest.mark.parametrize("at", [9, 30, 45])
@pytest.mark.parametrize("meta", [Interpolate(1.0, 0.0, 40), FollowLeader()])
def test_what_stops_a_fit_leaves_whole_meta_iterations(tmp_path, error, at, meta):
    def made(at):
        return trainer(meta=meta, loss=Interrupting(at, error), path="functional")

    whole, stopped = made(-1).fit(arrays(), 12), made(at)
    with pytest.raises(type(error)):
        stopped.fit(arrays(), 12)
    # Two calls that check the loss, then four a meta-iteration.
    assert stopped.iteration == (at - 3) // 4
    fresh = load(made(-1), save(stopped, tmp_path / "c.safetensors"))
    assert torch.equal(fresh.fit(arrays(), 12).phi, whole.phi)
    assert torch.equal(stopped.fit(arrays(), 12).phi, whole.phi)
    assert sum(map(len, stopped.losses)) == 12


def test_time_is_looked_at_within_a_chunk():
    calls, seen = [], []

    def slow(outputs, labels):
        time.sleep(0.01)
        return cross_entropy(outputs, labels)

    t = trainer(loss=slow, path="functional")
    started = time.monotonic()
    t.fit(
        arrays(),
        200,
        seconds=0.2,
        each=[calls.append, lambda t: seen.append(t.iteration)],
        every=150,
    )
    assert time.monotonic() - started < 2.0 and 0 < t.iteration < 150
    assert calls == [t] and seen == [
        t.iteration
    ]  # called when it stops, so that a checkpoint can be written


def test_carried_moments_count_the_steps_that_were_taken():
    t = trainer().fit(arrays(4), 3).fit(arrays(9), 6)
    assert t.count == 3 * 3 * 4 + 3 * 3 * 9
    assert t.engine.bias[0, 0, 0].item() == math.sqrt(1 - 0.999 ** (3 * 3 * 4 + 1))


def test_tables_of_long_tasks_are_cut(monkeypatch):
    whole = trainer().fit(arrays(), 10)
    monkeypatch.setattr(iteration_module, "TABLES", 16 * 3 * 4 * 3 * 2)
    cut = trainer().fit(arrays(), 10)
    assert cut.engine.chunk == 2 and torch.equal(cut.phi, whole.phi)


def test_a_loss_that_is_no_number_is_named():
    with pytest.raises(FMRLError, match="not a finite number at meta-iteration"):
        trainer(SGD(1e300), loss=lambda o, y: o.square().sum((1, 2))).fit(arrays(), 30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "foo"}, "path='foo'"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"piece": -1}, "piece=-1"),
        ({"piece": 0}, "piece=0"),
        ({"runs": 0}, "runs=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**31}, "seed="),
        ({"within": [SGD(0.1), Adam(0.1)], "runs": 2}, "step alone"),
        ({"within": [Adam(0.1, carry=False), Adam(0.1, carry=True)], "runs": 2}, "step alone"),
        ({"within": torch.optim.SGD}, "optimiser of fmrl.deep"),
        ({"meta": [Interpolate(1.0, 0.0, 3)]}, "meta-update"),
        ({"module": nn.ReLU()}, "nothing to train"),
        ({"module": []}, "nothing to train"),
        (
            {
                "module": [
                    nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
                    nn.Sequential(nn.Linear(3, 2), nn.Tanh()),
                ]
            },
            "architecture",
        ),
        ({"meta_batch": 2.5}, "meta_batch=2.5"),
    ],
)
def test_settings_that_would_be_misread_are_refused(options, message):
    with pytest.raises(FMRLError, match=message):
        MetaTrainer(options.pop("module", net()), **options)


def test_calls_that_would_be_misread_are_refused():
    t = trainer()
    with pytest.raises(FMRLError, match="every"):
        t.fit(arrays(), 3, every=-1, each=print)
    with pytest.raises(FMRLError, match="Arrays"):
        t.fit([(np.zeros((2, 3)), [0, 1])], 3)
    with pytest.raises(FMRLError, match="run=5"):
        t.trained(5)


def test_a_checkpoint_of_other_settings_or_other_numbers_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save(trainer().fit(arrays(), 2), path)
    other_net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    rest = {"within": Adam(0.01, carry=True), "meta": Interpolate(1.0, 0.0, 40), "meta_batch": 3}
    others = [MetaTrainer(net().float(), **rest), MetaTrainer(other_net, **rest)]
    others += [trainer(Adam(0.02, carry=True)), trainer(meta=FollowLeader())]
    for other in [*others, trainer(loss=Interrupting(-1, None))]:
        with pytest.raises(FMRLError, match="was made with"):
            load(other, path)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(FMRLError, match="damaged"):
        load(trainer(), path)


def test_a_checkpoint_of_another_torch_is_taken_and_a_changed_setting_is_not(tmp_path, monkeypatch):
    """Versions of torch print layers differently and add settings."""
    path, sequential = tmp_path / "c.safetensors", nn.Sequential
    with monkeypatch.context() as patch:
        patch.setattr(sequential, "__repr__", lambda self: "as in another version")
        older = trainer()
        older.module[0].a_new_setting = True
        save(older.fit(arrays(), 2), path)
    assert load(trainer(), path).iteration == 2
    changed = trainer()
    changed.module[0].out_features += 1
    with pytest.raises(FMRLError, match=r"made with out_features = \d+ at layer '0'"):
        load(changed, path)


@pytest.mark.parametrize("loss", [cross_entropy, squared_error, summed_cross_entropy])
def test_checkpoints_name_a_loss_as_they_always_did(loss):
    """A saved checkpoint is compared with this name, so it outlives moves of modules."""
    assert _made(trainer(loss=loss))["loss"] == f"fmrl.deep.losses.{loss.__name__}"


def test_large_seeds_play_other_tasks():
    found = [trainer(seed=seed).fit(arrays(), 2).phi for seed in (0, 20261115, 2**30 - 1)]
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


def test_steps_of_all_runs_are_compared(tmp_path):
    def two(second):
        return MetaTrainer(net(), [SGD(0.1), SGD(second)], runs=2, meta_batch=2)

    path = save(two(0.2).fit(arrays(), 2), tmp_path / "c.safetensors")
    with pytest.raises(FMRLError, match="steps"):
        load(two(0.3), path)


def test_the_inner_step_is_the_guess_over_sigma():
    """eta_t = D_t/(G·√m), m the steps of a task; the guess is what the core's rule makes of all
    tasks of a meta-batch in turn.
    """
    rule, within = AverageDeviation(first=0.5), SGD(lipschitz=2.0)
    t = MetaTrainer(net(), within, similarity=rule, meta=FollowLeader(), meta_batch=3)
    phi, ends = t.phi.clone(), []
    t.fit(arrays(4), 1, each=lambda t: ends.append(t._from_loop(t.loop.theta)))
    guess, memory = rule.init(Euclidean(), phi)
    for end in ends[0][:, None]:
        guess, memory = rule.update(
            Euclidean(), phi, guess, memory, End(end, end, torch.tensor([2.0 * math.sqrt(4)]))
        )
    assert torch.allclose(t.state.guess, guess, rtol=1e-12) and not torch.allclose(
        guess, torch.tensor(0.5).double()
    )
    assert torch.allclose(t.eta, guess / (2.0 * math.sqrt(4)), rtol=1e-12)


def test_no_helper_of_torch_is_waked_between_tasks(monkeypatch):
    """It would spin on a core that a task needs. Callbacks have the user's number again."""
    found, plain, before = [], InnerLoop.play, torch.get_num_threads()

    def play(loop, *begin):
        found.append((torch.get_num_threads(), loop.threads))
        plain(loop, *begin)

    monkeypatch.setattr(InnerLoop, "play", play)
    try:
        torch.set_num_threads(2)
        for batch in (1, 3):
            seen = MetaTrainer(net(), SGD(0.1), meta_batch=batch)
            seen.fit(arrays(), 2, each=lambda _: found.append(torch.get_num_threads()))
    finally:
        torch.set_num_threads(before)
    assert found == [(2, 1), (2, 1), 2, (1, 2), (1, 2), 2]


def test_a_thread_that_is_held_up_takes_fewer_tasks(monkeypatch):
    order, plain, before = [], InnerLoop._piece, torch.get_num_threads()

    def piece(loop, worker, *rest):
        order.append(worker)
        if worker == 0:
            time.sleep(0.5)
        return plain(loop, worker, *rest)

    monkeypatch.setattr(InnerLoop, "_piece", piece)
    try:
        torch.set_num_threads(2)
        found = MetaTrainer(net(), SGD(0.1), meta_batch=6, piece=1).fit(arrays(), 1).phi
    finally:
        torch.set_num_threads(before)
    assert len(order) == 6 and order.count(1) > 3
    assert torch.equal(found, MetaTrainer(net(), SGD(0.1), meta_batch=6).fit(arrays(), 1).phi)


@pytest.mark.parametrize("within", [SGD(0.1), Adam(0.01), DoG(0.1)], ids=repr)
def test_a_task_that_two_threads_share_goes_on_where_it_was(within, monkeypatch):
    """Of five tasks two threads play two each, and half of the steps of the fifth."""
    found, calls, plain, before = [], [], InnerLoop._piece, torch.get_num_threads()

    def piece(loop, worker, rows, steps, held):
        calls.append((rows.start, steps))
        if len(calls) > 20:
            raise ArithmeticError
        return plain(loop, worker, rows, steps, held)

    monkeypatch.setattr(InnerLoop, "_piece", piece)
    try:
        for threads in (1, 2):
            calls.clear()
            torch.set_num_threads(threads)
            trained = MetaTrainer(net(), within, meta_batch=5, piece=1).fit(arrays(), 2)
            found.append(trained.phi)
        assert calls.count((4, range(2))) == calls.count((4, range(2, 4))) == 2 and len(calls) == 12
        calls += [None] * 20
        with pytest.raises(ArithmeticError):  # and nobody waits for the other half
            trained.fit(arrays(), 3)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_threads_that_were_stopped_do_not_go_on(monkeypatch):
    """An interrupt while two threads play: once it is raised nobody writes to the loop any more."""
    held, before = [], torch.get_num_threads()

    def slow():
        time.sleep(0.2)
        held.append(1)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share([stop, slow, slow], 2)
    assert held == [1, 1] and torch.get_num_threads() == before


def test_activations_may_write_in_place():
    torch.manual_seed(0)
    X = np.random.default_rng(0).random((8, 1, 6, 6))
    tasks = Arrays([(X, [0, 1, 2, 0, 1, 2, 0, 1])], batch=4, steps=2)
    found = []
    for inplace in (False, True):
        torch.manual_seed(0)
        layers = [
            nn.Conv2d(1, 4, 3, bias=False),
            nn.ReLU(inplace=inplace),
            nn.Flatten(),
            nn.Linear(64, 3),
        ]
        found.append(
            MetaTrainer(nn.Sequential(*layers).double(), SGD(0.1), meta_batch=2, path="stacked")
            .fit(tasks, 2)
            .phi
        )
    assert torch.equal(*found)


def test_a_good_checkpoint_brings_a_spoilt_trainer_back(tmp_path):
    path = save(trainer().fit(arrays(), 2), tmp_path / "c.safetensors")
    spoilt = Arrays([(np.full((6, 3), np.nan), [0, 1] * 3)], batch=3, steps=4)
    t, calls = load(trainer(), path), []
    with pytest.raises(FMRLError, match="not a finite number at meta-iteration 3"):
        t.fit(spoilt, 4, each=calls.append)
    assert calls == []  # nothing that is no number is handed on
    assert torch.equal(load(t, path).fit(arrays(), 4).phi, trainer().fit(arrays(), 4).phi)


def test_losses_are_known_by_what_they_are(tmp_path):
    def weighted(outputs, labels, w):
        return w * cross_entropy(outputs, labels)

    path = save(trainer(loss=partial(weighted, w=2.0)).fit(arrays(), 1), tmp_path / "c.safetensors")
    load(trainer(loss=partial(weighted, w=2.0)), path)
    for other in (partial(weighted, w=3.0), torch.func.vmap(torch.nn.functional.cross_entropy)):
        with pytest.raises(FMRLError, match="loss"):
            load(trainer(loss=other), path)


@pytest.mark.parametrize("change", ["frozen", "mode", "hook", "attribute"])
def test_modules_that_are_not_one_network_are_refused(change):
    one, two = (
        nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
        )
        for _ in range(2)
    )
    if change == "frozen":
        two[0].weight.requires_grad_(False)
    elif change == "mode":
        two[1].eval()
    elif change == "hook":
        two[2].register_forward_hook(lambda module, inputs, output: 2 * output)
    else:
        two[1].scale = 3
    with pytest.raises(FMRLError, match="architecture"):
        MetaTrainer([one, two])


class Own:
    """A sequence of one's own whose labels or targets change with the task."""

    def __init__(self, targets):
        self.inputs, self.steps, self.batch, self.targets = (
            torch.ones(2, 3, dtype=torch.float64),
            1,
            2,
            targets,
        )

    def draw(self, start, count):
        index = torch.arange(2).repeat(count, 1, 1)
        return index, torch.stack([self.targets(e) for e in range(start, start + count)])[:, None]


def test_labels_of_later_tasks_are_checked():
    tasks = Own(lambda e: torch.tensor([0, 1 if e < 30 else -100]))
    with pytest.raises(FMRLError, match="labels go from -100"):
        trainer().fit(tasks, 40)


def test_targets_of_another_kind_get_buffers_of_their_own():
    def fitted(*parts):
        t = MetaTrainer(
            nn.Linear(3, 1).double(),
            SGD(0.1),
            loss=squared_error,
            meta_batch=1,
            meta=Interpolate(1.0, 1.0, 9),
        )
        t.state.phi.zero_()
        tasks = Own(None)
        for i, targets in enumerate(parts):
            tasks.targets = targets
            t.fit(tasks, i + 1)
        return t.phi

    whole_numbers, halves = (
        (lambda e: torch.tensor([1, 1])),
        (lambda e: torch.tensor([0.5, 0.5], dtype=torch.float64)),
    )
    ones = lambda e: torch.ones(2, dtype=torch.float64)  # noqa: E731
    assert torch.equal(fitted(whole_numbers, halves), fitted(ones, halves))


@pytest.mark.parametrize("seed", [1.5, "a", None, True])
def test_seeds_are_whole_numbers(seed):
    with pytest.raises(FMRLError, match="seed"):
        trainer(seed=seed)
    assert trainer(seed=np.int32(3)).fit(arrays(), 1).iteration == 1


class Between:
    """An update rule of one's own: half-way between the last iterate and the mean one."""

    exact = False

    def vector(self, play, best):
        return (play.last + play.average) / 2


class HeavyBall:
    """A meta-update that remembers a vector and a number."""

    def init(self, domain, phi):
        return phi, (phi, 0)

    def update(self, domain, phi, memory, end):
        before, count = memory
        return phi + (end.theta - phi) / (count + 1) + 0.3 * (phi - before), (phi, count + 1)


class Signed:
    """A meta-update whose memory is a counter but whose step is no fraction of theta − phi."""

    def init(self, domain, phi):
        return phi, 0

    def update(self, domain, phi, memory, end):
        return phi + 0.01 / (memory + 1) * torch.sign(end.theta - phi), memory + 1


class Longest:
    """A similarity rule that remembers where tasks ended, and the guess before."""

    def init(self, domain, phi):
        return torch.full_like(phi[..., 0], 0.5), (torch.zeros_like(phi), phi[..., 0])

    def update(self, domain, phi, guess, memory, end):
        total, before = memory
        return (total + end.theta - phi).norm(dim=-1) + 0.01 * before, (total + end.theta, guess)


@pytest.mark.parametrize("meta", [HeavyBall(), Signed()])
def test_rules_of_ones_own_need_no_other_edit(meta, tmp_path):
    """Every kind of rule, every shape of memory, on a path that keeps theta in another order."""
    rng, domain = np.random.default_rng(0), Euclidean()
    X, y = rng.random((12, 1, 8, 8)), np.arange(12) % 2
    tasks = Arrays([(X, y)], batch=4, steps=3)
    layers = [SameConv2d(1, 3, 3, 2), nn.BatchNorm2d(3, track_running_stats=False), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 2)).double()

    def made(path):
        rules = {"update": Between(), "meta": meta, "similarity": Longest(), "meta_batch": 2}
        return MetaTrainer(network, SGD(lipschitz=3.0), **rules, path=path)

    trainer = made("by hand").fit(tasks, 3)
    assert trainer.order is not None
    layout, sigma = Layout.of(network), 3.0 * math.sqrt(3)
    phi, memory = meta.init(domain, layout.flat(network)[None])
    guess, held = Longest().init(domain, phi)
    for t in range(3):
        index, label = tasks.draw(2 * t, 2)
        ends, start = [], phi
        for k in range(2):
            module, played = layout.module(network, start[0]), []
            for s in range(3):
                played.append(layout.flat(module))
                loss = nn.functional.cross_entropy(module(tasks.inputs[index[k, s]]), label[k, s])
                gradients = torch.autograd.grad(loss, list(module.parameters()))
                with torch.no_grad():
                    for p, g in zip(module.parameters(), gradients, strict=True):
                        p -= float(guess) / sigma * g
            ends.append((layout.flat(module) + torch.stack(played).mean(0))[None] / 2)
        for end in ends:
            one = End(end, end, torch.tensor([sigma]).double())
            guess, held = Longest().update(domain, start, guess, held, one)
        mean = torch.stack(ends).mean(0)
        phi, memory = meta.update(domain, start, memory, End(mean, mean, torch.tensor([2 * sigma])))
    assert (trainer.phi - phi).abs().max() < 1e-12
    assert torch.allclose(trainer.state.guess, guess, rtol=1e-10)
    path = save(made("by hand").fit(tasks, 1), tmp_path / "c.safetensors")
    for way in ("by hand", "stacked"):
        assert (load(made(way), path).fit(tasks, 3).phi - phi).abs().max() < 1e-11


def test_an_update_rule_that_asks_for_more_is_refused():
    class Losses(Between):
        def vector(self, play, best):
            return play.losses

    with pytest.raises(FMRLError, match="asks for the play's losses"):
        MetaTrainer(net(), update=Losses())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process can be forked here")
def test_a_forked_process_trains_and_waits_for_no_thread_of_its_parent(tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(
        "import os, torch\n"
        "from fmrl.deep import Adam, Arrays, MetaTrainer\n"
        "torch.set_num_threads(2)\n"
        "tasks = Arrays([(torch.eye(4), [0, 1, 2, 0])] * 5, batch=2, steps=3)\n"
        "def ends():\n"
        "    net = torch.nn.Linear(4, 3)\n"
        "    torch.nn.init.ones_(net.weight), torch.nn.init.zeros_(net.bias)\n"
        "    return MetaTrainer(net, Adam(0.1), meta_batch=5).fit(tasks, 2).phi\n"
        "found = ends()\n"
        "torch.ones(2_000, 2_000).exp()  # wakes torch's own threads\n"
        "if os.fork() == 0:\n"
        "    torch.ones(2_000, 2_000).exp()\n"
        "    os._exit(0 if torch.equal(ends(), found) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert subprocess.run([sys.executable, script], timeout=100).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process can be forked here")
def test_a_forked_process_has_no_pool_of_its_parent():
    """Its threads did not come along, and whoever asked it for work would wait for ever."""
    pool = import_module("fmrl.deep.engines.threads")._pool
    pool(2)
    if not (child := os.fork()):
        os._exit(pool.cache_info().currsize)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_loss_that_is_not_finite_ends_the_fit_soon():
    """At the chunk after, whether or not there are pauses, and with the number of the first."""
    rng = np.random.default_rng(0)
    pool = Pool.of(rng.normal(size=(60, 3)), np.repeat(np.arange(6), 10))
    tasks = pool.tasks(2, 3, batch=3, steps=2)
    trainer = MetaTrainer(
        nn.Linear(3, 2).double(), SGD(1e300), loss=lambda o, y: o.square().sum((1, 2)), meta_batch=3
    )
    with pytest.raises(FMRLError, match=r"not a finite number at meta-iteration [12];"):
        trainer.fit(tasks, 400, every=10)
    assert trainer.iteration <= 20


def test_passes_by_hand_do_not_depend_on_the_number_of_threads():
    """Five tasks are one piece, or pieces of two and one: the one left over is no other way."""
    rng = np.random.default_rng(0)
    pool = Pool.of(rng.normal(size=(60, 12, 12)), np.repeat(np.arange(6), 10))
    tasks, found = pool.tasks(3, 4, batch=4, steps=6), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            small = omniglot_net(3, filters=8, side=12, seed=0).double()
            found.append(MetaTrainer(small, Adam(0.01), meta_batch=5).fit(tasks, 7).phi)
        finally:
            torch.set_num_threads(1)
    assert (found[0] - found[1]).abs().max() < 1e-12
