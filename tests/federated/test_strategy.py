"""FedFMRL with Flower's own messages and no network: equal to `fmrl.run` and to `MetaTrainer`,
equal to FedAvg where it should be, and deaf to garbage.
"""
# ruff: noqa: E402

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fmrl[federated]'")
torch = pytest.importorskip("torch")

from direct import Direct, arrays
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import fmrl
import fmrl.federated.networks
from fmrl import federated
from fmrl.deep import SGD, Arrays, FLIBatch, FLIOnline, MetaTrainer, squared_error

CLIENTS, ROUNDS = 7, 4
EXACT = {"fraction_evaluate": 0.0, "min_available_nodes": CLIENTS, "min_train_nodes": CLIENTS}


def tasks(loss, count=CLIENTS, d=3, m=6, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for t in range(count):
        X = rng.normal(size=(m + t % 3, d)) / 3
        y = X @ (rng.normal(size=d) * 0.3 + 0.4) + 0.05 * rng.normal(size=len(X))
        made.append(fmrl.Task(X, y if loss == fmrl.Squared() else np.sign(y), loss=loss))
    return made


def convex_app(algo, made):
    app = ClientApp()

    @app.train()
    def train(message, context):
        return federated.train_task(
            message, context, algo, made[context.node_config["partition-id"]]
        )

    @app.evaluate()
    def evaluate(message, context):
        task = made[context.node_config["partition-id"]]
        return federated.evaluate_task(message, context, algo, task, task)

    return app


ALGOS = [
    fmrl.FMRL(fmrl.Ball(1.0), fmrl.OMD(), fmrl.FLIOnline()),
    fmrl.FMRL(fmrl.Ball(1.0), fmrl.OGD(), fmrl.FLIBatch(), similarity=fmrl.Isotropic(0.2)),
    fmrl.FMRL(fmrl.Ball(2.0), fmrl.OMD(), fmrl.FAL(), similarity=fmrl.AverageDeviation()),
    fmrl.FMRL(
        fmrl.Ball(3.0), fmrl.OMD(), fmrl.FLIOnline(), fmrl.Interpolate(1.0, 0.2, 3),
        fmrl.PerCoordinate(0.2),
    ),
    fmrl.FMRL(fmrl.Ball(1.0), fmrl.OMD(), fmrl.FLIOnline(), similarity=fmrl.FullMatrix(0.2)),
]  # fmt: skip


def hosting(app, clients):
    """The same clients, ``clients[k]`` of them on node k."""
    made = ClientApp()

    def hosted(message, context):
        return federated.host(message, context, clients[context.node_config["partition-id"]], app)

    made.train()(hosted)
    made.evaluate()(hosted)
    return made


def test_nodes_that_host_clients_are_these_clients():
    """To the last bit, training and scores; one that fails is refused without its neighbours."""
    algo, made, results = ALGOS[3], tasks(fmrl.Squared()), []
    app, options = convex_app(algo, made), {"min_replies": 6}
    where = [(4, 0, 2), (6,), (1, 3, 5)]
    for clients, app_ in ((CLIENTS, app), (3, hosting(app, where))):
        strategy = federated.FedFMRL(algo, min_available_nodes=clients, **options)
        results.append(strategy.start(Direct(app_, clients), arrays(phi=np.zeros(3)), ROUNDS))
    alone, hosted = results
    assert np.array_equal(alone.arrays["phi"].numpy(), hosted.arrays["phi"].numpy())
    scores = [r.evaluate_metrics_clientapp[ROUNDS] for r in results]
    assert dict(scores[0]) == dict(scores[1]) and scores[0]["clients"] == CLIENTS
    told = [r.train_metrics_clientapp[1] for r in results]
    assert told[0]["bytes-up"] == told[1]["bytes-up"]
    assert told[0]["bytes-down"] * 3 == told[1]["bytes-down"] * CLIENTS  # once a node

    broken = [m for k, m in enumerate(made) if k != 3]
    expected = fmrl.run(algo, broken * ROUNDS, np.zeros(3), meta_batch=6).state
    made[3] = None
    strategy = federated.FedFMRL(algo, min_available_nodes=3, fraction_evaluate=0.0, **options)
    result = strategy.start(Direct(hosting(app, where), 3), arrays(phi=np.zeros(3)), ROUNDS)
    assert np.abs(result.arrays["phi"].numpy() - expected.phi).max() < 1e-10
    told = result.train_metrics_clientapp[1]
    assert told["refused-failed"] == told["refused"] == 1 and told["clients"] == 6


@pytest.mark.parametrize("algo", ALGOS, ids=lambda a: type(a.similarity).__name__)
@pytest.mark.parametrize("loss", [fmrl.Squared(), fmrl.Logistic()], ids=repr)
def test_a_federated_run_is_a_run_with_meta_batches(algo, loss):
    made = tasks(loss)
    strategy = federated.FedFMRL(algo, **EXACT, at_once=3)
    grid = Direct(convex_app(algo, made), CLIENTS)
    result = strategy.start(grid, arrays(phi=np.zeros(3)), ROUNDS)
    assert grid.sizes == [3, 3, 1] * ROUNDS
    expected = fmrl.run(algo, made * ROUNDS, np.zeros(3), meta_batch=CLIENTS).state
    assert np.abs(result.arrays["phi"].numpy() - expected.phi).max() < 1e-10
    found, wanted = (
        g.dense() if hasattr(g, "dense") else g for g in (strategy.state.guess, expected.guess)
    )
    assert np.abs(found - wanted).max() < 1e-10
    assert strategy.state.tasks == expected.tasks == CLIENTS * ROUNDS


def test_one_client_a_round_is_algorithm_two():
    algo, made = ALGOS[0], tasks(fmrl.Squared(), count=1)
    strategy = federated.FedFMRL(
        algo, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1
    )
    result = strategy.start(Direct(convex_app(algo, made), 1), arrays(phi=np.zeros(3)), 5)
    assert np.allclose(result.arrays["phi"].numpy(), fmrl.run(algo, made * 5).state.phi, atol=1e-12)


def networks(count=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(count, 9, 2, dtype=torch.float64, generator=generator)
    w = torch.randn(count, 2, dtype=torch.float64, generator=generator)
    return [(x, (x * v).sum(1, keepdim=True)) for x, v in zip(X, w, strict=True)]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def network_app(made, within=SGD(), update=None):
    app, own = ClientApp(), [Arrays([pair], batch=3, steps=4, seed=5) for pair in made]

    @app.train()
    def train(message, context):
        k = context.node_config["partition-id"]
        number = (message.content["config"]["server-round"] - 1) * len(made) + k
        return federated.train_network(
            message, context, net(), own[k], within=within, update=update, loss=squared_error,
            number=number,
        )  # fmt: skip

    @app.evaluate()
    def evaluate(message, context):
        k = context.node_config["partition-id"]
        return federated.evaluate_network(
            message, context, net(), own[k], made[k], within=within, loss=squared_error
        )

    return app


def test_clients_of_one_round_drop_other_numbers():
    """With one set of samples only the masks differ; a number that is given decides them too."""
    made = networks(1) * 3
    own = [Arrays([pair], batch=3, steps=4, seed=5) for pair in made]
    dropping = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    for number, different in ((None, 3), (4, 1)):
        app, ends = ClientApp(), []

        @app.train()
        def train(message, context, number=number, ends=ends):
            given = {"within": SGD(0.1), "loss": squared_error, "number": number}
            at = context.node_config["partition-id"]
            reply = federated.train_network(message, context, dropping, own[at], **given)
            ends.append(
                np.concatenate([a.numpy().ravel() for a in reply.content["arrays"].values()])
            )
            return reply

        start = ArrayRecord(dropping.state_dict())
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
        strategy.start(Direct(app, 3), start, 1)
        assert len(np.unique(ends, axis=0)) == different


META = [
    (fmrl.Interpolate(1.0, 0.0, 5), fmrl.PerCoordinate(0.1), SGD(), FLIOnline()),
    (fmrl.FollowLeader(), fmrl.Isotropic(0.1), SGD(), FLIBatch()),
    (fmrl.LastUpdate(), fmrl.AverageDeviation(0.3), SGD(lipschitz=2.0), FLIOnline()),
    (fmrl.Interpolate(0.5, 0.5, 1), fmrl.KnownStep(0.05), SGD(), FLIOnline()),
]


@pytest.mark.parametrize(("meta", "similarity", "within", "update"), META, ids=repr)
def test_a_federated_run_is_a_meta_trainer(meta, similarity, within, update):
    made = networks()
    every = Arrays(made, batch=3, steps=4, seed=5)
    trainer = MetaTrainer(
        net(), within, update, meta, similarity, meta_batch=len(made), loss=squared_error
    ).fit(every, ROUNDS)
    strategy = federated.FedFMRL(
        meta=meta, similarity=similarity, weighted_by_key="sigma", fraction_evaluate=0.0,
        min_available_nodes=4, min_train_nodes=4,
    )  # fmt: skip
    start = ArrayRecord(net().state_dict())
    result = strategy.start(Direct(network_app(made, within, update), len(made)), start, ROUNDS)
    found, expected = result.arrays.to_torch_state_dict(), trainer.trained().state_dict()
    for name, value in expected.items():
        assert (found[name] - value).abs().max() < 1e-8, name
    steps = strategy.state.guess
    steps = torch.as_tensor(getattr(steps, "steps", steps)).flatten()
    assert (steps - trainer.state.guess.flatten()).abs().max() < 1e-8
    assert (found["0.weight"] - net().state_dict()["0.weight"]).abs().max() > 1e-3  # it learns


def plain_app(steps=3):
    """A FedAvg client as Flower's users write it: it knows nothing of this library."""
    app, made = ClientApp(), networks()

    @app.train()
    def train(message, context):
        X, y = made[context.node_config["partition-id"]]
        module = net()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        step = message.content["config"]["step"]
        for _ in range(steps):
            module.zero_grad()
            (module(X) - y).square().mean().backward()
            with torch.no_grad():
                for p in module.parameters():
                    p -= step * p.grad
        metrics = MetricRecord(
            {"num-examples": 5 + context.node_config["partition-id"], "loss": 1.0}
        )
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def test_with_a_known_step_it_is_fedavg_for_clients_that_know_nothing_of_it():
    options = {"fraction_evaluate": 0.0, "min_train_nodes": 4, "min_available_nodes": 4}
    start, grid = ArrayRecord(net().state_dict()), Direct(plain_app(), 4)
    ours = federated.FedFMRL(similarity=fmrl.KnownStep(0.1), **options).start(grid, start, 3)
    config = ConfigRecord({"step": 0.1})
    theirs = FedAvg(**options).start(grid, start, 3, train_config=config)
    for name, array in theirs.arrays.items():
        assert np.allclose(array.numpy(), ours.arrays[name].numpy(), atol=1e-14), name
    assert ours.train_metrics_clientapp[3]["loss"] == pytest.approx(1.0)


def replace(reply, **changed):
    """The reply with other arrays or numbers."""
    content, source = reply.content, reply.metadata.src_node_id
    for name, value in changed.items():
        content[name] = value
    assert reply.metadata.src_node_id == source
    return reply


def numbers(reply, **changed):
    return replace(reply, metrics=MetricRecord(dict(reply.content["metrics"]) | changed))


def without(reply, record):
    del reply.content[record]
    return reply


GARBAGE = {
    "failed": lambda m, r: Message(Error(0, "died"), reply_to=m),
    "no-reply": lambda m, r: None,
    "not-finite": lambda m, r: replace(r, arrays=arrays(phi=np.array([1.0, np.nan, 0.0]))),
    "wrong-shapes": lambda m, r: replace(r, arrays=arrays(phi=np.zeros(4))),
    "wrong-keys": lambda m, r: replace(r, arrays=arrays(theta=np.zeros(3))),
    "stale-round": lambda m, r: numbers(r, **{"server-round": 0}),
    "no-weight": lambda m, r: numbers(r, sigma=-1.0),
    "no-gradients": lambda m, r: without(r, "seen"),
    "outside-domain": lambda m, r: replace(r, arrays=arrays(phi=np.full(3, 9.0))),
    "not-finite ": lambda m, r: numbers(r, loss=float("nan")),
    "no-gradients ": lambda m, r: replace(r, seen=arrays(seen=np.array([-1.0]))),
    "no-weight ": lambda m, r: replace(
        r, metrics=MetricRecord({"loss": 0.1, "server-round": m.content["config"]["server-round"]})
    ),
    "wrong-keys ": lambda m, r: replace(
        r, arrays=ArrayRecord({"phi": Array("float64", (3,), "numpy.ndarray", b"rubbish")})
    ),
}


@pytest.mark.parametrize("reason", GARBAGE)
def test_garbage_is_refused_by_name_and_changes_nothing(reason, caplog):
    algo, made = fmrl.FMRL(similarity=fmrl.Isotropic(0.2)), tasks(fmrl.Squared())

    def run(break_, clients):
        strategy = federated.FedFMRL(
            algo, **(EXACT | {"min_train_nodes": 2, "min_available_nodes": 2})
        )
        grid = Direct(convex_app(algo, made), CLIENTS, break_)
        grid.nodes = clients
        return strategy.start(grid, arrays(phi=np.zeros(3)), 2), strategy

    bad = run(lambda n, m, r: GARBAGE[reason](m, r) if n in (2, 5) else r, range(1, CLIENTS + 1))
    good = run(None, [1, 3, 4, 6, 7])
    assert np.array_equal(bad[1].state.phi, good[1].state.phi)
    assert np.array_equal(bad[1].state.guess, good[1].state.guess)
    told = bad[0].train_metrics_clientapp[2]
    assert (told["refused"], told["clients"]) == (2, 5)
    assert told[f"refused-{reason.strip()}"] == 2
    assert all(f"refused node {node}: {reason.strip()}" in caplog.text for node in (2, 5))
    assert np.isfinite(told["loss"]) and told["loss"] == good[0].train_metrics_clientapp[2]["loss"]


def test_a_round_without_enough_good_replies_changes_nothing_and_is_asked_for_again():
    algo, made, failures = ALGOS[0], tasks(fmrl.Squared()), []

    def dies(node, message, reply):
        if node == 3 and len(failures) < 4:
            failures.append(node)
            return GARBAGE["failed"](message, reply)
        return reply

    def run(attempts, break_):
        options = EXACT | {"min_replies": CLIENTS, "attempts": attempts}
        strategy = federated.FedFMRL(algo, **options)
        grid = Direct(convex_app(algo, made), CLIENTS, break_)
        return strategy.start(grid, arrays(phi=np.zeros(3)), 3), strategy

    expected = run(1, None)[1].state.phi
    assert np.array_equal(run(5, dies)[1].state.phi, expected)
    failures.clear()
    result, given_up = run(1, dies)
    assert given_up.done == 3 and np.array_equal(given_up.state.phi, np.zeros(3))
    assert result.train_metrics_clientapp[3]["clients"] == 0


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


@pytest.mark.parametrize("similarity", [fmrl.PerCoordinate(0.2), fmrl.Doubling(0.1, 1.1)])
def test_a_server_that_is_killed_twice_ends_where_one_that_is_not_does(similarity, tmp_path):
    algo = fmrl.FMRL(update=fmrl.FLIOnline(), similarity=similarity)
    made, count = tasks(fmrl.Squared(), count=20), 20
    options = {"fraction_evaluate": 0.0, "fraction_train": 0.4, "seed": 3}

    def run(folder, rounds, kill=None):
        def dies(node, message, reply):
            if kill is not None and message.content["config"]["server-round"] == kill:
                raise Killed
            return reply

        strategy = federated.FedFMRL(algo, folder=folder, **options)
        grid = Direct(convex_app(algo, made), count, dies)
        return strategy.start(grid, arrays(phi=np.zeros(3)), rounds), grid

    for kill in (3, 6):
        with pytest.raises(Killed):
            run(tmp_path / "killed", 9, kill)
    killed, grid = run(tmp_path / "killed", 9)
    whole, _ = run(tmp_path / "whole", 9)
    assert np.array_equal(killed.arrays["phi"].numpy(), whole.arrays["phi"].numpy())
    assert min(m.content["config"]["server-round"] for _, m in grid.sent) == 6
    assert len(grid.sent) == 4 * 8  # of 20 clients, 8 in each of the rounds that were left
    assert sorted(killed.train_metrics_clientapp) == [6, 7, 8, 9]
    again, grid = run(tmp_path / "killed", 9)  # nothing left to do
    assert not grid.sent and np.array_equal(
        again.arrays["phi"].numpy(), whole.arrays["phi"].numpy()
    )
    other = federated.FedFMRL(fmrl.FMRL(similarity=fmrl.Isotropic(0.3)), folder=tmp_path / "killed")
    with pytest.raises(fmrl.FMRLError, match="other rules"):
        other.begin(arrays(phi=np.zeros(3)))
    with pytest.raises(fmrl.FMRLError, match="other arrays"):
        federated.FedFMRL(algo, folder=tmp_path / "killed").begin(arrays(phi=np.zeros(4)))


def test_personalised_evaluation_adapts_and_tells_what_the_mean_hides():
    made = networks(count=20)
    strategy = federated.FedFMRL(similarity=fmrl.KnownStep(0.1), min_train_nodes=20)
    result = strategy.start(Direct(network_app(made), 20), ArrayRecord(net().state_dict()), 2)
    told = result.evaluate_metrics_clientapp[2]
    network = federated.networks.Network(net(), SGD(), FLIOnline(), squared_error)
    phi = {name: a.numpy() for name, a in result.arrays.items()}
    before, after = [], []
    for X, y in made:
        own = Arrays([(X, y)], batch=3, steps=4, seed=5)
        after.append(network.scores(network.play(phi, own, 0, np.array(0.1)).arrays, X, y)["loss"])
        before.append(network.scores(phi, X, y)["loss"])
    assert told["loss-mean"] == pytest.approx(np.mean(after))
    assert told["unadapted-loss-mean"] == pytest.approx(np.mean(before))
    assert told["loss-worst-decile"] == pytest.approx(np.mean(sorted(after)[-2:]))
    assert told["loss-spread"] == pytest.approx(np.std(after, ddof=1))
    assert told["loss-mean"] < told["unadapted-loss-mean"] and told["clients"] == 20


def test_arrays_of_whole_numbers_stay_and_bytes_are_counted():
    app = ClientApp()

    @app.train()
    def train(message, context):
        w = message.content["arrays"]["w"].numpy() + 1
        content = {"arrays": arrays(w=w, seen_batches=np.array(99))}
        return Message(
            RecordDict(content | {"m": MetricRecord({"num-examples": 2})}), reply_to=message
        )

    start = arrays(w=np.zeros((2, 2), np.float32), seen_batches=np.array(4))
    strategy = federated.FedFMRL(similarity=fmrl.KnownStep(1.0), fraction_evaluate=0.0)
    result = strategy.start(Direct(app, 3), start, 2)
    assert result.arrays["seen_batches"].numpy() == 4
    assert np.array_equal(result.arrays["w"].numpy(), np.full((2, 2), 2, np.float32))
    assert result.arrays["w"].numpy().dtype == np.float32
    told = result.train_metrics_clientapp[2]
    assert told["bytes-up"] > 3 * 16 and told["bytes-down"] > told["bytes-up"] / 2


def test_arrays_that_were_changed_between_rounds_are_refused():
    algo, made = ALGOS[0], tasks(fmrl.Squared())
    strategy, grid = federated.FedFMRL(algo, **EXACT), Direct(convex_app(algo, made), CLIENTS)
    arrays_ = strategy.start(grid, arrays(phi=np.zeros(3)), 1).arrays
    assert len(list(strategy.configure_train(2, arrays_, ConfigRecord(), grid))) == CLIENTS
    with pytest.raises(fmrl.FMRLError, match="not those that the last round left"):
        strategy.configure_train(2, arrays(phi=np.ones(3)), ConfigRecord(), grid)


def test_what_cannot_work_is_refused_in_words():
    with pytest.raises(fmrl.FMRLError, match="what step clients take"):
        federated.FedFMRL()
    with pytest.raises(fmrl.FMRLError, match="has its own"):
        federated.FedFMRL(ALGOS[0], similarity=fmrl.KnownStep(0.1))
    tree, known = fmrl.Tree(1.0, 1e-6, tasks=10), fmrl.Known(0.1)
    rows = fmrl.NoisyGradients(fmrl.OMD(), epsilon=1.0, delta=1e-6, clip=1.0)
    given = {"update": fmrl.FLIOnline(), "similarity": known, "lipschitz": 1.0}
    for algo in (fmrl.FMRL(similarity=known, meta=tree), fmrl.FMRL(within=rows, **given)):
        with pytest.raises(fmrl.FMRLError, match="counts every task once"):
            federated.FedFMRL(algo)
    with pytest.raises(fmrl.FMRLError, match="carries moments"):
        federated.networks.Network(net(), fmrl.deep.Adam(), FLIOnline())
    with pytest.raises(fmrl.FMRLError, match="optimum of a network"):
        federated.networks.Network(net(), SGD(), fmrl.FAL())
    network = federated.networks.Network(net(), SGD(), FLIOnline(), squared_error)
    with pytest.raises(fmrl.FMRLError, match="not those of Sequential"):
        network.at({"w": np.zeros(3)})
    own, phi = Arrays(networks()[:1], batch=3, steps=4), dict(net().state_dict())
    phi = {name: value.numpy() for name, value in phi.items()}
    with pytest.raises(fmrl.FMRLError, match="needs G"):
        network.play(phi, own, 0, np.array(0.1), absolute=False)
    with pytest.raises(fmrl.FMRLError, match="does not observe"):
        network.play(phi, own, 0, np.array(0.1), observes="products")


LISTS = {
    "another length": lambda r: numbers(r, curve=[1.0, 2.0]),
    "a number for a list": lambda r: numbers(r, curve=3.0),
    "a list for a number": lambda r: numbers(r, loss=[1.0, 2.0]),
}


@pytest.mark.parametrize("what", LISTS)
def test_metrics_that_do_not_fit_together_stop_nobody(what):
    algo, made = ALGOS[0], tasks(fmrl.Squared())

    def break_(node, message, reply):
        reply = numbers(reply, curve=[1.0])
        return LISTS[what](reply) if node == 2 else reply

    strategy = federated.FedFMRL(algo, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    grid = Direct(convex_app(algo, made), CLIENTS, break_)
    result = strategy.start(grid, arrays(phi=np.zeros(3)), 2)
    assert result.train_metrics_clientapp[2]["clients"] == CLIENTS
    assert result.evaluate_metrics_clientapp[2]["clients"] == CLIENTS


def test_scores_that_are_garbage_are_refused():
    algo, made = ALGOS[0], tasks(fmrl.Squared())
    bad = {
        1: lambda r: numbers(r, loss=float("nan")),
        2: lambda r: numbers(r, **{"num-examples": [1.0, 2.0]}),
        3: lambda r: numbers(r, **{"server-round": 7}),
        4: lambda r: Message(Error(0, "died"), reply_to=r.metadata and grid.sent[-1][1]),
    }

    def break_(node, message, reply):
        scored = message.metadata.message_type == "evaluate"
        return bad[node](reply) if scored and node in bad else reply

    strategy = federated.FedFMRL(algo, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    grid = Direct(convex_app(algo, made), CLIENTS, break_)
    told = strategy.start(grid, arrays(phi=np.zeros(3)), 1).evaluate_metrics_clientapp[1]
    assert (told["clients"], told["refused"]) == (3, 4) and np.isfinite(told["loss-mean"])
    for reason in ("not-finite", "no-weight", "stale-round", "failed"):
        assert told[f"refused-{reason}"] == 1
