"""Networks of any kind in a stack: the numbers of the plain loop, and masks that repeat."""
# ruff: noqa: E402

import copy
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from fmrl.core.rules.meta import Interpolate
from fmrl.deep import (
    SGD,
    Adam,
    Arrays,
    FLIBatch,
    FLIOnline,
    MetaTrainer,
    adapt,
    evaluate,
    load,
    save,
)
from fmrl.deep.engines import on_cpu, recurrent
from fmrl.deep.engines.functions import mix, uniform
from fmrl.deep.engines.inner import InnerLoop, descend
from fmrl.deep.engines.stacked import Stacked, each_in_turn

SEQUENCE, IMAGE, FLAT = (7, 4), (2, 8, 8), (4,)


class Encoder(nn.Module):
    def __init__(self, dropout=0.0, first=False, mask=False):
        super().__init__()
        options = {"dropout": dropout, "batch_first": True, "norm_first": first}
        layer = nn.TransformerEncoderLayer(8, 2, 16, **options)
        self.into, self.out, self.mask = nn.Linear(4, 8), nn.Linear(8, 3), mask
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        late = (torch.arange(x.shape[1], device=x.device) > 5).expand(len(x), -1)
        masks = {"mask": mask, "src_key_padding_mask": late} if self.mask else {}
        return self.out(self.encoder(self.into(x), **masks).mean(1))


class Heads(nn.Module):
    """Attention alone, with keys of another width, and torch's function for it."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, dropout, kdim=3, vdim=3, batch_first=True)
        self.out, self.dropout = nn.Linear(4, 3), dropout

    def forward(self, x):
        y, shares = self.heads(x, x[..., :3], x[..., 1:])
        z = F.scaled_dot_product_attention(y, x, x, dropout_p=self.dropout, is_causal=True)
        return self.out((y + z).mean(1)) + shares.mean()


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(4, 5, **options)
        self.out, self.first = nn.LazyLinear(3), options.get("batch_first", False)
        self(torch.zeros(1, *SEQUENCE))

    def forward(self, x):
        y, last = self.layer(x if self.first else x.transpose(0, 1))
        last = last[1] if isinstance(last, tuple) else last  # the cell's state too
        return self.out((y[:, -1] if self.first else y[-1]) + last.mean())


class Cells(nn.Module):
    """A recurrent cell that the network's own loop calls."""

    def __init__(self, kind, **options):
        super().__init__()
        self.cell, self.out = kind(4, 5, **options), nn.Linear(5, 3)

    def forward(self, x):
        h = x.new_zeros(len(x), 5)
        state = (h, h) if isinstance(self.cell, nn.LSTMCell) else h
        for row in x.unbind(1):
            state = self.cell(row, state)
        return self.out(sum(state) if isinstance(state, tuple) else state)


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.layer = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.layer(self.letters(x))[0][:, -1])


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.wide = nn.Conv2d(channels, channels, 1)
        self.same = nn.Conv2d(channels, channels, (2, 3), padding="same", dilation=2, bias=False)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        return F.relu(x + self.norm(self.same(self.wide(self.deep(x)))))


def image_net(*middle, channels=4):
    end = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 3)
    return nn.Sequential(nn.Conv2d(2, channels, 3, 2, 1), *middle, *end)


def lines():
    wide = nn.Conv1d(7, 6, 3, stride=2, padding=1, padding_mode="circular")
    return nn.Sequential(wide, nn.LayerNorm(2), nn.GELU(), nn.Flatten(), nn.Linear(12, 3))


NETS = {
    "encoder": (Encoder, SEQUENCE),
    "encoder, masks": (lambda: Encoder(mask=True, first=True), SEQUENCE),
    "encoder, dropout": (lambda: Encoder(0.3), SEQUENCE),
    "attention": (Heads, SEQUENCE),
    "attention, dropout": (lambda: Heads(0.3), SEQUENCE),
    "LSTM": (lambda: Recurrent(nn.LSTM, batch_first=True), SEQUENCE),
    "LSTM, deep, both ways": (
        lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True, bias=False), SEQUENCE,
    ),
    "LSTM, dropout": (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.4), SEQUENCE),
    "GRU": (lambda: Recurrent(nn.GRU, num_layers=2, batch_first=True), SEQUENCE),
    "GRU, both ways": (lambda: Recurrent(nn.GRU, bidirectional=True), SEQUENCE),
    "RNN": (lambda: Recurrent(nn.RNN), SEQUENCE),
    "RNN, relu": (lambda: Recurrent(nn.RNN, nonlinearity="relu", bias=False), SEQUENCE),
    "LSTM cell": (lambda: Cells(nn.LSTMCell), SEQUENCE),
    "GRU cell": (lambda: Cells(nn.GRUCell), SEQUENCE),
    "RNN cell": (lambda: Cells(nn.RNNCell, bias=False), SEQUENCE),
    "RNN cell, relu": (lambda: Cells(nn.RNNCell, nonlinearity="relu"), SEQUENCE),
    "letters": (Letters, "letters"),
    "residual, separable": (lambda: image_net(Block(4), Block(4)), IMAGE),
    "lines": (lines, SEQUENCE),
    "dropout": (lambda: image_net(nn.Dropout2d(0.4), nn.ReLU(), nn.Dropout(0.2)), IMAGE),
    "kept statistics": (lambda: image_net(nn.BatchNorm2d(4).eval()), IMAGE),
    "instance norm": (lambda: image_net(nn.InstanceNorm2d(4, affine=True)), IMAGE),
}  # fmt: skip


def made(name):
    build, shape = NETS[name]
    torch.manual_seed(0)
    return build().double(), inputs(shape)


def inputs(shape, rows=6):
    generator = torch.Generator().manual_seed(1)
    if shape == "letters":
        return torch.randint(0, 9, (rows, 7), generator=generator)
    return torch.randn(rows, *shape, generator=generator, dtype=torch.float64)


def sequence_of(shape, steps=3):
    data = [(inputs(shape, 6 + i), np.arange(6 + i) % 3) for i in range(3)]
    return Arrays(data, batch=4, steps=steps)


@pytest.mark.parametrize("name", NETS)
def test_stacked_outputs_and_gradients_are_the_plain_loops(name):
    net, x = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of running task by task
        apply = Stacked(net, "stacked", x)
    scales = torch.tensor([[1.0], [1.1], [0.9]], dtype=torch.float64)
    theta = (apply.layout.flat(net) * scales).requires_grad_()
    stack = torch.stack([x, x.flip(0), x.roll(1, 0)])
    assert apply.drops is ("dropout" in name)
    for key in (None, torch.tensor([3, 9, 4])):
        found = [form(theta, stack, key) for form in (apply, each_in_turn(net))]
        slopes = [torch.autograd.grad(out.pow(2).sum(), theta)[0] for out in found]
        assert (found[0] - found[1]).abs().max() < 1e-12
        assert (slopes[0] - slopes[1]).abs().max() < 1e-12 * (1 + slopes[1].abs().max())
    if "dropout" not in name:  # and they are the module's own
        assert (found[0][0] - net(x)).abs().max() < 1e-12


@pytest.mark.parametrize("name", [n for n in NETS if n.split(",")[0] in ("LSTM", "GRU", "RNN")])
def test_what_recurrent_layers_do_on_a_gpu_is_torchs_own(name, monkeypatch):
    """There all tasks take each time step together; on a CPU torch's layer runs task by task."""
    calls = []

    def on_gpu(func, options, *facts):
        calls.append(options.cell)
        return recurrent.layer(options, *facts)

    monkeypatch.setattr(recurrent, "in_turn", on_gpu)
    test_stacked_outputs_and_gradients_are_the_plain_loops(name)
    assert calls


def test_recurrent_weights_are_not_laid_out_for_cudnn(monkeypatch):
    """On CUDA that asks for their address, which a stack's have not."""
    net, x = made("LSTM")

    def refuse(self):
        assert not torch._C._functorch.is_batchedtensor(self.weight_hh_l0)

    monkeypatch.setattr(nn.LSTM, "flatten_parameters", refuse)
    assert not Stacked(net, "stacked", x).slow


@pytest.fixture(params=["stacked", "in turn"])
def heavy(request, monkeypatch):
    """Small networks as a CPU runs them, and as it runs large ones."""
    monkeypatch.setattr(on_cpu, "HEAVY", -1 if request.param == "in turn" else 1e9)
    return request.param == "in turn"


@pytest.mark.parametrize("name", ["encoder", "LSTM", "residual, separable", "letters"])
def test_training_is_the_plain_loops(name, heavy):
    net, _ = made(name)
    tasks = sequence_of(NETS[name][1])
    half = Interpolate(0.5, 0.5, 1)
    trainer = MetaTrainer(copy.deepcopy(net), SGD(0.2), meta=half, meta_batch=3)
    assert trainer.fit(tasks, 2).loop.plain_cpu == heavy
    phi = copy.deepcopy(net)
    for iteration in range(2):
        index, label = tasks.draw(3 * iteration, 3)
        ends = []
        for rows, labels in zip(index, label, strict=True):
            own = copy.deepcopy(phi)
            descent = torch.optim.SGD(own.parameters(), 0.2)
            for row, target in zip(rows, labels, strict=True):
                descent.zero_grad()
                F.cross_entropy(own(tasks.inputs[row]), target).backward()
                descent.step()
            ends.append([p.detach() for p in own.parameters()])
        for p, new in zip(phi.parameters(), zip(*ends, strict=True), strict=True):
            p.data += 0.5 * (torch.stack(new).mean(0) - p.data)
    expected = torch.cat([p.detach().flatten() for p in phi.parameters()])
    assert (trainer.phi[0] - expected).abs().max() < 1e-10


def rows(*layers):
    """Dense layers after [7, 4] inputs are made flat, or each on its own."""
    return nn.Sequential(*layers)


DENSE = {
    "flat": lambda: rows(nn.Flatten(), nn.Linear(28, 6), nn.ReLU(), nn.Linear(6, 3)),
    "nested": lambda: rows(rows(nn.Linear(4, 5, bias=False), nn.Tanh()), nn.Flatten(),
                           nn.Linear(35, 6), nn.Sigmoid(), nn.ReLU(), nn.Linear(6, 3), nn.Tanh()),
    "activation first": lambda: rows(nn.Tanh(), nn.Flatten(), nn.Linear(28, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*DENSE, *NETS])
def test_gradients_on_a_cpu_are_those_of_the_stack(name, monkeypatch):
    """Also of frozen parameters, which have none, and of dropout's masks."""
    monkeypatch.setattr(on_cpu, "HEAVY", -1)
    torch.manual_seed(0)
    net = DENSE[name]().double() if name in DENSE else made(name)[0]
    tasks = sequence_of(SEQUENCE if name in DENSE else NETS[name][1])
    next(net.parameters()).requires_grad_(False)
    found = []
    for path in ("auto", "stacked"):
        loop = InnerLoop(net, SGD(0.1), tasks.inputs, tasks=3, steps=3, batch=4, path=path)
        index, label = tasks.draw(5, 3)
        theta = loop.apply.layout.flat(net) * torch.tensor([[1.0], [1.1], [0.9]]).double()
        key = torch.tensor([3, 9, 4]) if loop.apply.drops else None
        facts = loop._gradient(0, theta, index[:, 0], label[:, 0], key)
        found.append([part.clone() for part in facts])
        found[-1][1].masked_fill_(loop.frozen, 0)
        assert (type(loop._once(0, 3)) is on_cpu.Dense) == (path == "auto" and name in DENSE)
    for mine, stacked in zip(*found, strict=True):
        assert (mine - stacked).abs().max() < 1e-12 * (1 + stacked.abs().max())


@pytest.mark.parametrize("update", [FLIOnline(), FLIBatch()])
def test_adam_layer_by_layer_is_adam(update, monkeypatch):
    """In pieces of two tasks and one, with other steps in other runs."""
    found, tasks = [], sequence_of(SEQUENCE)
    for one_pass in (on_cpu.FUSED, None):
        monkeypatch.setattr(on_cpu, "FUSED", one_pass)
        torch.manual_seed(0)
        nets, rules = [DENSE["nested"]().double() for _ in range(2)], (Adam(0.01), Adam(0.03))
        trainer = MetaTrainer(nets, list(rules), update, meta_batch=3, piece=2).fit(tasks, 3)
        steps = [made for key, made in trainer.loop.made.items() if len(key) == 3]
        assert bool(steps) == (one_pass is not None)
        assert all(len(own.parts) == 3 for own in steps)
        found.append(torch.stack([trainer.phi, trainer.second]))
    assert (found[0] - found[1]).abs().max() < 1e-12


def test_large_networks_are_called_task_by_task():
    """By their operations, which are counted in recurrent layers too; no random number is drawn."""
    facts = {"tasks": 2, "steps": 1, "batch": 8}
    for width, large in ((4, False), (128, True)):
        net = nn.Sequential(nn.Dropout(0.1), nn.LSTM(4, width, batch_first=True), Last())
        torch.manual_seed(0)
        loop = InnerLoop(net, SGD(0.1), torch.zeros(9, 9, 4), **facts)
        assert loop.plain_cpu == large and loop.piece == (1 if large else 2)
        found = torch.rand(1)
        torch.manual_seed(0)
        assert torch.equal(found, torch.rand(1))


class Last(nn.Module):
    def forward(self, found):
        return found[0][:, -1, :3]


def test_a_layer_that_is_used_twice_is_not_passed_by_hand():
    twice = nn.Linear(4, 4)
    assert not on_cpu.dense(rows(twice, nn.ReLU(), twice))
    assert not on_cpu.dense(rows(nn.Linear(4, 4), nn.GELU()))


@pytest.mark.parametrize("steps", [(0.1, 0.1), (0.1, 0.3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_in_one_pass_is_adam(steps, dtype, monkeypatch):
    generator, found = torch.Generator().manual_seed(0), []
    start = torch.rand(3, 2, 1001, generator=generator).to(dtype)
    start[:, :, 7] = 0  # a parameter that was never reached
    for fused in (on_cpu.FUSED, None):
        monkeypatch.setattr(on_cpu, "FUSED", fused)
        theta, second, gradient = start.clone()
        eta, bias = torch.tensor(steps)[:, None].to(dtype), torch.tensor([0.7]).to(dtype)
        descend(Adam(), theta, second, None, None, gradient, None, eta, bias)
        found.append(torch.stack([theta, second]))
    assert on_cpu.FUSED is None and not torch.equal(found[0][0], start[0])
    assert (found[0] - found[1]).abs().max() < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["encoder, dropout", "LSTM", "residual, separable"])
def test_threads_agree(name, heavy):
    """On a CPU tasks of all runs are shared by threads, each with a copy of the module."""
    net, _ = made(name)
    tasks, kept, phis = sequence_of(NETS[name][1]), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            trainer = MetaTrainer(copy.deepcopy(net), Adam(0.01), meta_batch=5, runs=2)
            phis.append(trainer.fit(tasks, 4).phi)
    finally:
        torch.set_num_threads(kept)
    assert (phis[0] - phis[1]).abs().max() < 1e-10


def dropping():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    return net.double(), sequence_of(FLAT)


def test_masks_depend_on_the_task_and_the_step_alone(tmp_path):
    """One at a time or together, run again, or saved and loaded: the same phi."""
    net, tasks = dropping()

    def trainer():
        return MetaTrainer(copy.deepcopy(net), Adam(0.01), meta_batch=4)

    once = trainer().fit(tasks, 6).phi
    assert torch.equal(trainer().fit(tasks, 6).phi, once)
    half = trainer().fit(tasks, 3)
    path = save(half, tmp_path / "half")
    assert torch.equal(load(trainer(), path).fit(tasks, 6).phi, once)
    plain, _ = dropping()
    plain[2].p = 0.0
    kept = MetaTrainer(plain, Adam(0.01), meta_batch=4).fit(tasks, 6).phi
    assert not torch.allclose(kept, once, atol=1e-3)
    apply = Stacked(net, sample=tasks.inputs)
    theta = apply.layout.flat(net).expand(3, -1)
    x = tasks.inputs[:4].expand(3, -1, -1)
    keys = torch.tensor([5, 6, 5])
    together = apply(theta, x, keys)
    assert torch.equal(together[0], together[2]) and not torch.equal(together[0], together[1])
    alone = torch.cat([apply(theta[i : i + 1], x[i : i + 1], keys[i : i + 1]) for i in range(3)])
    assert torch.allclose(together, alone, rtol=1e-13)
    assert torch.allclose(apply(theta, x)[0], net.eval()(x[0]))  # predictions leave nothing out


def test_keys_of_tasks_and_steps_do_not_meet():
    """Neither those of neighbours after many steps nor those of seeds far apart (2**32 tasks)."""
    numbers = torch.tensor([0, 1, 2, 4096 * 2**32, 2**32])
    keys = torch.stack([mix(numbers) + s for s in range(300)])
    assert len(torch.unique(keys)) == keys.numel()


class Masked(nn.Module):
    """Another mask for every head, and a looped layer with dropout inside."""

    def __init__(self):
        super().__init__()
        self.heads, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        rows = 2 * len(x) * x.shape[1] ** 2
        mask = torch.arange(rows).reshape(2 * len(x), x.shape[1], x.shape[1]) % 5 == 1
        return self.out(self.heads(x, x, x, attn_mask=mask)[0].mean(1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(x)
        return self.drop(self.wide(x)) if x.sum() > -1e9 else x


def test_masks_of_heads_kept_statistics_and_dropout_in_a_looped_layer():
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    looped = nn.Sequential(Gated(), nn.Dropout(0.3), nn.Linear(4, 3))
    for net, shape in ((Masked(), SEQUENCE), (image_net(norm), IMAGE), (looped, FLAT)):
        net, x = net.double(), inputs(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            apply = Stacked(net, sample=x)
        theta, stack = apply.layout.flat(net).repeat(2, 1), torch.stack([x, x.flip(0)])
        for key in (None, torch.tensor([7, 8])):
            found = [form(theta, stack, key) for form in (apply, each_in_turn(net))]
            assert (found[0] - found[1]).abs().max() < 1e-12
        assert not apply.looped
    assert not norm.running_mean.any() and norm.num_batches_tracked == 0
    assert apply.slow == ["the Gated at net[0]"]


def test_masks_have_the_right_rate_and_no_pattern():
    kept = torch.stack([uniform(torch.tensor(k), 1, 1000) >= 0.3 for k in range(200)]).double()
    assert abs(float(kept.mean()) - 0.7) < 0.005
    assert (kept.mean(0) - 0.7).abs().max() < 0.15 and (kept.mean(1) - 0.7).abs().max() < 0.07
    table = torch.corrcoef(kept)
    assert (table - torch.eye(200)).abs().max() < 0.2  # neighbours in number are strangers
    one, two = (uniform(torch.tensor(3), call, 1000) for call in (1, 2))
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.1


def test_dropout_goes_through_adapt_and_evaluate(monkeypatch):
    import sys

    evaluation = sys.modules[evaluate.__module__]
    net, tasks = dropping()
    ends = [adapt(net, tasks.inputs[:6], [0, 1, 2] * 2, 5, within=SGD(0.1)) for _ in range(2)]
    assert torch.equal(ends[0][0].weight, ends[1][0].weight)
    data = [(inputs(FLAT, 6), np.arange(6) % 3) * 2 for _ in range(4)]
    held = Arrays(data, batch=4, steps=2)
    scores = []
    for stack in (4, 1):  # together or one at a time
        monkeypatch.setattr(evaluation, "STACK", stack)
        scores.append(evaluate(net, held, protocol="inductive", count=4, what="loss").loss)
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


@pytest.mark.filterwarnings("ignore:the BatchNorm1d at")
def test_an_adapted_module_predicts_without_dropout_and_by_the_batch():
    """No dropout, and batch norm by the batch at hand, whichever mode the caller asks for."""
    layers = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    net, x = nn.Sequential(*layers).double(), inputs(FLAT, 12)
    module = adapt(net, x, [0, 1, 2] * 4, 5, within=SGD(0.1))
    assert not module.training
    with torch.no_grad():
        found = module(x)
        assert torch.equal(found, module(x)) and torch.equal(found, module.eval()(x))
        hidden = F.batch_norm(module[0](x), None, None, module[1].weight, module[1].bias, True)
        assert torch.allclose(found, module[4](hidden.relu()), atol=1e-12)
    assert net.training and net[1].running_mean is not None
    kept = adapt(net.eval(), x, [0, 1, 2] * 4, 5, within=SGD(0.1))
    assert torch.equal(kept[1].running_mean, net[1].running_mean)


class Single(nn.Module):
    """Makes float32 of its own, as hidden states often are; cannot run in double precision."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        start = torch.zeros(1, len(x), 8)
        return self.out(self.layer(x, (start, start))[0][:, -1].float())


def test_a_network_of_single_precision_is_stacked_too(recwarn, monkeypatch):
    from fmrl.deep.engines import stacked

    net, x = Single(), torch.stack([inputs(SEQUENCE, 5).float() for _ in range(2)])
    theta = Stacked(net).layout.flat(net) * torch.tensor([[1.0], [1.1]])
    found = Stacked(net, "stacked")(theta, x)
    assert torch.allclose(found, each_in_turn(net)(theta, x), atol=1e-6)
    assert not [w for w in recwarn if "task by task" in str(w.message)]
    right = stacked.at_once  # and it is still compared before it is used
    monkeypatch.setattr(stacked, "at_once", lambda *a: lambda *b: right(*a)(*b) * 1.001)
    with pytest.raises(Exception, match="differs from the network called alone"):
        Stacked(net, "stacked")(theta, x)


def test_a_layer_without_a_stacked_form_is_named():
    class Branch(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    net = nn.Sequential(nn.Linear(4, 4), Branch(4, 4), nn.Linear(4, 3))
    with pytest.raises(Exception, match=r"the Branch at net\[1\] has no stacked form"):
        Stacked(net, "stacked", torch.randn(6, 4))


def test_batch_norm_says_what_it_does():
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4)), nn.Linear(4, 3))
    with pytest.warns(RuntimeWarning, match=r"the BatchNorm1d at net\[1\]\[0\] normalises"):
        Stacked(net, sample=torch.randn(6, 4))


def test_a_layer_that_refuses_its_inputs_is_named():
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(5, 3)))
    with pytest.raises(Exception, match=r"the Linear at net\[1\]\[1\]: mat1 and mat2"):
        Stacked(net, sample=torch.randn(6, 4))


def test_random_numbers_of_ones_own_are_refused():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(3)

    net = nn.Sequential(nn.Linear(4, 4), Noisy(4, 3))
    with pytest.raises(Exception, match=r"the Noisy at net\[1\] draws random numbers"):
        Stacked(net, sample=torch.randn(6, 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", NETS)
def test_kernels_and_graphs_on_cuda_equal_the_cpu(name):
    """float32 with full precision on a GPU against float64 on a CPU, after eight steps."""
    net, _ = made(name)
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        shape = NETS[name][1]
        data = [(inputs(shape, 6 + i), np.arange(6 + i) % 3) for i in range(3)]
        tasks = Arrays(data, batch=4, steps=4, device=device)
        own = copy.deepcopy(net).to(device, dtype)
        trainer = MetaTrainer(own, SGD(0.1), meta_batch=3, precision="ieee").fit(tasks, 2)
        found.append(trainer.phi.double().cpu())
        assert not trainer.loop.apply.looped and not trainer.loop.apply.slow
    assert (found[0] - found[1]).abs().max() < 2e-4
