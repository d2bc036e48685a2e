"""What a domain is: an action set Θ together with its Bregman regulariser B_R.

R is 1-strongly convex in the domain's norm: R = ½‖·‖₂² (norm l2) for Ball, Box and Euclidean, R =
⟨θ, log θ⟩ (norm l1) for Simplex. Every method reduces over the last axis and broadcasts over the
others.

A new domain has three groups of methods:

* geometry: ``divergence``, ``mirror`` (∇R), ``metric`` (diagonal of ∇²R), ``dual`` (the dual norm);
* the set: ``argmin`` (the lazy mirror-descent primitive), ``project``, ``lowest`` (linear
  minimisation), ``contains``, ``middle``, ``reach``, ``diameter``;
* its interior, for the interior-point solver: constraints h(θ) ≥ 0 by ``slack``, ``pull`` = Σ
  wⱼ∇hⱼ, ``push``, ``stiffness``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from fmrl.core.arrays import Array, dot, namespace, scaled_norm
from fmrl.core.values import Value


class Domain(Value, ABC):
    """An action set with its regulariser; here R = ½‖·‖₂² and no constraints.

    A domain of your own subclasses this as a frozen dataclass.
    """

    norm: str = "l2"
    # Whether a mirror step from where another ended is one step along the sum of their gradients.
    # Eager mirror descent then adds up gradients, and no mass that underflows is lost.
    additive: bool = False

    def divergence(self, theta: Array, phi: Array) -> Array:
        """B_R(theta‖phi), shape [...]; here ½‖theta − phi‖²."""
        step = theta - phi
        return dot(step, step) / 2

    def mirror(self, theta: Array) -> Array:
        """∇R(theta), shape [..., d]."""
        return theta

    def metric(self, theta: Array) -> Array:
        """Diagonal of ∇²R(theta), shape [..., d]."""
        return namespace(theta).ones_like(theta)

    def dual(self, gradient: Array) -> Array:
        """Dual norm of a gradient, shape [...]."""
        return scaled_norm(gradient)

    def argmin(self, phi: Array, z: Array) -> Array:
        """argmin over Θ of B_R(·‖phi) + ⟨z, ·⟩, shape [..., d]."""
        return self.project(phi - z)

    @abstractmethod
    def project(self, theta: Array) -> Array:
        """The point of Θ nearest to theta in B_R."""

    @abstractmethod
    def lowest(self, z: Array) -> Array:
        """argmin over Θ of ⟨z, ·⟩; of several, the one of least norm, which on the simplex is also
        that of least divergence from the uniform distribution.
        """

    @abstractmethod
    def middle(self, like: Array) -> Array:
        """A point well inside Θ, in the shape of ``like``: where an untrained phi starts."""

    @abstractmethod
    def reach(self, phi: Array) -> Array:
        """max over Θ of sqrt(B_R(·‖phi)): how far an optimum can be from phi."""

    @abstractmethod
    def diameter(self, dim: int) -> float:
        """max over Θ×Θ of sqrt(B_R): the paper's D in ``dim`` dimensions."""

    @abstractmethod
    def contains(self, theta: Array, slack: float = 1e-6) -> Array:
        """Whether theta lies in Θ up to ``slack`` (relative to the size of Θ), shape [...]."""

    def slack(self, theta: Array) -> Array:
        """Constraint values h(theta), shape [..., k]: Θ is where all are ≥ 0."""
        return theta[..., :0]

    def pull(self, theta: Array, weight: Array) -> Array:
        """Σⱼ weightⱼ·∇hⱼ(theta), shape [..., d]."""
        return namespace(theta).zeros_like(theta)

    def push(self, step: Array) -> Array:
        """∇hⱼᵀstep of the linear constraints, shape [..., k]: the adjoint of ``pull``."""
        return step[..., :0]

    def stiffness(self, theta: Array, multiplier: Array, ratio: Array) -> Array:
        """Diagonal of Σⱼ −multiplierⱼ∇²hⱼ + ratioⱼ∇hⱼ∇hⱼᵀ; a curved constraint leaves the last term
        to ``border``.
        """
        return namespace(theta).zeros_like(theta)

    def face(self, phi: Array) -> Domain:
        """The part of this domain from which B_R(·‖phi) is finite."""
        return self

    def retract(self, theta: Array, step: Array) -> Array:
        """Where a step from theta leads."""
        return theta + step

    def tangent(self, theta: Array, gradient: Array) -> Array:
        """The part of a gradient that no equality constraint absorbs."""
        return gradient

    def border(self, theta: Array) -> tuple[str, Array] | None:
        """("curved", −∇h) of a single curved constraint, ("equality", a) for ⟨a, θ⟩ = const, or
        None.
        """
        return None
