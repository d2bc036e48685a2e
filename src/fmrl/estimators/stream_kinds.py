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
        found, eta, shrink = self._all.dot(self._row).tolist(), self._eta, self._shrink
        pairs = zip(found, found[self._outputs : -1], strict=False)
        self._z = [shrink * (under_phi - eta * under_total) for under_phi, under_total in pairs]
        return found

    def _margins(self, found):
        return self._z

    def _answer(self, found):
        return self._labels[self._z.index(max(self._z))]

    def _move(self, found, y):
        """As for two classes, in one loop over the outputs, because this is where the time goes."""
        try:
            place = self._place[y]
        except (KeyError, TypeError):
            raise self._unknown(y) from None
        slopes, loss, base, played, cross, change, square = [], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        each = zip(found, found[self._outputs : -1], self._z, strict=False)
        for c, (under_phi, under_total, z) in enumerate(each):
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
        self._kept.append(self._raw)
        self._targets.append(place)
        # total += slopes ⊗ row, in place (the last 1).
        dger(1.0, self._row, slopes, 1, 1, self._total.T, 1, 1, 1)
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
        except (TypeError, ValueError, OverflowError):
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
        self._kept.append(self._raw)
        self._targets.append(float(y))
        daxpy(self._row, self._sum, self._width, g)
        if self._squares is not None:
            self._squares += (g * self._row) ** 2
        self._follow(g * z, g * under_phi, g * (2 * under_total + g * square))
        return g * g / 2


def open_task(owner: Meta, rounds: int | None, name: Any) -> OpenTask:
    """A task of an estimator that has seen some."""
    classes = getattr(owner, "classes_", None)
    if classes is None:
        return Numbers(owner, rounds, name)
    return (ManyClasses if len(classes) > 2 else OpenTask)(owner, rounds, name)
