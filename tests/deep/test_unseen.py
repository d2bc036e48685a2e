"""What a few inputs do not show: modules that are used by others meanwhile or change between calls,
rows that the trial never met, and masks that torch shapes in its own way.
"""
# ruff: noqa: E402

import copy
import random
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.deep import SGD, Arrays, Interpolate, Layout, MetaTrainer, evaluate
from fmrl.deep.engines.functions import Replacing
from fmrl.deep.engines.stacked import Stacked
from fmrl.errors import FMRLError

torch.set_num_threads(1)


def source(shape=(4,), queries=False, tasks=7):
    rng = np.random.default_rng(0)

    def part():
        return rng.standard_normal((20, *shape)), rng.integers(0, 2, 20)

    data = [(*part(), *part()) if queries else part() for _ in range(tasks)]
    return Arrays(data, batch=5, steps=3)


def dropping():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()


def test_trainers_in_two_threads_share_a_module():
    torch.manual_seed(0)
    net, tasks = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double(), source()

    def run(module, seed):
        return MetaTrainer(module, SGD(0.3), meta_batch=3, seed=seed).fit(tasks, 20).phi

    expected, found = [run(copy.deepcopy(net), seed) for seed in range(2)], {}
    for _ in range(3):
        found.clear()
        jobs = [
            threading.Thread(target=lambda s: found.update({s: run(net, s)}), args=(seed,))
            for seed in range(2)
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert sorted(found) == [0, 1]
        assert all(torch.equal(found[seed], expected[seed]) for seed in range(2))
    assert all(isinstance(p, nn.Parameter) for p in net[0]._parameters.values())


class Remembers(nn.Linear):
    """Keeps its last outputs, as people do to look at attention."""

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


def test_a_module_that_keeps_its_outputs_stays_as_it_was():
    net, tasks = Remembers(4, 2).double(), source()
    trainer = MetaTrainer(net, SGD(0.3), meta_batch=3).fit(tasks, 2)
    assert not hasattr(net, "last")
    trainer.trained()
    evaluate(trainer, source(queries=True), protocol="inductive", count=2)


def test_a_module_that_cannot_be_copied_is_refused_in_words():
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 2))).double()
    with pytest.raises(FMRLError, match=r"cannot be copied.*parametrizations"):
        MetaTrainer(net, SGD(0.3), meta_batch=3).fit(source(), 2)


class Moving(nn.Linear):
    """A running mean by assignment, not in place."""

    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0).detach()
        return super().forward(x - self.mean)


class Calls(nn.Linear):
    """Another function at every call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Skips(nn.Linear):
    """Python's random numbers, which vmap does not see."""

    def forward(self, x):
        return super().forward(x) + random.random()


class Lazy(nn.Linear):
    """What the first call makes and later ones only read is no memory of tasks."""

    def forward(self, x):
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(4, dtype=x.dtype))
        return super().forward(x * self.scale)


@pytest.mark.parametrize(
    "build, match",
    [
        (Moving, "writes to mean"),
        (lambda: Calls(4, 2), "other outputs when it is called again"),
        (lambda: Skips(4, 2), "draws random numbers"),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.RReLU()), "draws random numbers"),
    ],
    ids=["moving", "calls", "skips", "rrelu"],
)
def test_what_is_not_one_function_of_parameters_and_inputs_is_refused(build, match):
    with pytest.raises(FMRLError, match=match):
        MetaTrainer(build().double(), SGD(0.3), meta_batch=3).fit(source(), 2)


def test_what_the_first_call_makes_is_no_memory():
    Stacked(Lazy(4, 2).double(), "stacked", torch.randn(3, 4, dtype=torch.float64))


def test_what_has_no_gradient_is_refused_in_words():
    net = nn.Sequential(nn.Embedding(7, 2, max_norm=1.0), nn.Flatten()).double()
    with pytest.raises(FMRLError, match="cannot be trained"):
        Stacked(net, sample=torch.randint(0, 7, (5, 1)))


@pytest.mark.parametrize("path", ["auto", "functional"])
def test_padding_that_the_trial_did_not_meet_stays_zero(path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Flatten(), nn.Linear(12, 2)).double()
    X = torch.randint(3, 7, (30, 3))
    X[10:, 2] = 2  # the first inputs are those that are tried
    tasks = Arrays([(X, torch.arange(30) % 2)], batch=10, steps=4)
    trainer = MetaTrainer(net, SGD(0.5), meta_batch=3, path=path).fit(tasks, 3)
    assert not trainer.loop.apply.looped
    assert (trainer.trained()[0].weight[2] == 0).all()


class Padded(nn.Module):
    """Rows of nothing but padding, in which every key is hidden."""

    def __init__(self, own):
        super().__init__()
        self.own, self.table, self.out = own, nn.Embedding(7, 4), nn.Linear(4, 2)
        layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x):
        z, hidden = self.table(x), x == 0
        if self.own:
            z = F.scaled_dot_product_attention(z, z, z, attn_mask=~hidden[:, None])
        else:
            z = self.encoder(z, src_key_padding_mask=hidden)
        return self.out(z.mean(1))


@pytest.mark.parametrize("own", [True, False])
def test_where_everything_is_hidden_attention_is_torchs(own):
    torch.manual_seed(0)
    net, X = Padded(own).double(), torch.randint(1, 7, (8, 3))
    X[6] = 0
    theta = Layout.of(net).flat(net)[None].requires_grad_()
    out, expected = Stacked(net, "stacked", X)(theta, X[None])[0], net(X)
    assert expected.isfinite().all() and (out - expected).abs().max() < 1e-12
    (slope,) = torch.autograd.grad(out.square().sum(), theta)
    free = [*net.parameters()]
    plain = torch.autograd.grad(expected.square().sum(), free, materialize_grads=True)
    assert (slope[0] - torch.cat([p.flatten() for p in plain])).abs().max() < 1e-12


@pytest.mark.parametrize(
    "function, shape",
    [
        (F.dropout1d, (60, 5)),
        (F.dropout1d, (8, 9, 5)),
        (F.dropout2d, (8, 9)),  # flattened before, as in torch's own example for digits
        (F.dropout2d, (8, 9, 5)),
        (F.dropout2d, (8, 9, 5, 4)),
        (F.dropout3d, (60, 5, 4, 3)),
        (F.dropout3d, (8, 9, 5, 4, 3)),
    ],
)
def test_dropout_of_channels_leaves_out_what_torch_does(function, shape):
    def shared(y):
        """Along which axes a mask is constant."""
        return [bool((y == y.select(i, 0).unsqueeze(i)).all()) for i in range(y.ndim)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = shared(function(torch.ones(shape), 0.5, True))
        with Replacing(torch.tensor(5), stacked=False):
            assert shared(function(torch.ones(shape), 0.5, True)) == expected


def test_a_change_of_mode_between_two_fits_counts():
    found, tasks = {}, source()
    for modes in [(False, True), (False, False), (True, False), (True, True)]:
        net = dropping().train(modes[0])
        trainer = MetaTrainer(net, SGD(0.3), meta_batch=3).fit(tasks, 2)
        net.train(modes[1])
        found[modes] = trainer.fit(tasks, 4).phi
    assert len({str(phi.tolist()) for phi in found.values()}) == 4
    held, scores = source(queries=True), []
    for mode in (True, False):  # trainers keep the loops of their evaluations
        net.train(mode)
        scores.append(evaluate(trainer, held, 3, protocol="inductive", count=4, what="loss").tasks)
    assert not torch.equal(*scores)


def test_what_is_frozen_may_change_between_two_fits():
    net, tasks = dropping(), source()
    net[0].requires_grad_(False)
    trainer = MetaTrainer(net, SGD(0.3), meta_batch=3).fit(tasks, 2)
    assert torch.equal(trainer.trained()[0].weight, net[0].weight)
    net[0].requires_grad_(True)
    assert not torch.equal(trainer.fit(tasks, 4).trained()[0].weight, net[0].weight)


def test_masks_of_a_test_task_do_not_depend_on_the_others():
    trainer, tasks = MetaTrainer(dropping(), SGD(0.3), meta_batch=3), source(queries=True)
    options = {"steps": 3, "protocol": "inductive", "what": "loss"}
    many = evaluate(trainer, tasks, count=6, **options).tasks
    one = evaluate(trainer, tasks, count=1, start=5, **options).tasks
    assert (many[5] - one[0]).abs() < 1e-12


def test_clients_draw_masks_from_the_number_of_their_task():
    from fmrl.core.rules.update import FLIOnline
    from fmrl.federated.networks import Network

    net = dropping()
    arrays = {n: t.numpy() for n, t in net.state_dict().items()}
    tasks = Arrays([(torch.ones(6, 4, dtype=torch.float64), [1] * 6)], batch=6, steps=1)
    clients = Network(net, SGD(0.5), FLIOnline())
    ends = [clients.play(arrays, tasks, number).arrays for number in range(2)]
    assert not np.allclose(ends[0]["0.weight"], ends[1]["0.weight"])
    trainer = MetaTrainer(net, SGD(0.5), meta=Interpolate(1.0, 1.0, 1), meta_batch=2).fit(tasks, 1)
    mean = (ends[0]["0.weight"] + ends[1]["0.weight"]) / 2
    assert np.abs(trainer.trained()[0].weight.detach().numpy() - mean).max() < 1e-12


def test_dropout_stands_between_recurrent_layers_only_and_anew_at_every_call():
    net, x = nn.LSTM(3, 4, 2, dropout=1.0).double(), torch.randn(5, 2, 3, dtype=torch.float64)
    with Replacing(torch.tensor(5), stacked=False):
        found = net(x)[1][0]  # last states of both layers
        one, two = (F.dropout(torch.ones(100), 0.5) for _ in range(2))
    assert torch.allclose(found, net(x)[1][0]) and not torch.equal(one, two)


@pytest.mark.parametrize("kernel", [(2, 4), (4, 3)])
def test_an_odd_pixel_of_same_padding_goes_behind(kernel):
    net = nn.Conv2d(1, 2, kernel, padding="same").double()
    Stacked(net, "stacked", torch.randn(3, 1, 6, 6, dtype=torch.float64))
