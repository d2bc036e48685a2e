"""Scores of small groups: R² is scikit-learn's on all rows scored on, its intervals are by task."""

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import r2_score

from fmrl.report import held_out
from fmrl.runs import Options, Run, train
from fmrl.runs.evaluate import Heldout
from fmrl.runs.source import open_source


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run on 150 shops with 2 to 6 rows."""
    rng = np.random.default_rng(0)
    shop = np.repeat(np.arange(150), rng.integers(2, 7, 150))
    price, promo = rng.normal(size=len(shop)), rng.random(len(shop)) < 0.3
    y = rng.normal(10, 1, 150)[shop] + 2 * price + 3 * promo + rng.normal(size=len(shop))
    shops = pl.DataFrame({"shop": shop, "price": price, "promo": promo.astype(int), "y": y})
    home = tmp_path_factory.mktemp("small")
    shops.write_csv(home / "small.csv")
    train(Options(str(home / "small.csv"), "shop", "y", holdout=0.4), home / "run")
    return Run.load(home / "run")


def test_r2_is_that_of_all_rows_scored_on(small):
    source = open_source(small.settings.options, small.encoder, small.settings.loss)
    drawn, heldout = Heldout(100, small.settings.options.seed), small.record["heldout"]
    for window in source.windows():
        drawn.add(window.held)
    ours = heldout["methods"][0]
    for i, k in enumerate(heldout["shots"]):
        said, truth, tasks = [], [], 0
        for task in drawn.tasks(small.prior.environment):
            n = max(1, len(task.X) // 3)
            if len(task.X) - n >= k:
                y, tasks = task.target[:, 0], tasks + 1
                model = small.estimator.adapt(task.X[:k], y[:k]) if k else small.estimator
                said, truth = [*said, *model.predict(task.X[-n:])], [*truth, *y[-n:]]
        assert ours["mean"][i] == pytest.approx(r2_score(truth, said))
        assert ours["tasks"][i] == tasks
        assert ours["low"][i] < ours["mean"][i] < ours["high"][i] <= 1.05


def test_weighted_means_are_those_of_rows_and_vary_as_a_ratio_does():
    rng = np.random.default_rng(1)
    rows = rng.integers(1, 9, 400)
    ours, base = rng.normal(0.5, 0.2, (400, 1)), rng.normal(0.3, 0.2, (400, 1))
    found = held_out({"FMRL": ours, "pooled": base}, [1], "r2", weight=rows)
    assert found["methods"][0]["mean"][0] == pytest.approx(np.average(ours[:, 0], weights=rows))
    gain, again = (ours - base)[:, 0], []
    for _ in range(2000):
        some = rng.integers(400, size=400)
        again.append(np.average(gain[some], weights=rows[some]))
    for d in found["differences"]:
        assert d["mean"] == pytest.approx(np.average(gain, weights=rows))
        assert [d["low"], d["high"]] == pytest.approx(np.quantile(again, [0.025, 0.975]), abs=0.004)
