"""The page's arithmetic, run in Node: Algorithm 2 against the core to 1e-9, the network against
fmrl.deep, strokes against their definition.
"""

import base64
import itertools
import json
from importlib import resources

import numpy as np
import pytest

import fmrl
from fmrl.playground import read_weights

from .conftest import ROOT, SCENES, script
from .node import call

PLANE = ("random.js", "algorithm.js", "stream.js")
NET = ("random.js", "network.js")
WORKER = (*NET, "worker.js")
PADS = ("strokes.js", "examples.js")


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: s["name"])
def test_recorded_scenes(scene):
    """The page says what was recorded, and what was recorded is what the core says today."""
    each = "METHODS.map(m => [m, playAll(m, given.points, given.settings)])"
    found = call(PLANE, f"Object.fromEntries({each})", scene)
    again = script("playground_scenes").played(scene)
    for method, expected in scene["expected"].items():
        rows = found[method]
        for key in ("regret", "bound", "guess", "eta", "divergence"):
            np.testing.assert_allclose([r[key] for r in rows], expected[key], rtol=0, atol=1e-9)
            np.testing.assert_allclose(again[method][key], expected[key], rtol=0, atol=1e-9)
        for key in ("tar", "after", "next"):
            np.testing.assert_allclose(rows[-1][key], expected[key], rtol=0, atol=1e-9)
    assert {"algorithm", "strawman", "single"} == set(found)


def test_no_stream_crosses_its_bound():
    """At every task and setting of the sliders: regret ≤ bound, of each task and on average."""
    grid = {"spread": [0, 0.05, 0.2, 0.5], "drift": [0, 0.2], "clusters": [1, 4]}
    grid |= {"rounds": [2, 16, 48], "epsilon": [0.02, 0.5], "gamma": [1, 2]}
    worst, tasks = call(PLANE, "nearestToBound(given)", grid | {"seed": [5], "radius": [1]})
    assert worst < 0 and tasks == 192 * 40 * 3


def test_a_stream_is_what_its_sliders_say():
    """The spread, the drift and the number of groups of the points are those asked for."""
    points = "Array.from({length: 400}, (_, n) => streamPoint(n, given, 1))"
    usual = {"spread": 0.05, "drift": 0, "clusters": 1, "seed": 1}
    alike = np.array(call(PLANE, points, usual))
    assert alike.std(0) == pytest.approx([0.05, 0.05], rel=0.15)
    turning = np.array(call(PLANE, points, usual | {"drift": 0.01}))
    angle = np.unwrap(np.arctan2(*turning.T[::-1]))
    assert angle[-1] - angle[0] == pytest.approx(0.01 * 399, abs=0.4)
    three = np.array(call(PLANE, points, usual | {"clusters": 3, "spread": 0.01}))
    third = (np.arctan2(*three.T[::-1]) - 0.7) / (2 * np.pi / 3)
    assert np.abs(third - third.round()).max() < 0.05
    assert min(np.bincount(third.round().astype(int) % 3)) > 90


def unpacked(weights):
    """Weights as plain lists, for Node."""
    arrays = {"theta": weights.theta.tolist()}
    arrays |= {"second": None if weights.second is None else weights.second.tolist()}
    return weights.data() | arrays


@pytest.mark.parametrize(("ways", "shots"), [(3, 1), (5, 2)])
def test_adaptation_is_that_of_the_engine(training, ways, shots):
    """From the learned start with its moments, and from a random one without: the probabilities
    of fmrl.deep, of the network with as many outputs as there are classes."""
    from fmrl.deep import Adam

    from . import engine

    made, steps = call(PADS, "drawings(given)", {"ways": ways, "shots": shots}), 10
    images, labels, query = made.values()
    weights = read_weights()
    asked = {"weights": unpacked(weights), "ways": ways, "seed": 7, "steps": steps}
    found = call(WORKER, "adapted(given)", made | asked)
    assert [m["step"] for m in found["told"]] == list(range(steps + 1))
    last = found["told"][-1]
    start = training.fewer(engine.trainer(training), ways)
    expected = engine.answer(start, images, labels, query, steps)
    np.testing.assert_allclose(last["learned"]["shares"], expected, atol=1e-3)
    begin = engine.network(found["start"], ways, weights.filters)
    rule = Adam(weights.step, carry=False)
    expected = engine.answer(begin, images, labels, query, steps, rule)
    np.testing.assert_allclose(last["random"]["shares"], expected, atol=1e-3)
    for start in ("learned", "random"):
        losses = last[start]["losses"]
        assert len(losses) == steps + 1 and losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["SGD", "no carry"])
def test_a_checkpoint_of_the_users(tmp_path, name):
    """Another size, other ways, another inner rule: the page does what the trainer does."""
    torch = pytest.importorskip("torch")
    from fmrl.deep import SGD, Adam, Arrays, MetaTrainer, omniglot_net, save

    from . import engine

    within = SGD(0.05) if name == "SGD" else Adam(2e-3, beta2=0.99, carry=False)
    made = call(PADS, "drawings(given)", {"ways": 4, "shots": 1})
    images, labels, query = made.values()
    trained = MetaTrainer(omniglot_net(4, filters=6, seed=1), within, meta_batch=2)
    tasks = Arrays([(engine.pictures(images), torch.tensor(labels))], batch=4, steps=2)
    trained.fit(tasks, 3)
    weights = read_weights(save(trained, tmp_path / "mine.safetensors"))
    assert (weights.filters, weights.ways, weights.taken) == (6, 4, 0)
    assert weights.adaptive == (name != "SGD") and weights.step == pytest.approx(within.step)
    asked = {"weights": unpacked(weights), "ways": 4, "seed": 7, "steps": 5}
    last = call(WORKER, "adapted(given)", made | asked)["told"][-1]
    expected = engine.answer(trained, images, labels, query, 5)
    np.testing.assert_allclose(last["learned"]["shares"], expected, atol=1e-4)
    theta = np.frombuffer(base64.b64decode(weights.data()["theta"]), "<f4")
    np.testing.assert_array_equal(theta, trained.phi[0].numpy())


def test_other_checkpoints_are_refused(tmp_path):
    pytest.importorskip("torch")
    from torch import nn

    from fmrl.deep import (
        SGD,
        MetaTrainer,
        mini_imagenet_net,
        omniglot_net,
        save,
        summed_cross_entropy,
    )

    wrong = {
        "pooled": (MetaTrainer(mini_imagenet_net(5, filters=4, side=28, channels=1)), "layers"),
        "two ways": (MetaTrainer(omniglot_net(2, filters=4)), "layers"),
        "large": (MetaTrainer(omniglot_net(5, filters=4, side=56)), "layers"),
        "linear": (MetaTrainer(nn.Linear(3, 3)), "layers"),
        "summed": (MetaTrainer(omniglot_net(3, filters=4), loss=summed_cross_entropy), "mean"),
        "learned step": (
            MetaTrainer(omniglot_net(3, filters=4), SGD(lipschitz=1.0), similarity=fmrl.Known(0.5)),
            "fixed step",
        ),
    }
    for name, (trainer, said) in wrong.items():
        path = save(trainer, tmp_path / f"{name}.safetensors")
        with pytest.raises(fmrl.FMRLError, match=said):
            read_weights(path)
    for content in (b"", b"not tensors", (tmp_path / "summed.safetensors").read_bytes()[:900]):
        (tmp_path / "damaged").write_bytes(content)
        with pytest.raises(fmrl.FMRLError, match="cannot be read"):
            read_weights(tmp_path / "damaged")


FORGED = {
    "nested": "[" * 100_000,
    "rule": {"within": "Adam(beta2=" + "-" * 100_000 + "1)"},
    "decay": {"within": "Adam(step=0.1, beta2='<b>')"},
    "step": {"steps": [float("nan")]},
    "taken": {"taken": -5},
    "endless": {"taken": float("inf")},
    "short": {"phi": np.zeros((1, 5), np.float32)},
    "NaN": {"phi": np.full((1, 16445), np.nan, np.float32)},
    "moments": {"second": None},
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_checkpoints_are_refused(what, tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    from safetensors import safe_open

    own = resources.files("fmrl.playground").joinpath("omniglot.safetensors")
    with safe_open(str(own), framework="numpy") as file:
        about = json.loads(file.metadata()["fmrl"])
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changed = FORGED[what]
    if not isinstance(changed, str):
        held |= {name: v for name, v in changed.items() if name in held}
        held = {name: v for name, v in held.items() if v is not None}
        changed = json.dumps(about | {n: v for n, v in changed.items() if n in about})
    numpy.save_file(held, tmp_path / "forged", metadata={"fmrl": changed})
    with pytest.raises(fmrl.FMRLError, match="forged"):
        read_weights(tmp_path / "forged")


def test_strokes_become_the_picture_they_are_defined_as():
    """Ink by the distance from a pixel's middle to the nearest segment of the framed strokes; the
    picture does not depend on where and how large the drawing is."""
    strokes = call(PADS, "drawnBy(11, 0)")
    found = np.array(call(PADS, "[...pictureOf(given)]", strokes)).reshape(28, 28)
    points = np.concatenate([np.array(s) for s in strokes])
    low, high = points.min(0), points.max(0)
    scale = (20 - 1.2) / (high - low).max()
    y, x = np.mgrid[:28, :28] + 0.5
    far = np.full((28, 28), np.inf)
    for stroke in strokes:
        line = 14 + (np.array(stroke) - (low + high) / 2) * scale
        for a, b in itertools.pairwise(line):
            d = b - a
            t = (((x - a[0]) * d[0] + (y - a[1]) * d[1]) / (d @ d)).clip(0, 1)
            far = np.minimum(far, np.hypot(x - a[0] - t * d[0], y - a[1] - t * d[1]))
    np.testing.assert_allclose(found, (0.6 + 0.5 - far).clip(0, 1), atol=1e-12)
    moved = [[[0.1 + 0.4 * px, 0.5 * 0.8 * py] for px, py in s] for s in strokes]
    np.testing.assert_allclose(
        np.array(call(PADS, "[...pictureOf(given)]", moved)), found.ravel(), atol=1e-9
    )
    dot = np.array(call(PADS, "[...pictureOf([[[0.2, 0.9]]])]")).reshape(28, 28)
    assert dot.sum() > 1 and dot[:12].sum() == 0 and dot[13, 13] > 0.3
    assert sum(call(PADS, "[...pictureOf([])]")) == 0


def test_random_starts_are_glorot_and_follow_from_their_seed():
    made = "[1, 1, 2].map(s => [...randomStart(layoutOf(24, 5, 28), s)])"
    one, same, other = map(np.array, call(NET, made))
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.9
    first, second = one[: 24 * 9], one[24 * 11 : 24 * 11 + 24 * 24 * 9]
    for values, fans in ((first, 9 * 25), (second, 9 * 48)):
        most = np.sqrt(6 / fans)
        assert np.abs(values).max() <= most and values.std() == pytest.approx(
            most / 3**0.5, rel=0.1
        )
    assert (one[24 * 9 : 24 * 10] == 1).all() and (one[24 * 10 : 24 * 11] == 0).all()


def test_the_page_of_the_site_says_what_the_records_say(training):
    """Accuracies and costs; every setting of the page is measured, and learning pays in each."""
    record = json.loads((training.HOME / "omniglot.json").read_text(encoding="utf-8"))
    assert record["command"].startswith("train_playground.py")
    page = (ROOT / "docs" / "playground.md").read_text(encoding="utf-8")
    settings = []
    for row in record["accuracy"]:
        settings.append((row["ways"], row["shots"]))
        cells = [f"{100 * row[start]:.1f} %" for start in ("learned", "random")]
        assert f"| {row['ways']} | {row['shots']} | {' | '.join(cells)} |" in page
        assert row["learned_interval"][0] > row["random_interval"][1]
    assert settings == [(ways, shots) for ways in (3, 4, 5) for shots in (1, 2, 3)]
    file = ROOT / "results" / "playground" / "browser.json"
    browser = json.loads(file.read_text(encoding="utf-8"))
    assert f"{browser['frames a second']:.0f} frames a second" in page
    page = " ".join(page.split())
    assert f"median time between frames is {browser['frame, median ms']:.1f} ms" in page
    assert f"95th percentile {browser['frame, 95th percentile ms']:.1f} ms" in page
    assert f"take {browser['seconds to adapt']:.1f} s" in page
    assert f"{browser['page bytes'] / 1e6:.2f} MB" in page
