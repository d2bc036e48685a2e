"""What is done with the replies of a round, and where it is kept. None of it needs Flower."""

import numpy as np
import pytest

import fmrl
from fmrl.core.meta_level import together
from fmrl.core.rules.meta import End
from fmrl.federated import Form, Reply, Server, spread
from fmrl.federated.saving import Rounds

RNG = np.random.default_rng(0)
ARRAYS = {"w": RNG.normal(size=(2, 3)), "count": np.array(3), "b": RNG.normal(size=3)}


def server(similarity=fmrl.PerCoordinate(0.1), meta=fmrl.FollowLeader()):
    return Server(fmrl.FMRL(fmrl.Euclidean(), meta=meta, similarity=similarity), Form.of(ARRAYS))


def reply(client, **changed):
    rng = np.random.default_rng(client)
    arrays = {"w": rng.normal(size=(2, 3)), "count": np.array(9), "b": rng.normal(size=3)}
    return Reply(client, arrays, 1.0 + client, rng.uniform(size=9), 1)._replace(**changed)


def test_the_vector_and_the_arrays_are_each_other():
    form = Form.of(ARRAYS)
    back = form.split(form.flat(ARRAYS))
    assert set(back) == {"w", "b"} and all(np.array_equal(back[n], ARRAYS[n]) for n in back)
    mixed = Form.of({"a": np.ones(2, np.float32), "b": np.ones(1)})
    assert mixed.dtype == np.float64 and mixed.split(np.ones(3))["a"].dtype == np.float32
    with pytest.raises(fmrl.FMRLError, match="no arrays"):
        Form.of({"count": np.array(3)})


def test_a_round_is_one_meta_batch_in_the_order_of_clients():
    own, replies = server(), [reply(k) for k in range(5)]
    state = own.init(ARRAYS)
    found, good, refused = own.round(state, 1, replies[::-1])
    assert [r.client for r in good] == [0, 1, 2, 3, 4] and refused == []
    theta = np.stack([own.form.flat(r.arrays) for r in replies])
    ends = End(theta, theta, np.arange(1.0, 6.0), np.stack([r.seen for r in replies]))
    expected = together(own.algo, state, ends)
    assert np.array_equal(found.phi, expected.phi)
    assert np.array_equal(found.guess.steps, expected.guess.steps)


BAD = {
    "stale-round": {"round": 0},
    "wrong-keys": {"arrays": {"w": np.zeros((2, 3))}},
    "wrong-shapes": {"arrays": ARRAYS | {"b": np.zeros(4)}},
    "not-finite": {"arrays": ARRAYS | {"b": np.array([0.0, np.inf, 0.0])}},
    "no-weight": {"weight": None},
    "no-gradients": {"seen": np.zeros(8)},
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_reply_leaves_the_state_to_the_last_bit(reason):
    own = server()
    state = own.init(ARRAYS)
    found, good, refused = own.round(state, 1, [reply(3, **BAD[reason])])
    assert found is state and good == []
    assert [(r.client, why) for r, why in refused] == [(3, reason)]
    with_it = own.round(state, 1, [reply(1), reply(3, **BAD[reason]), reply(2)])[0]
    assert np.array_equal(with_it.phi, own.round(state, 1, [reply(1), reply(2)])[0].phi)


def test_numbers_that_are_not_numbers_are_refused():
    own, texts = server(), ARRAYS | {"b": np.array(["a", "b", "c"])}
    nan = {"loss": [1.0, np.nan]}
    assert own.why_not(own.init(ARRAYS), 1, reply(0, arrays=texts)) == "not-finite"
    assert own.why_not(own.init(ARRAYS), 1, reply(0, metrics=nan)) == "not-finite"
    for weight in (np.nan, -1.0, np.inf):
        assert own.why_not(own.init(ARRAYS), 1, reply(0, weight=weight)) == "no-weight"
    _, good, refused = own.round(own.init(ARRAYS), 1, [reply(0, node=7), reply(0, node=4)])
    assert [r.node for r in good] == [4] and [(r.node, w) for r, w in refused] == [(7, "twice")]


def test_a_known_step_asks_for_nothing():
    own = server(fmrl.KnownStep(0.5), fmrl.LastUpdate())
    state, good, _ = own.round(own.init(ARRAYS), 1, [reply(0, seen=None), reply(1, seen=None)])
    assert own.observes is None and len(good) == 2
    mean = (1 * reply(0).arrays["w"] + 2 * reply(1).arrays["w"]) / 3
    assert np.allclose(own.form.split(state.phi)["w"], mean)


@pytest.mark.parametrize("similarity", [fmrl.PerCoordinate(0.1), fmrl.Isotropic(0.1)])
def test_a_saved_round_comes_back_bit_for_bit(similarity, tmp_path):
    own = server(similarity)
    seen = 9 if similarity.observes == "squares" else 1
    kept = Rounds(tmp_path / "new", own, {"seed": 1})
    assert kept.load() is None
    state = own.init(ARRAYS)
    for number in (1, 2, 3):
        given = [reply(k, seen=np.ones(seen) * number, round=number) for k in range(3)]
        state = own.round(state, number, given)[0]
        kept.save(number, state)
    assert sorted(p.name for p in kept.folder.glob("round*")) == [
        "round-000002.npz", "round-000003.npz",
    ]  # fmt: skip
    number, found = kept.load()
    assert number == 3 and np.array_equal(found.phi, state.phi) and found.tasks == state.tasks
    with pytest.raises(fmrl.FMRLError, match="other seed"):
        Rounds(kept.folder, own, {"seed": 2}).load()
    with pytest.raises(fmrl.FMRLError, match="other rules"):
        Rounds(kept.folder, server(fmrl.PerCoordinate(0.2)), {"seed": 1}).load()
    for text in ("[]", "null", "3", "[" * 100_000):
        (kept.folder / "run.json").write_text(text)
        with pytest.raises(fmrl.FMRLError, match=r"has no run\.json"):
            kept.load()


def test_the_worst_decile_is_that_of_the_worst():
    values = np.arange(20) / 20
    assert spread(values)["worst-decile"] == pytest.approx(0.025)
    assert spread(values, less=True)["worst-decile"] == pytest.approx(0.925)
    assert spread([0.5]) == {"mean": 0.5, "spread": 0.0, "worst-decile": 0.5}


def test_what_needs_flower_says_so():
    pytest.importorskip("torch")
    try:
        import flwr  # noqa: F401
    except ImportError:
        with pytest.raises(fmrl.FMRLError, match="flwr"):
            _ = __import__("fmrl.federated").federated.FedFMRL
    else:
        from fmrl.federated import FedFMRL

        assert FedFMRL.__name__ == "FedFMRL"


@pytest.mark.parametrize("huge", ["arrays", "weight", "seen"])
def test_numbers_too_large_to_be_used_are_refused(huge):
    """Finite themselves, they would leave a phi or a step that is not."""
    narrow = {name: a.astype(np.float32) if a.ndim else a for name, a in ARRAYS.items()}
    algo = fmrl.FMRL(fmrl.Euclidean(), meta=fmrl.FollowLeader(), similarity=fmrl.PerCoordinate(0.1))
    own = Server(algo, Form.of(narrow))
    state, big = own.init(narrow), {"weight": 1e39, "seen": np.full(9, 1e39)}
    big["arrays"] = ARRAYS | {"b": np.full(3, 1e30)}
    bad = reply(3, **{huge: big[huge]})
    found, _, refused = own.round(state, 1, [reply(1), bad, reply(2)])
    reason = "no-gradients" if huge == "seen" else "not-finite"
    assert [(r.client, why) for r, why in refused] == [(3, reason)]
    assert np.array_equal(found.phi, own.round(state, 1, [reply(1), reply(2)])[0].phi)
    assert found.phi.dtype == np.float32
