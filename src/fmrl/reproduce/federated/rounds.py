"""Federated rounds of all methods and seeds as one stack of networks.

Every method sees the same clients and the same samples in the same order. Inner steps are
`fmrl.deep`'s, and what a server does with the replies is `fmrl.federated.server.advance`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from fmrl.core.algorithm import FMRL
from fmrl.core.domains import Euclidean
from fmrl.core.meta_level import State
from fmrl.core.metric import Metric
from fmrl.core.rules.meta import Interpolate, LastUpdate
from fmrl.core.rules.shape import Isotropic, KnownStep, PerCoordinate
from fmrl.datasets.shakespeare import ALPHABET
from fmrl.deep.engines.inner import InnerLoop, capture
from fmrl.deep.networks import Layout
from fmrl.deep.within import SGD
from fmrl.federated.server import Form, Server, advance
from fmrl.reproduce.federated.claims import (
    APART,
    FEDAVG,
    FIXED,
    ISOTROPIC,
    PER,
    REPTILE,
    START,
    TRAINED,
)
from fmrl.reproduce.federated.study import Clients, Config

WATCHES = {f"{FEDAVG} + {ISOTROPIC}": ISOTROPIC, f"{FEDAVG} + {PER}": PER}  # rules that only look
SIZES = 6  # of the stack, as clients come to their end
SCORED = 4096  # sequences that are scored at once


class NextCharacter(nn.Module):
    """Embedding, LSTM layers, and a dense layer on the last state."""

    def __init__(self, config: Config):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), config.embedding)
        self.lstm = nn.LSTM(config.embedding, config.hidden, config.layers, batch_first=True)
        self.dense = nn.Linear(config.hidden, len(ALPHABET))

    def forward(self, x):
        return self.dense(self.lstm(self.embed(x))[0][:, -1])


def network(config: Config, seed: int) -> nn.Module:
    """The network of a seed."""
    with torch.random.fork_rng([]):
        torch.random.default_generator.manual_seed(seed)
        return NextCharacter(config)


def rules(config: Config, size: int) -> dict[str, FMRL]:
    """Every method's meta-update and similarity rule. The learned ones begin at the fixed step; of
    the steps for every parameter the priors add up to that of the one step.
    """
    one, part = config.rate, size**-0.5
    learned = {ISOTROPIC: Isotropic(one), PER: PerCoordinate(one * part, part)}
    made = {
        FEDAVG: (LastUpdate(), KnownStep(one)),
        REPTILE: (Interpolate(1.0, 0.0, config.rounds), KnownStep(one)),
        **{name: (LastUpdate(), rule) for name, rule in learned.items()},
        **{name: (LastUpdate(), learned[rule]) for name, rule in WATCHES.items()},
    }
    return {n: FMRL(Euclidean(), meta=m, similarity=s) for n, (m, s) in made.items()}


class Stack:
    """All methods of all seeds, trained side by side."""

    def __init__(self, config: Config, clients: Clients, device: Any):
        self.config, self.clients = config, clients
        self.device = torch.device(device)
        self.seeds = [config.seed + r for r in range(config.seeds)]
        text = torch.as_tensor(clients.text.astype(np.int64), device=self.device)
        self.text, inputs = text, text.unfold(0, config.context, 1)
        modules = [network(config, seed).to(self.device) for seed in self.seeds]
        self.module, layout = modules[0], Layout.of(modules[0])
        form = Form.of({n: p.detach().cpu().numpy() for n, p in self.module.named_parameters()})
        self.first = torch.stack([layout.flat(m) for m in modules])  # [R, P]
        algos = rules(config, layout.size)
        self.servers = {name: Server(algo, form) for name, algo in algos.items()}
        self.states: dict[str, State] = {n: a.init(self.first.clone()) for n, a in algos.items()}
        self.done = 0
        rows = config.seeds * config.clients
        self.tasks = len(TRAINED) * rows
        self.loop = InnerLoop(
            self.module, SGD(1.0), inputs, tasks=self.tasks, steps=1, batch=config.batch,
            shaped=True, observe=1, precision="tf32",
        )  # fmt: skip
        # Clients with few samples are done early: the stack shrinks in a few steps of size.
        sizes = sorted({len(TRAINED) * -(-rows * part // SIZES) for part in range(1, SIZES + 1)})
        self.played = {size: self._captured(size) for size in sizes}
        self.splits = [clients.split(seed) for seed in self.seeds]

    @property
    def bytes(self) -> dict[str, int]:
        """What a round sends, to the clients and back, by method."""
        vector, made = 4 * self.first.shape[1], {}
        for name in TRAINED:
            sizes = {None: 0, "norms": 4, "squares": vector}
            extra = sizes[self.servers[name].observes]  # the step there, what was seen back
            made[name] = 2 * self.config.clients * (vector + extra)
        return made

    def round(self) -> None:
        config, number = self.config, self.done + 1
        chosen = [self._chosen(r, number) for r in range(config.seeds)]  # [R, K]
        rows, epochs = self._rows(chosen, number)  # [R, K, steps, B], [R, K]
        phi = torch.stack([self.states[name].phi for name in TRAINED])  # [M, R, P]
        steps = torch.stack([self._steps(name) for name in TRAINED])
        shape = (len(TRAINED), config.seeds, config.clients)
        theta, squares = self._play(
            phi[:, :, None].expand(*shape, -1), steps[:, :, None].expand(*shape, -1),
            rows.expand(len(TRAINED), *rows.shape), np.broadcast_to(epochs, shape),
        )  # fmt: skip
        weight = theta.new_tensor(config.batch * epochs.T)  # [K, R], samples
        for name, server in self.servers.items():
            m = TRAINED.index(FEDAVG if name in WATCHES else name)
            ends, seen = theta[m].transpose(0, 1), squares[m].transpose(0, 1)  # [K, R, P]
            seen = seen.sum(-1, keepdim=True) if server.observes == "norms" else seen
            seen = None if server.observes is None else seen
            state = advance(server.algo, self.states[name], ends, weight, seen)
            self.states[name] = state
        self.done = number

    def look(self, count: int, apart: bool) -> dict[str, Any]:
        """Accuracy of the first ``count`` test clients of every seed before and after adapting,
        {method: [R, n]}; ``apart``: also of starts and steps of different methods put together.
        """
        pairs = {name: (name, name) for name in TRAINED} | (APART if apart else {})
        roles = [split[1][:count] for split in self.splits]
        count = min(map(len, roles))
        roles = [role[:count] for role in roles]
        phi = torch.stack([self._phi(p) for p, _ in pairs.values()])  # [V, R, P]
        steps = torch.stack([self._steps(s) for _, s in pairs.values()])
        (rows, epochs), held = self._rows(roles, 0), self._held(roles)
        flat = list(np.ndindex(len(pairs), len(roles), count))
        before, after = np.zeros((2, len(pairs), len(roles), count))
        for start in range(0, len(flat), self.tasks):
            part = flat[start : start + self.tasks]
            v, r, k = (list(i) for i in zip(*part, strict=True))
            full = self.tasks - len(part)  # the stack has one size
            own, eta, index = phi[v, r], steps[v, r], rows[r, k]
            length = np.concatenate([epochs[r, k], np.ones(full, dtype=int)])
            own, eta, index = (
                torch.cat([a, a[:1].expand(full, *a.shape[1:])]) for a in (own, eta, index)
            )
            theta, _ = self._play(own, eta, index, length)
            asked = [held[a][b] for a, b in zip(r, k, strict=True)]
            for found, at in ((before, own), (after, theta)):
                found[v, r, k] = self._accuracy(at[: len(part)], asked)
        found = {"before": before, "after": after}
        looks = {k: dict(zip(pairs, v.tolist(), strict=True)) for k, v in found.items()}
        return {"round": self.done} | looks

    def _phi(self, name: str) -> torch.Tensor:
        return self.first if name == START else self.states[name].phi

    def _steps(self, name: str) -> torch.Tensor:
        """Steps [R, P] of a method, or the fixed one."""
        guess = self.states[FEDAVG if name == FIXED else name].guess
        steps = guess.steps if isinstance(guess, Metric) else guess[:, None]
        return steps.expand_as(self.first)

    def _captured(self, size: int) -> Any:
        """One inner step of the first ``size`` networks of the stack."""
        self.loop.tasks = size
        return capture(self.loop.play, self.device)

    def _play(
        self, phi: Any, steps: Any, rows: torch.Tensor, epochs: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where stacked clients end, and their squared gradients, in the shape of ``phi``.

        Args:
            phi: Where they start, [..., P].
            steps: Of every parameter, [..., P].
            rows: Their samples, [..., mini-batches, B].
            epochs: How many of these mini-batches each plays, [...].
        """
        loop, index = self.loop, rows.reshape(self.tasks, *rows.shape[-2:])
        epochs = np.ravel(epochs)
        order = np.argsort(-epochs, kind="stable")  # those that are done first stand last
        place = torch.as_tensor(order, device=self.device)
        loop.theta.copy_(phi.reshape(self.tasks, -1)[place])
        loop.eta.copy_(steps.reshape(self.tasks, -1)[place])
        loop.squares.zero_()
        index = index[place]
        theta, squares = torch.empty_like(loop.theta), torch.empty_like(loop.squares)
        at, left = 0, self.tasks
        while left:
            stop = int(epochs[order[left - 1]])  # when the next ones are done
            loop.tasks = min(size for size in self.played if size >= left)
            for s in range(at, stop):
                loop.index[0].copy_(index[:, s])
                loop.label[0].copy_(self.text[index[:, s] + self.config.context])
                self.played[loop.tasks]()
            stays = int((epochs > stop).sum())
            theta[place[stays:left]] = loop.theta[stays:left]
            squares[place[stays:left]] = loop.squares[stays:left]
            at, left = stop, stays
        return theta.view(phi.shape), squares.view(phi.shape)

    def _chosen(self, r: int, number: int) -> np.ndarray:
        rng = np.random.default_rng([self.seeds[r], 2, number])
        return rng.choice(self.splits[r][0], self.config.clients, replace=False)

    def _rows(self, roles: list[np.ndarray], number: int) -> tuple[torch.Tensor, np.ndarray]:
        """Samples of the clients of a round, [R, n, steps, batch], and how many mini-batches of
        them each client has: an epoch, ``config.steps`` at most. The others are not played.
        """
        config, need = self.config, self.config.steps * self.config.batch
        drawn = [
            [self.clients.draw(int(role), 0, need, [seed, 3, number]) for role in own]
            for seed, own in zip(self.seeds, roles, strict=True)
        ]
        epochs = np.array([[len(d) // config.batch for d in own] for own in drawn])
        filled = np.array([[np.resize(d, need) for d in own] for own in drawn])
        made = torch.as_tensor(filled, device=self.device)
        return made.unflatten(-1, (config.steps, config.batch)), epochs

    def _held(self, roles: list[np.ndarray]) -> list[list[np.ndarray]]:
        """Samples that clients are scored on."""
        return [
            [self.clients.draw(int(role), 1, self.config.held, [seed, 4]) for role in own]
            for seed, own in zip(self.seeds, roles, strict=True)
        ]

    @torch.no_grad()
    def _accuracy(self, theta: torch.Tensor, held: list[np.ndarray]) -> np.ndarray:
        """Share of held-out characters that are predicted, [n]; roles have their own numbers of
        them, so rows are repeated and not counted.
        """
        sizes = torch.tensor([len(h) for h in held], device=self.device)
        index = torch.as_tensor(np.array([np.resize(h, self.config.held) for h in held]))
        index, right = index.to(self.device), []
        at_once = max(1, SCORED // self.config.held)
        for start in range(0, len(theta), at_once):
            here = index[start : start + at_once]
            outputs = self.loop.apply(theta[start : start + at_once], self.loop.inputs[here])
            right.append(outputs.argmax(-1) == self.text[here + self.config.context])
        counted = torch.arange(self.config.held, device=self.device) < sizes[:, None]
        return ((torch.cat(right) & counted).sum(-1) / sizes).cpu().numpy()
