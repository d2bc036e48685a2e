"""The federated study: its clients, that its stack of networks plays what a client plays by
itself, that it goes on after a stop, and the command, small.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduction import federated
from typer.testing import CliRunner

torch = pytest.importorskip("torch")


import fmrl  # noqa: E402
from fmrl.cli.main import app  # noqa: E402
from fmrl.datasets.fetch import locate  # noqa: E402
from fmrl.datasets.shakespeare import encode  # noqa: E402
from fmrl.deep import SGD, FLIOnline  # noqa: E402
from fmrl.federated.networks import Network  # noqa: E402
from fmrl.reproduce.federated import claims  # noqa: E402
from fmrl.reproduce.federated.rounds import Stack  # noqa: E402
from fmrl.reproduce.federated.study import Clients, Config, Study  # noqa: E402

SMALL = replace(
    Config().quick(), rounds=4, clients=3, batch=3, steps=2, context=5, hidden=6, embedding=3,
    tested=3, looked=2, every=2, held=7, seeds=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def clients():
    """Twenty roles that repeat a word each."""
    words = ["to be or not", "the rest is silence", "a horse, a horse", "out, out", "et tu"]
    text = [encode((words[k % 5] + " ") * (8 + k)) for k in range(20)]
    return Clients(np.concatenate(text), np.cumsum([0, *map(len, text)]), SMALL.context, "none")


def test_no_character_that_is_scored_was_trained_on(clients):
    for role in range(len(clients)):
        (first, middle), (held, stop) = (clients.samples(role, part) for part in (0, 1))
        start, end = clients.offsets[role : role + 2]
        assert first == start and middle + SMALL.context <= held + SMALL.context and stop + 5 == end
        train = set(clients.draw(role, 0, 10**6, [0]) + SMALL.context)
        test = set(clients.draw(role, 1, 10**6, [0]) + SMALL.context)
        assert not train & test and train | test == set(range(start + SMALL.context, end))
    train, test = clients.split(0)
    assert len(train) == 16 and sorted([*train, *test]) == list(range(20))


class OneTask:
    """The samples that the stack draws for one client, as a sequence of tasks."""

    def __init__(self, stack, rows):
        self.inputs, self.steps, self.batch = stack.loop.inputs, *rows.shape
        self.rows, self.named = rows, stack.text[rows + SMALL.context]

    def draw(self, start, count):
        return self.rows[None], self.named[None]


def test_the_stack_plays_what_a_client_plays_by_itself(clients):
    whole = replace(SMALL, steps=99)
    stack = Stack(whole, clients, "cpu")
    stack.round()  # so that steps differ from parameter to parameter
    chosen = stack._chosen(0, 2)
    rows, epochs = stack._rows([chosen], 2)
    name = claims.PER
    server, state = stack.servers[name], stack.states[name]
    module = stack.module
    names, phi = [n for n, _ in module.named_parameters()], state.phi[0].numpy()
    arrays = server.form.split(phi)
    assert list(arrays) == names
    guess = type(state.guess)(state.guess.steps[0].numpy())
    network, replies = Network(module, SGD(), FLIOnline()), []
    for k in range(SMALL.clients):
        task = OneTask(stack, rows[0, k, : epochs[0, k]])
        ended = network.play(arrays, task, 0, guess, observes="squares")
        weight = float(SMALL.batch * epochs[0, k])
        replies.append(fmrl.federated.Reply(k, ended.arrays, weight, ended.seen))
    alone = state._replace(
        phi=phi, guess=guess, similarity=tuple(m[0].numpy() for m in state.similarity)
    )
    moved, good, _ = server.round(alone, 2, replies)
    stack.round()
    assert len(good) == SMALL.clients
    assert np.allclose(moved.phi, stack.states[name].phi[0].numpy(), atol=1e-6)
    steps = stack.states[name].guess.steps[0].numpy()
    assert np.allclose(moved.guess.steps, steps, rtol=1e-5)
    assert np.ptp(steps) > 0
    assert np.ptp(epochs) > 0 and epochs.max() < whole.steps  # whole epochs, of different lengths


def test_a_run_that_is_stopped_goes_on_to_the_same_numbers(clients, tmp_path):
    whole = Study(SMALL, clients, tmp_path / "whole", "cpu")
    assert whole.go()
    stops = 0
    while not (again := Study(SMALL, clients, tmp_path / "stopped", "cpu")).go(seconds=0):
        stops += 1
    assert stops == 4
    assert again.kept["last"] == whole.kept["last"] and again.kept["looks"] == whole.kept["looks"]
    with pytest.raises(fmrl.FMRLError, match="other sizes"):
        Study(replace(SMALL, rounds=9), clients, tmp_path / "whole", "cpu")
    told = whole.tell()
    assert {v.id for v in told["verdicts"]} >= {"federated.steps", "federated.tuning"}
    assert {p.name for p in told["files"]} >= {"results.json", "verdicts.json", "federated.png"}
    page = federated.document(whole.folder)
    assert "nan" not in page and "| Reptile |" in page and "MB a round" in page
    bytes_ = told["record"]["bytes"]
    assert bytes_[claims.PER] == 2 * bytes_[claims.FEDAVG]
    assert bytes_[claims.ISOTROPIC] == bytes_[claims.FEDAVG] + 4 * 2 * SMALL.clients


def results(after):
    """A finished run in which each method has one accuracy on 2 seeds × 3 clients."""
    noise = np.array([[0.0, 0.01, 0.02], [0.0, 0.02, 0.01]])
    names = [*claims.TRAINED, *claims.APART]
    last = {
        n: {"before": (0.3 + noise).tolist(), "after": (after.get(n, 0.5) + noise).tolist()}
        for n in names
    }
    looks = [
        {
            "round": at,
            "before": {n: last[n]["before"] for n in claims.TRAINED},
            "after": {n: (np.array(last[n]["after"]) * share).tolist() for n in claims.TRAINED},
        }
        for at, share in ((5, 0.5), (10, 0.96), (15, 1.0))
    ]
    sizes = {n: 1_000_000 for n in claims.TRAINED}
    return {"last": last, "looks": looks, "bytes": sizes}


def test_verdicts_follow_the_numbers():
    better = claims.rows(results({claims.PER: 0.6, claims.ISOTROPIC: 0.4}))
    found = {v.id.partition(".")[2]: v for v in claims.judge(better)}
    assert found["steps"].passed and found["per coordinate"].passed and found["tuning"].passed
    assert not found["one step"].passed and not found["Reptile"].passed
    assert found[f"rounds.{claims.PER}"].passed
    assert not found[f"rounds.{claims.ISOTROPIC}"].passed  # it never gets there
    rounds = {r["method"]: r["mean"] for r in better if r["preset"] == claims.ROUNDS}
    assert rounds == {claims.FEDAVG: 10, claims.REPTILE: 10, claims.PER: 10}
    assert {r["mean"] for r in better if r["preset"] == claims.BYTES} == {10.0}


def test_quick(tmp_path):
    if not locate("leaf-shakespeare"):
        pytest.skip("LEAF Shakespeare is not here")
    words = ["reproduce", "federated", "--quick", "--rounds", "2", "--device", "cpu"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0 and "too small to decide" in result.stdout
    found = json.loads((Path(tmp_path) / "federated" / "results.json").read_text("utf-8"))
    assert all(np.isfinite(r["mean"]) for r in found["rows"])
