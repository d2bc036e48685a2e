"""Tasks: what a class is called, what every task must hold, and the order of mini-batches."""
# ruff: noqa: E402

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fmrl.deep import Arrays, Pool
from fmrl.deep.tasks import mini_batches
from fmrl.errors import FMRLError

NINE = np.arange(9.0)[:, None]


def drawn(pool, classes):
    """The inputs that 1-way tasks over ``classes`` meet."""
    return set(
        pool.inputs[pool.tasks(1, 3, batch=3, steps=1, classes=classes).draw(0, 20)[0]]
        .flatten()
        .tolist()
    )


@pytest.mark.parametrize("names", [[1, 2, 3], [7, 40, 2], list("cab"), [0.5, 1.5, 2.5]])
@pytest.mark.parametrize("kind", [list, np.array])
def test_classes_are_what_y_called_them(names, kind):
    pool = Pool.of(NINE, np.repeat(names, 3))
    for i, name in enumerate(names):
        assert drawn(pool, kind([name])) == {3.0 * i, 3.0 * i + 1, 3.0 * i + 2}
    with pytest.raises(FMRLError, match="no class"):
        pool.tasks(1, 1, batch=1, steps=1, classes=kind(["9" if isinstance(names[0], str) else 9]))


def test_a_column_of_strings_and_tensors():
    assert drawn(
        Pool.of(torch.as_tensor(NINE), np.array(list("aaabbbccc"), dtype=object)), ["b"]
    ) == {3.0, 4.0, 5.0}
    assert drawn(Pool.of(NINE, torch.tensor([4] * 3 + [2] * 6)), torch.tensor([4])) == {
        0.0,
        1.0,
        2.0,
    }


def test_sequences_stay_as_they_are():
    X, y = np.zeros((4, 12, 1)), [0, 0, 1, 1]
    assert Pool.of(X, y, images=False).inputs.shape == (4, 12, 1) and Pool.of(
        X, y
    ).inputs.shape == (4, 1, 12, 1)


def test_the_smallest_class():
    pool = Pool.of(NINE, list("aaaabbccc"))
    assert pool.smallest() == 2 and pool.smallest(["a", "c"]) == 3
    assert pool.tasks(2, 3, batch=2, steps=1, classes=["a", "c"]).episodes.shots == 3


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Pool.of(NINE, [0, 1]), "9 samples and y the shape"),
        (lambda: Pool.of(NINE, np.zeros((9, 1))), "9 samples and y the shape"),
        (lambda: Pool.of(np.zeros((0, 2)), []), "0 samples"),
        (lambda: Pool.of(NINE, [np.nan] * 9), "cannot be told apart"),
        (lambda: Pool.of(["a"] * 9, [0] * 9), "not an array of numbers"),
        (lambda: Pool.of_images([1, 2]), "not an fmrl.datasets.ImageSet"),
        (
            lambda: Pool.of(NINE, list("aaaaaabbb")).tasks(2, 3, batch=2, steps=1, queries=1),
            "class 'b' has 3 samples.*need 4",
        ),
        (
            lambda: Pool.of(NINE, list("aaaabbbbb")).tasks(1, 5, batch=2, steps=1, classes=["a"]),
            "class 'a' has 4 samples.*need 5",
        ),
        (
            lambda: Pool.of(NINE, list("aaaaaabbb")).tasks(2, 3, batch=2, steps=1, classes=[]),
            "classes is empty",
        ),
        (
            lambda: Pool.of(NINE, list("aaaaaabbb")).tasks(2, 3, batch=2, steps=1, classes=[99]),
            "no class 99",
        ),
        (lambda: Pool.of(NINE, list("aaaaaabbb")).tasks(2, 3, batch=0, steps=1), "batch=0"),
        (lambda: Pool.of(NINE, list("aaaaaabbb")).tasks(2, 3, batch=1, steps=0), "steps=0"),
        (lambda: Pool.of(NINE, list("aaaaaabbb")).tasks(2, 3, batch=1.5, steps=1), "batch=1.5"),
        (lambda: Pool.of(NINE, list("aaaaaabbb")).tasks(0, 3, batch=1, steps=1), "ways=0"),
        (lambda: Arrays([], batch=1, steps=1), "no tasks"),
        (lambda: Arrays([(NINE, [0] * 9)], batch=0, steps=1), "batch=0"),
        (lambda: Arrays([(NINE, [0] * 9)], batch=1, steps=0), "steps=0"),
        (
            lambda: Arrays([(NINE[:3], [0] * 4), (NINE[:4], [0] * 3)], batch=1, steps=1),
            "task 0: there are 3 inputs but 4 targets",
        ),
        (
            lambda: Arrays([(NINE, [0] * 9), (NINE[:0], [])], batch=1, steps=1),
            "task 1: there are no samples",
        ),
        (
            lambda: Arrays([(NINE, [0] * 9), (np.eye(2), [0, 1])], batch=1, steps=1),
            r"task 1: a sample of X has shape \(2,\)",
        ),
        (
            lambda: Arrays([(NINE, [0] * 9), (NINE, np.zeros((9, 2)))], batch=1, steps=1),
            r"task 1: a sample of y has shape \(2,\)",
        ),
        (
            lambda: Arrays([(NINE, [0] * 9, np.eye(2), [0, 1])], batch=1, steps=1),
            r"task 0: a sample of X has shape \(2,\)",
        ),
        (
            lambda: Arrays([(NINE, ["a"] * 9)], batch=1, steps=1),
            "task 0: y is not an array of numbers",
        ),
        (
            lambda: Arrays([(NINE, [0] * 9), (NINE, [0] * 9, NINE, [0] * 9)], batch=1, steps=1),
            "every task is",
        ),
        (lambda: Arrays([NINE, NINE], batch=1, steps=1), "every task is"),
        (lambda: Arrays([(NINE, 3)], batch=1, steps=1), "one entry for each sample"),
    ],
)
def test_what_is_refused(call, says):
    with pytest.raises(FMRLError, match=says):
        call()


def test_arrays_keep_targets_and_queries():
    tasks = Arrays(
        [
            (NINE[:n], np.arange(2.0 * n).reshape(n, 2), NINE[n:], np.zeros((9 - n, 2)))
            for n in (4, 6, 4)
        ],
        batch=2,
        steps=3,
    )
    index, targets = tasks.draw(0, 3)
    assert index.shape == (3, 3, 2) and targets.shape == (3, 3, 2, 2)
    assert torch.equal(targets[0, ..., 0], 2 * tasks.inputs[index[0], 0])
    _, _, groups = tasks.queried(0, 3)
    assert [g.at.tolist() for g in groups] == [[0, 2], [1]]
    assert tasks.inputs[groups[1].query, 0].tolist() == [[6.0, 7.0, 8.0]] and groups[
        1
    ].support.shape == (1, 6)
    assert "3 tasks of 4 to 6 samples (1,), at least 3 queries each" in repr(tasks)
    labels = Arrays(
        [(NINE, np.array([True] * 9)), (NINE, np.zeros(9, np.int16))], batch=1, steps=1
    ).targets
    assert labels.dtype == torch.int64 and labels.sum() == 9


def test_every_pass_has_an_order_of_its_own():
    passes = mini_batches(0, (2, 20), 60, 0, "cpu").view(2, 3, 20)
    assert passes.sort(-1).values.eq(torch.arange(20)).all()
    flat = passes.flatten(0, 1).tolist()
    assert len({tuple(p) for p in flat}) == 6  # no two passes of the two tasks agree
    assert torch.equal(
        mini_batches(1, (1, 20), 60, 0, "cpu")[0], passes[1].flatten()
    )  # a function of the task's number alone


@pytest.mark.parametrize(
    ("shape", "images", "held", "told"),
    [((4, 5), None, (1, 4, 5), True), ((4, 4), None, (1, 4, 4), False), ((4,), None, (4,), False),
     ((4, 5), True, (1, 4, 5), False), ((4, 5), False, (4, 5), False)],
)  # fmt: skip
def test_arrays_that_may_be_sequences_are_not_taken_as_images_in_silence(
    shape, images, held, told, recwarn
):
    pool = Pool.of(np.zeros((6, *shape)), np.repeat([0, 1], 3), images=images)
    assert pool.inputs.shape[1:] == held
    assert told == any("images=False if they are sequences" in str(w.message) for w in recwarn)
