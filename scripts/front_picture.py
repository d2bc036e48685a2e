"""The picture on the site's first page: python scripts/front_picture.py writes docs/img/front.png.

Eighty shops with ten visits each; a new one with three. Three models of the new shop: fitted to its
three visits, fitted to everybody's, and `MetaRegressor`'s. Nothing is drawn by hand."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression

import fmrl

OUT = Path(__file__).parent.parent / "docs" / "img" / "front.png"


def main() -> None:
    """Draw it."""
    rng = np.random.default_rng(4)
    shop = np.repeat(np.arange(81), 10)
    own = rng.normal([-2.0, 10.0], [0.7, 2.5], size=(81, 2))
    price = rng.uniform(0, 4, len(shop))
    sales = own[shop, 0] * price + own[shop, 1] + rng.normal(size=len(shop))
    old, new = shop < 80, shop == 80
    X, line = price[:, None], np.linspace(0, 4, 50)[:, None]
    few, rest = np.flatnonzero(new)[:3], np.flatnonzero(new)[3:]
    learner = fmrl.MetaRegressor(common="linear").fit(X[old], sales[old], task=shop[old])
    models = {
        "this shop alone": LinearRegression().fit(X[few], sales[few]),
        "one model for all": LinearRegression().fit(X[old], sales[old]),
        "learned across shops, adapted": learner.adapt(X[few], sales[few]),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for t in range(0, 80, 2):
        rows = shop == t
        fit = LinearRegression().fit(X[rows], sales[rows])
        left.plot(line, fit.predict(line), color="C0", alpha=0.25, lw=1)
        left.plot(price[rows], sales[rows], ".", color="C0", alpha=0.25, ms=3)
    left.plot(line, learner.predict(line), color="k", lw=2.5, label="the learned start")
    left.set(title="many shops, a few visits each", xlabel="price", ylabel="sales")
    left.legend()
    for (name, model), ink in zip(models.items(), ("C1", "C7", "C2"), strict=True):
        error = float(np.mean((model.predict(X[rest]) - sales[rest]) ** 2))
        right.plot(line, model.predict(line), color=ink, label=f"{name}: error {error:.1f}")
        print(f"{name}: squared error {error:.2f} on the shop's other visits")
    right.plot(price[few], sales[few], "ko", label="three visits of a new shop")
    right.plot(price[rest], sales[rest], "o", mfc="none", color="k", label="its visits to come")
    right.set(title="a new shop", xlabel="price", ylim=(-5, 18))
    right.legend(fontsize="small")
    figure.savefig(OUT, dpi=100)


if __name__ == "__main__":
    main()
