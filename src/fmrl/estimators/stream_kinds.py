"""Rounds of a stream with more than two classes, and of a regression."""

from __future__ import annotations

import math
from math import exp, log1p
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg.blas import daxpy, dger

from fmrl.errors import FMRLError
from fmrl.estimators.stream import OpenTask
from fmrl.estimators.stream_setting import Setting
from fmrl.tables.targets import ROUNDING_RANGE

if TYPE_CHECKING:
    from fmrl.estimators.base import Meta


class ManyClasses(OpenTask):
    """One-vs-all: an output a class."""

    __slots__ = ("_all", "_sums")

    def _start(self, phi):
        super()._start(phi)
        k = self._setting.outputs
        # phi, total and the row looked at last, so that one product gives all of them.
        self._all = np.concatenate([phi, self._total, self._row]).reshape(2 * k + 1, -1)
        self._row, self._sums = self._all[-1], self._all[k:-1]
        self._total = self._sums.reshape(-1)

    def _products(self):
        found, eta, shrink = self._all.dot(self._row).tolist(), self._eta, self._shrink
        k = self._setting.outputs
        under_phi, under_total = found[:k], found[k:-1]
        z = [shrink * (a - eta * b) for a, b in zip(under_phi, under_total, strict=True)]
        return z, under_phi, under_total, found[-1]

    def _answer(self, z):
        return self._labels[z.index(max(z))]

    def _suffer(self, found, y):
        """As for two classes, in one loop over the outputs, because this is where the time goes."""
        try:
            place = self._place[y]
        except (KeyError, TypeError):
            raise self._unknown(y) from None
        slopes, loss, base, played, cross, change, square = [], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for c, (z, under_phi, under_total) in enumerate(zip(*found[:-1], strict=True)):
            if z >= 0:
                e = exp(-z)
                g = 1 / (1 + e)
                loss += z + log1p(e)
            else:
                e = exp(z)
                g = e / (1 + e)
                loss += log1p(e)
            base += under_phi + log1p(exp(-under_phi)) if under_phi >= 0 else log1p(exp(under_phi))
            if c == place:
                g -= 1
                loss -= z
                base -= under_phi
            slopes.append(g)
            played += g * z
            cross += g * under_phi
            change += g * under_total
            square += g * g
        # total += slopes ⊗ row, in place (the last 1).
        dger(1.0, self._row, slopes, 1, 1, self._sums.T, 1, 1, 1)
        if self._squares is not None:
            self._squares += np.outer(slopes, self._row).ravel() ** 2
        return place, loss, base, played, cross, 2 * change + square * found[-1]


class Numbers(OpenTask):
    """A regression: the squared loss."""

    __slots__ = ()

    def _answer(self, z):
        return self._setting.coordinates.prediction(z)

    def _suffer(self, found, y):
        setting = self._setting
        try:
            given = float(y) if not isinstance(y, str) else math.nan
            target = setting.coordinates.target(given)
        except (TypeError, ValueError, OverflowError):
            raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number") from None
        z, under_phi, under_total, square = found
        g, off = z - target, under_phi - target
        if not (
            g * g * square < setting.far2 and -ROUNDING_RANGE < off < ROUNDING_RANGE
        ):  # NaN is not
            if not math.isfinite(target):
                raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number")
            what = f"a prediction or y is more than {ROUNDING_RANGE:g} of fit's units away"
            raise FMRLError(what, round=self.rounds, fix="scale x and y as in fit")
        daxpy(self._row, self._total, None, g)
        if self._squares is not None:
            self._squares += (g * self._row) ** 2
        change = g * (2 * under_total + g * square)
        return given, g * g / 2, off * off / 2, g * z, g * under_phi, change


def open_task(owner: Meta, rounds: int | None, name: Any) -> OpenTask:
    """A task of an estimator that has seen some."""
    setting = vars(owner).get("_setting")
    if setting is None or setting.coordinates is not owner.coordinates_:
        setting = owner._setting = Setting(owner)
        setting.kind = {0: Numbers, 2: OpenTask}.get(len(setting.labels), ManyClasses)
    return setting.kind(owner, setting, rounds, name)
