"""Several centres of points: k-means."""

from __future__ import annotations

from fmrl.core.arrays import Array, full, namespace


def kmeans(points: Array, k: int, steps: int = 50) -> tuple[Array, Array, float]:
    """Lloyd's algorithm from seeds that lie far apart: centres [k, d], labels [n], and the mean
    squared distance to the nearest centre.

    >>> import numpy as np
    >>> centres, labels, value = kmeans(np.array([[0.0], [0.2], [5.0], [5.2]]), 2)
    >>> centres.ravel(), labels, round(value, 3)
    (array([0.1, 5.1]), array([0, 0, 1, 1]), 0.01)
    """
    xp = namespace(points)
    chosen = [xp.mean(points, axis=0)]
    near = xp.sum((points - chosen[0]) ** 2, axis=-1)
    for j in range(k):  # the farthest from those chosen; the mean itself is not kept
        far = points[int(xp.argmax(near)), :]
        chosen.append(far)
        distance = xp.sum((points - far) ** 2, axis=-1)
        near = distance if j == 0 else xp.minimum(near, distance)
    centres, label = xp.stack(chosen[1:]), None
    for _ in range(steps):
        distance = xp.sum((points[:, None, :] - centres) ** 2, axis=-1)
        new = xp.argmin(distance, axis=-1)
        if label is not None and bool(xp.all(new == label)):
            break
        label = new
        member = xp.astype(label[:, None] == xp.arange(k), points.dtype)  # [n, k]
        size = xp.sum(member, axis=0)[:, None]
        mean = xp.matmul(xp.matrix_transpose(member), points) / xp.maximum(
            size, full((), 1.0, size)
        )
        centres = xp.where(size > 0, mean, centres)
    order = xp.argsort(centres[:, 0])
    centres = xp.take(centres, order, axis=0)
    distance = xp.sum((points[:, None, :] - centres) ** 2, axis=-1)
    return centres, xp.argmin(distance, axis=-1), float(xp.mean(xp.min(distance, axis=-1)))
