"""Federated rounds of all methods and seeds as one stack of networks.

Every method sees the same clients and the same samples in the same order. Inner steps are
`fmrl.deep`'s, and what a server does with the replies is `fmrl.federated.server.advance`.
"""

from __future__ import annotations

import warnings
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
from fmrl.deep.engines.stacked import Stacked
from fmrl.deep.networks import Layout, _seeded
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
SCORED = 4096  # sequences that are scored at once


class NextCharacter(nn.Module):
    """Embedding, LSTM layers, and a dense layer on the last state."""

    def __init__(self, config: Config):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), config.embedding)
        self.lstm = nn.LSTM(config.embedding, config.hidden, config.layers, batch_first=True)
        self.dense = nn.Linear(config.hidden, len(ALPHABET))

    def forward(self, x):
        return self.dense(self.states(self.embed(x))[:, -1])

    def states(self, x):
        """Of the last layer, [B, context, hidden]."""
        return self.lstm(x)[0]


class WrittenOut(NextCharacter):
    """The same network with the same parameters, its LSTM written out step by step: for a torch
    that cannot stack an nn.LSTM and would go through the networks one by one.
    """

    def states(self, x):
        """What `nn.LSTM` computes."""
        for layer in range(self.lstm.num_layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            into, back, *biases = (getattr(self.lstm, f"{name}_l{layer}") for name in names)
            inputs, made = x @ into.T + sum(biases), []
            h = c = torch.zeros_like(inputs[:, 0, : self.lstm.hidden_size])
            for at in range(x.shape[1]):
                gates = inputs[:, at] + h @ back.T
                i, f, g, o = gates.chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                made.append(h)
            x = torch.stack(made, 1)
        return x


def network(config: Config, seed: int, inputs: torch.Tensor) -> nn.Module:
    """The network of a seed, in the form that can be stacked."""
    for form in (NextCharacter, WrittenOut):
        with _seeded(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that tasks would take turns
            module = form(config).to(inputs.device)
            if not Stacked(module, sample=inputs).looped:
                break
    return module


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
        modules = [network(config, seed, inputs) for seed in self.seeds]
        self.module, layout = modules[0], Layout.of(modules[0])
        form = Form.of({n: p.detach().cpu().numpy() for n, p in self.module.named_parameters()})
        self.first = torch.stack([layout.flat(m) for m in modules])  # [R, P]
        algos = rules(config, layout.size)
        self.servers = {name: Server(algo, form) for name, algo in algos.items()}
        self.states: dict[str, State] = {n: a.init(self.first.clone()) for n, a in algos.items()}
        self.done = 0
        self.tasks = len(TRAINED) * config.seeds * config.clients
        self.loop = InnerLoop(
            self.module, SGD(1.0), inputs, tasks=self.tasks, steps=1, batch=config.batch,
            shaped=True, observe=1, precision="tf32",
        )  # fmt: skip
        self.step = capture(self.loop.play, self.device)
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
        rows = self._rows(chosen, 0, number)  # [R, K, steps, B]
        phi = torch.stack([self.states[name].phi for name in TRAINED])  # [M, R, P]
        steps = torch.stack([self._steps(name) for name in TRAINED])
        shape = (len(TRAINED), config.seeds, config.clients)
        theta, squares = self._play(
            phi[:, :, None].expand(*shape, -1), steps[:, :, None].expand(*shape, -1),
            rows.expand(len(TRAINED), *rows.shape),
        )  # fmt: skip
        for name, server in self.servers.items():
            m = TRAINED.index(FEDAVG if name in WATCHES else name)
            ends, seen = theta[m].transpose(0, 1), squares[m].transpose(0, 1)  # [K, R, P]
            seen = seen.sum(-1, keepdim=True) if server.observes == "norms" else seen
            weight = ends.new_full(ends.shape[:2], config.batch * config.steps)
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
        rows, held = self._rows(roles, 0, 0), self._held(roles)
        flat = list(np.ndindex(len(pairs), len(roles), count))
        before, after = np.zeros((2, len(pairs), len(roles), count))
        for start in range(0, len(flat), self.tasks):
            part = flat[start : start + self.tasks]
            v, r, k = (list(i) for i in zip(*part, strict=True))
            full = self.tasks - len(part)  # the stack has one size
            own, eta, index = phi[v, r], steps[v, r], rows[r, k]
            own, eta, index = (
                torch.cat([a, a[:1].expand(full, *a.shape[1:])]) for a in (own, eta, index)
            )
            theta, _ = self._play(own, eta, index)
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

    def _play(self, phi: Any, steps: Any, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where stacked clients end, and their squared gradients, in the shape of ``phi``."""
        loop, index = self.loop, rows.reshape(self.tasks, self.config.steps, self.config.batch)
        loop.theta.copy_(phi.reshape(self.tasks, -1))
        loop.eta.copy_(steps.reshape(self.tasks, -1))
        loop.squares.zero_()
        for s in range(self.config.steps):
            loop.index[0].copy_(index[:, s])
            loop.label[0].copy_(self.text[index[:, s] + self.config.context])
            self.step()
        return loop.theta.clone().view(phi.shape), loop.squares.clone().view(phi.shape)

    def _chosen(self, r: int, number: int) -> np.ndarray:
        rng = np.random.default_rng([self.seeds[r], 2, number])
        return rng.choice(self.splits[r][0], self.config.clients, replace=False)

    def _rows(self, roles: list[np.ndarray], part: int, number: int) -> torch.Tensor:
        """Samples that clients play in a round, [R, n, steps, batch]."""
        config, need = self.config, self.config.steps * self.config.batch
        drawn = [
            [self.clients.draw(int(role), part, need, [seed, 3, number]) for role in own]
            for seed, own in zip(self.seeds, roles, strict=True)
        ]
        made = torch.as_tensor(np.array(drawn), device=self.device)
        return made.unflatten(-1, (config.steps, config.batch))

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
