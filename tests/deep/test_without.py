"""What `evaluate` says of doing without meta-learning, against scikit-learn task by task."""
# ruff: noqa: E402

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import NearestCentroid
from torch import nn

from fmrl.deep import (
    SGD,
    Adam,
    Arrays,
    Evaluation,
    Interpolate,
    Isotropic,
    MetaTrainer,
    Pool,
    evaluate,
    load,
    save,
    squared_error,
)  # fmt: skip
from fmrl.deep import without as doing_without
from fmrl.deep.evaluation import Variety
from fmrl.deep.without import CONSTANT, LOGISTIC, MEANS, RIDGE, START, Products, drawn_anew

torch.set_num_threads(1)


def table(classes=9, seed=0):
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(classes), 12)
    return rng.normal(size=(classes, 6))[kind] + rng.normal(size=(len(kind), 6)), kind


def network(outputs=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def classes(**options):
    return Pool.of(*table()).tasks(3, 4, batch=6, steps=2, queries=3, **options)


def rows(tasks, count):
    """Samples, their labels, queries and theirs, task by task, as a user would have them."""
    for group in tasks.queried(0, count)[2]:
        for i in range(len(group.at)):
            X, Q = (tasks.inputs[r[i]].flatten(1).numpy() for r in (group.support, group.query))
            yield X, group.support_targets[i].numpy(), Q, group.targets[i].numpy()


def test_models_of_the_inputs_are_scikit_learns():
    tasks, count = classes(), 20
    group = tasks.queried(0, count)[2][0]
    products = Products.of(tasks.inputs, group.support, group.query)
    logits = doing_without.logistic(products, group.support_targets, 3)
    near = doing_without.nearest_mean(products, group.support_targets, 3)
    numbers = group.support_targets[..., None].double()
    answers = doing_without.ridge(products, numbers)[..., 0]
    for i, (X, y, Q, _) in enumerate(rows(tasks, count)):
        scale = (100 / ((X - X.mean(0)) ** 2).sum(1).mean()) ** 0.5
        A, B = scale * (X - X.mean(0)), scale * (Q - X.mean(0))
        model = LogisticRegression(tol=1e-10, max_iter=5000).fit(A, y)
        np.testing.assert_allclose(logits[i].softmax(1), model.predict_proba(B), atol=1e-4)
        centroid = NearestCentroid().fit(X, y)
        assert (near[i].argmax(1).numpy() == centroid.predict(Q)).all()
        np.testing.assert_allclose(answers[i], Ridge(alpha=1.0).fit(A, y).predict(B), atol=1e-9)


@pytest.mark.parametrize("change", [lambda X: 1000 * X + 7, lambda X: X[:, ::-1].copy()])
def test_units_origin_and_order_of_the_inputs_do_not_matter(change):
    X, y = table()
    found = []
    for inputs in (X, change(X)):
        tasks = Pool.of(inputs, y).tasks(3, 4, batch=6, steps=2, queries=3)
        group = tasks.queried(0, 8)[2][0]
        products = Products.of(tasks.inputs, group.support, group.query)
        found.append(doing_without.logistic(products, group.support_targets, 3))
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-6)


def test_bytes_many_tasks_at_a_time_and_a_class_without_samples(monkeypatch):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (40, 5, 5), dtype=np.uint8)
    made = [(pictures[:4], [0, 2, 0, 2], pictures[4:9], [0, 2, 1, 0, 2])] * 3
    tasks = Arrays([*made, (*made[0][:2], pictures[9:14], [0, 2, 2, 0, 0])], batch=4, steps=1)
    groups = tasks.queried(0, 7)[2]
    assert sum(len(g.at) for g in groups) == 7
    many = doing_without.scores(tasks.inputs, groups[0], "accuracy", None, 3)
    assert set(many) == {LOGISTIC, MEANS} and len(set(many[MEANS].tolist())) > 1
    assert all(torch.isfinite(v).all() and v.max() <= 0.8 for v in many.values())
    monkeypatch.setattr(doing_without, "NUMBERS", 1)
    few = doing_without.scores(tasks.inputs, groups[0], "accuracy", None, 3)
    assert all(torch.equal(many[name], few[name]) for name in many)


@pytest.mark.parametrize("rule", [None, Isotropic(0.3)])
def test_untrained_is_the_trainer_before_its_training(rule):
    nets = [network(seed=0), network(seed=1)]
    within = Adam(5e-2) if rule is None else SGD()
    options = {"meta": Interpolate(1.0, 0.0, 5), "similarity": rule}
    trainer = MetaTrainer(nets, within, **options)
    judge = {"protocol": "inductive", "count": 6, "what": "loss"}
    before = evaluate(trainer, classes(seed=1), 4, **judge)
    assert START not in before[0].without
    after = evaluate(trainer.fit(classes(), 5), classes(seed=1), 4, **judge)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(b.without[START], a.tasks) and not torch.equal(a.tasks, b.tasks)
        assert set(b.without) == {START, LOGISTIC}  # distances have no log-loss
    one = evaluate(trainer, classes(seed=1), 4, runs=[1], **judge)[0]
    assert torch.allclose(one.without[START], after[1].without[START])
    assert evaluate(trainer, classes(seed=1), 4, compare=False, **judge)[0].without == {}


def test_both_protocols_in_one_call_are_two_calls():
    trainer = MetaTrainer(network(), SGD(0.3)).fit(classes(), 3)
    both = evaluate(trainer, classes(seed=1), 4, protocol="both", count=9)
    for found in both:
        alone = evaluate(trainer, classes(seed=1), 4, protocol=found.protocol, count=9)
        assert found == alone and set(found.without) == {START, LOGISTIC, MEANS}
        assert all(torch.equal(found.without[n], alone.without[n]) for n in found.without)
    assert both.sentence == f"{both.transductive.sentence}\n{both.inductive.sentence}"
    two = MetaTrainer(network(), SGD(0.3), runs=2)
    assert [b.inductive.protocol for b in evaluate(two, classes(), 1, protocol="both", count=2)] \
        == ["inductive"] * 2  # fmt: skip


def test_a_module_is_compared_with_itself_drawn_anew():
    net = network()
    found = evaluate(net, classes(), 2, protocol="inductive", count=4, within=SGD(0.1))
    fresh = evaluate(drawn_anew(net), classes(), 2, protocol="inductive", count=4, within=SGD(0.1))
    assert torch.equal(found.without[START], fresh.tasks)
    net[0].weight.requires_grad_(False)
    other = drawn_anew(net)
    assert torch.equal(other[0].weight, net[0].weight) and (other[2].weight != net[2].weight).any()
    net.extra = nn.Parameter(torch.ones(2))
    assert drawn_anew(net) is None


def test_numbers_are_compared_with_ridge_and_words_with_nothing():
    rng = np.random.default_rng(0)
    made = [(X := rng.normal(size=(9, 6)), X @ rng.normal(size=6)) for _ in range(5)]
    tasks = Arrays([(X[:6], y[:6], X[6:], y[6:]) for X, y in made], batch=3, steps=1)
    net = network(1)
    found = evaluate(net, tasks, 2, protocol="inductive", within=SGD(0.1), count=5,
                     loss=squared_error)  # fmt: skip
    expected = [np.mean((y[:6].mean() - y[6:]) ** 2) for _, y in made]
    assert set(found.without) == {START, RIDGE, CONSTANT}
    np.testing.assert_allclose(found.without[CONSTANT], expected)
    words = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    tokens = [rng.integers(0, n, s) for n, s in ((5, (6, 2)), (2, 6), (5, (4, 2)), (2, 4))]
    judged = evaluate(words, Arrays([tuple(tokens)], batch=3, steps=1), 2, protocol="inductive",
                      count=1)  # fmt: skip
    assert set(judged.without) == {START}


def told(gain, what="accuracy", variety=None):
    rng = np.random.default_rng(0)
    base = torch.as_tensor(rng.uniform(0.4, 0.6, 50))
    noise = torch.as_tensor(rng.normal(size=50) / 100)
    beside = {LOGISTIC: base, MEANS: base - 0.3 if what == "accuracy" else base + 0.3}
    return Evaluation(base + gain + noise - noise.mean(), "inductive", 5, what, beside, variety)


def test_the_sentence_takes_sides_only_where_tasks_decide():
    good, bad, even = told(0.1), told(-0.1), told(0.0)
    assert (good.helped, bad.helped, even.helped) == (True, False, None)
    assert "Meta-learning helped: better than logistic regression by 0.100 [" in good.sentence
    assert "did not help here: logistic regression is better by 0.100 [0.09" in bad.sentence
    assert (
        "Over 50 tasks it is neither clearly better nor clearly worse than logistic"
        in even.sentence
    )
    assert (told(-0.1, "loss").helped, told(0.1, "loss").helped) == (True, False)
    first, second = good.sentence.index(LOGISTIC), good.sentence.index(MEANS)
    assert first < second and np.isnan(Evaluation(good.tasks, "inductive", 5).gain).all()


def test_few_training_classes_are_named_also_after_loading(tmp_path):
    trainer = MetaTrainer(network(), SGD(0.3)).fit(classes(classes=range(7)), 2)
    path = save(trainer, tmp_path / "some.safetensors")
    other = load(MetaTrainer(network(), SGD(0.3)), path)
    for learner in (trainer, other):
        found = evaluate(learner, classes(seed=1), 2, protocol="inductive", count=5)
        assert found.sentence.endswith("7 training classes are few.")
    many = Variety(90, "classes", 20)
    assert (
        many.remark == "" and Variety(59, "classes", 20).remark and not Variety(59, "tasks").remark
    )
    assert Variety.of([classes(), Arrays([table()], batch=2, steps=1)]) == Variety(1, "tasks")
    assert Variety.of([object()]) is None
