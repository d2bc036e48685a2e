"""Rounds of a stream with more than two classes, and of a regression."""

from __future__ import annotations

import math
from math import exp, log1p
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg.blas import daxpy, dger

from fmrl.errors import FMRLError
from fmrl.estimators.stream import FAR, OpenTask

if TYPE_CHECKING:
    from fmrl.estimators.base import Meta


class ManyClasses(OpenTask):
    """One-vs-all: an output a class."""

    __slots__ = ()

    def _products(self):
        return self._all.dot(self._row).tolist()

    def _margins(self, found):
        k, eta, shrink = self._outputs, self._eta, self._shrink
        return [shrink * (found[c] - eta * found[k + c]) for c in range(k)]

    def _answer(self, found):
        z = self._margins(found)
        return self._labels[z.index(max(z))]

    def _move(self, found, y):
        """As for two classes, in one loop over the outputs, because this is where the time goes."""
        place = self._place_of(y)
        k, eta, shrink = self._outputs, self._eta, self._shrink
        slopes, loss, base, played, cross, change, square = [], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for c in range(k):
            under_phi, under_total = found[c], found[k + c]
            z = shrink * (under_phi - eta * under_total)
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
        self.loss_of_phi += base
        self.loss += loss
        self._kept.append((self._raw, place))
        dger(1.0, self._row, slopes, a=self._total.T, overwrite_a=1)  # total += slopes ⊗ row
        if self._squares is not None:
            self._squares += np.outer(slopes, self._row) ** 2
        self._follow(played, cross, 2 * change + square * found[-1])
        return loss


class Numbers(OpenTask):
    """A regression: the squared loss."""

    __slots__ = ()

    def _answer(self, found):
        return self._coordinates.prediction(self._margins(found)[0])

    def _move(self, found, y):
        try:
            target = self._coordinates.target(float(y))
        except (TypeError, ValueError):
            raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number") from None
        under_phi, under_total, square = found
        z = self._shrink * (under_phi - self._eta * under_total)
        g, off = z - target, under_phi - target
        # A NaN is between no two numbers.
        near = -FAR < g < FAR and -FAR < off < FAR
        if not (near and -FAR < under_phi < FAR and -FAR < under_total < FAR):
            if not math.isfinite(target):
                raise FMRLError(f"y is {y!r}", round=self.rounds, fix="give a finite number")
            what = f"a prediction or y is more than {FAR:g} of fit's units away"
            raise FMRLError(what, round=self.rounds, fix="scale x and y as in fit")
        self.loss_of_phi += off * off / 2
        self.loss += g * g / 2
        self._kept.append((self._raw, float(y)))
        daxpy(self._row, self._sum, self._row.size, g)
        if self._squares is not None:
            self._squares += (g * self._row) ** 2
        self._follow(g * z, g * under_phi, g * (2 * under_total + g * square))
        return g * g / 2


def open_task(owner: Meta, rounds: int | None, name: Any) -> OpenTask:
    """A task of an estimator that has seen some."""
    if getattr(owner, "classes_", None) is None:
        return Numbers(owner, rounds, name)
    return (ManyClasses if owner._loss().outputs > 1 else OpenTask)(owner, rounds, name)
