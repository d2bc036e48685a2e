"""One code for every kind of array: numpy, torch and array-api-strict agree to 1e-9, and what
comes in goes out.
"""

import array_api_strict
import numpy as np
import pytest
import torch
from array_api_compat import device
from instances import (
    LOSSES,
    METAS,
    SCALARS,
    SIMILARITIES,
    UPDATES,
    WITHIN,
    make_data,
    make_domain,
    make_loss,
    similarity,
    width,
)

import fmrl
from fmrl.core.arrays import namespace, to_numpy

ELSEWHERE = array_api_strict.Device("device1")
OTHERS = {
    "torch": lambda a: torch.from_numpy(np.array(a)),
    # On its second device, so that an array made without asking where is refused too.
    "strict": lambda a: array_api_strict.asarray(np.array(a), device=ELSEWHERE),
}
RAGGED = (3, 1, 2)


def numpy_of(a):
    """A NumPy copy; arrays on the second device first come to the first."""
    if type(a).__module__.startswith("array_api_strict"):
        a = a.to_device(array_api_strict.Device("CPU_DEVICE"))
    return to_numpy(a)


def streams(kind, convert, dtype=np.float64, seed=0, features=2):
    rng, loss = np.random.default_rng(seed), make_loss(kind)
    tasks = []
    for m in RAGGED:
        X, y = make_data(loss, m, features, rng)
        X = convert(X.astype(dtype))
        y = None if y is None else convert(y if y.dtype.kind == "i" else y.astype(dtype))
        tasks.append(fmrl.Task(X, y, loss=loss))
    return tasks


def alike(a, like):
    """Same namespace, dtype and device."""
    return type(a) is type(like) and a.dtype == like.dtype and device(a) == device(like)


def pairwise(others, domains):
    """Every pair of a loss, a domain and a namespace, without all triples of them."""
    for i, kind in enumerate(LOSSES):
        for j, domain_kind in enumerate(domains):
            yield kind, domain_kind, others[(i + j) % len(others)]


@pytest.mark.parametrize(
    ("kind", "domain_kind", "other"),
    [*pairwise([*OTHERS], ["ball", "shifted ball", "box", "floored simplex"])],
)
def test_every_namespace_gives_the_same(kind, domain_kind, other):
    domain = make_domain(domain_kind, width(kind, 2), np.random.default_rng(1))
    for within in WITHIN if "ball" in domain_kind else WITHIN[:1]:
        algo = fmrl.FMRL(domain, within, similarity=similarity(domain_kind))
        expected, found = (
            fmrl.run(algo, streams(kind, convert)) for convert in (np.asarray, OTHERS[other])
        )
        like = streams(kind, OTHERS[other])[0].X
        for name in (*SCALARS, "theta", "optimum", "bound"):
            a, b = getattr(found, name), getattr(expected, name)
            assert alike(a, like), name
            np.testing.assert_allclose(numpy_of(a), b, atol=1e-9, err_msg=name)
        for a, b in zip(found.losses, expected.losses, strict=True):
            np.testing.assert_allclose(numpy_of(a), b, atol=1e-9)
        assert all(alike(a, like) for a in (found.state.phi, found.tar, found.running_tar()))


@pytest.mark.parametrize("update", UPDATES, ids=repr)
@pytest.mark.parametrize("meta", [*METAS, fmrl.Fixed([0.1] * 6)], ids=repr)
@pytest.mark.parametrize("other", OTHERS)
def test_every_ingredient_in_every_namespace(update, meta, other):
    for rule in SIMILARITIES if other == "torch" else SIMILARITIES[-1:]:
        algo = fmrl.FMRL(fmrl.Ball(1.0), update=update, meta=meta, similarity=rule)
        kinds = np.asarray, OTHERS[other]
        expected, found = (fmrl.run(algo, streams("one-vs-all", convert)) for convert in kinds)
        np.testing.assert_allclose(numpy_of(found.regret), expected.regret, atol=1e-9)
        np.testing.assert_allclose(numpy_of(found.state.phi), expected.state.phi, atol=1e-9)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("update", [fmrl.FAL(), fmrl.FLIBatch()], ids=repr)
def test_orders_in_every_namespace(other, update):
    orders, algo = np.array([[0, 1, 2], [2, 0, 1]]), fmrl.FMRL(update=update)
    expected, found = (
        fmrl.run(algo, streams("softmax", c), orders=orders) for c in (np.asarray, OTHERS[other])
    )
    np.testing.assert_allclose(numpy_of(found.regret), expected.regret, atol=1e-9)
    assert alike(found.state.phi, streams("softmax", OTHERS[other])[0].X)


@pytest.mark.parametrize(
    ("kind", "domain_kind", "other"),
    [*pairwise(["numpy", *OTHERS], ["ball", "box", "floored simplex"])],
)
def test_float32_stays_float32(kind, domain_kind, other):
    convert = OTHERS.get(other, np.asarray)
    domain = make_domain(domain_kind, width(kind, 2), np.random.default_rng(1))
    exact = fmrl.run(fmrl.FMRL(domain), streams(kind, np.asarray))
    tasks = streams(kind, convert, np.float32)
    for update in (fmrl.FLIOnline(), fmrl.FAL()):
        found = fmrl.run(fmrl.FMRL(domain, update=update), tasks)
        for name in ("regret", "gap", "guess", "eta", "lipschitz", "theta", "optimum"):
            assert alike(getattr(found, name), tasks[0].X), name
        assert found.state.phi.dtype == namespace(tasks[0].X).float32
        assert found.state.guess.dtype == tasks[0].X.dtype
    np.testing.assert_allclose(numpy_of(found.regret), exact.regret, atol=3e-3)


@pytest.mark.parametrize("within", WITHIN, ids=repr)
@pytest.mark.parametrize("other", OTHERS)
def test_resume_in_every_namespace(within, other, tmp_path):
    # The file goes through NumPy, which cannot read the second device.
    convert = array_api_strict.asarray if other == "strict" else OTHERS[other]
    algo, tasks = fmrl.FMRL(within=within), streams("logistic", convert)
    whole, first = fmrl.run(algo, tasks), fmrl.run(algo, tasks[:2])
    fmrl.save_state(first.state, tmp_path / "state")
    rest = fmrl.run(algo, tasks[2:], state=fmrl.load_state(tmp_path / "state", like=tasks[0].X))
    np.testing.assert_allclose(numpy_of(rest.state.phi), numpy_of(whole.state.phi), atol=1e-12)
    assert alike(rest.state.phi, tasks[0].X)


def test_kinds_are_never_mixed():
    tasks = streams("logistic", np.asarray)
    for phi in (torch.zeros(2, dtype=torch.float64), array_api_strict.zeros(2)):
        with pytest.raises(fmrl.FMRLError, match="different kinds"):
            fmrl.run(fmrl.FMRL(), tasks, phi)
        with pytest.raises(fmrl.FMRLError, match="different kinds"):
            fmrl.run(fmrl.FMRL(), tasks, phi, orders=[[0, 1]])
        with pytest.raises(fmrl.FMRLError, match="different kinds"):
            fmrl.FMRL().step(fmrl.FMRL().init(phi), tasks[0])


def test_float32_tasks_with_a_float64_phi():
    """Precisions may be mixed: the result has phi's, as FMRL says, in torch as in numpy."""
    for convert in (np.asarray, OTHERS["torch"]):
        tasks, phi = streams("logistic", convert, np.float32), convert(np.zeros(2))
        for within in WITHIN:
            assert fmrl.run(fmrl.FMRL(within=within), tasks, phi).state.phi.dtype == phi.dtype


@pytest.mark.parametrize("kind", ["one-vs-all", "squared"])
def test_lists_and_numpy_labels_beside_tensors(kind):
    loss = make_loss(kind)
    X, y = torch.eye(3, dtype=torch.float64), [0, 2, 1]
    for labels in (y, np.array(y), torch.tensor(y)):
        task = fmrl.Task(X, labels, loss=loss)
        assert isinstance(task.open().target, torch.Tensor)


def test_gradients_are_not_recorded_and_tensors_not_changed():
    X = torch.eye(3, dtype=torch.float64)
    before = X.clone()
    fmrl.run(fmrl.FMRL(), [fmrl.Task(X, [0, 1, 1], loss=fmrl.Logistic())] * 3)
    assert torch.equal(X, before)


def test_a_number_is_no_array_whatever_was_asked_before():
    """It lives in any namespace and has none of its own."""
    for _ in range(2):
        with pytest.raises(fmrl.FMRLError, match=r"an array is needed, not a builtins\.float"):
            namespace(1.0)
        assert namespace(np.ones(2), 1.0) is namespace(1.0, np.ones(2)) is namespace(np.ones(2))
        assert namespace(torch.ones(2), 1.0) is namespace(torch.ones(2))
    with pytest.raises(fmrl.FMRLError, match="different kinds were mixed"):
        namespace(np.ones(2), torch.ones(2), 1.0)
