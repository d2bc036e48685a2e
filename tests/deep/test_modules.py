"""Networks as users write them, against a plain loop over tasks with nn.Module and torch.optim,
in float64.
"""
# ruff: noqa: E402

import collections
import copy
import re
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import itertools

from torch import nn
from torch.nn import functional as F

from fmrl.deep import (
    SGD,
    Adam,
    Arrays,
    FLIBatch,
    FollowLeader,
    Interpolate,
    Layout,
    MetaTrainer,
    SameConv2d,
    adapt,
    cross_entropy,
    omniglot_net,
    squared_error,
)
from fmrl.deep.engines.by_hand import plan as by_hand
from fmrl.deep.engines.fused import plan as fused
from fmrl.deep.engines.inner import InnerLoop
from fmrl.deep.engines.stacked import Stacked
from fmrl.deep.losses import check_labels
from fmrl.errors import FMRLError

torch.set_num_threads(1)
K, BATCH, ITERATIONS = 3, 3, 2


def tasks(shape, *, batch=BATCH, integers=False, seed=0, ways=2):
    rng = np.random.default_rng(seed)
    draw = (
        (lambda n: rng.integers(0, 7, (n, *shape)))
        if integers
        else (lambda n: rng.standard_normal((n, *shape)))
    )
    return Arrays([(draw(8), rng.integers(0, ways, 8)) for _ in range(4)], batch=batch, steps=2)


def plain(net, source, within=SGD(0.2), loss=F.cross_entropy, fraction=0.5):
    """One task after another, phi moved half-way to the mean of the ends."""
    phi = copy.deepcopy(net)
    for iteration in range(ITERATIONS):
        index, label = source.draw(iteration * K, K)
        ends = []
        for k in range(K):
            module = copy.deepcopy(phi)
            free = [p for p in module.parameters() if p.requires_grad]
            adam = isinstance(within, Adam)
            optimiser = (
                torch.optim.Adam(free, within.step, (0.0, within.beta2))
                if adam
                else torch.optim.SGD(free, within.step)
            )
            for s in range(source.steps):
                optimiser.zero_grad()
                loss(module(source.inputs[index[k, s]]), label[k, s]).backward()
                optimiser.step()
            ends.append([p.detach() for p in module.parameters()])
        with torch.no_grad():
            for p, *others in zip(phi.parameters(), *ends, strict=True):
                if p.requires_grad:
                    p += fraction * (torch.stack(others).mean(0) - p)
    return Layout.of(phi).flat(phi)


def trained(net, source, within=SGD(0.2), **options):
    return MetaTrainer(net, within, meta=Interpolate(0.5, 0.5, 1), meta_batch=K, **options).fit(
        source, ITERATIONS
    )


def check(net, source, within=SGD(0.2), loss=None, **options):
    expected = plain(net, source, within, loss or F.cross_entropy)
    trainer = trained(copy.deepcopy(net), source, within, **options)
    assert (trainer.phi[0] - expected).abs().max() < 1e-10
    assert (expected - Layout.of(net).flat(net)).abs().max() > 1e-3  # something was learned at all
    X = source.inputs[:4]
    module, theta = trainer.trained(), trainer.phi
    assert (
        trainer.loop.apply(theta, X[None])[0] - module(X)
    ).abs().max() < 1e-10  # what evaluate predicts with
    return trainer


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x) + 0.3


class Centred(nn.ReLU):
    def forward(self, x):
        return super().forward(
            x - x.mean(0)
        )  # over the mini-batch, which in a stack is another axis


def linear(*sizes):
    return [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]


def shared_activation():
    a, b, c = linear(4, 5, 5, 2)
    act = nn.Tanh()
    return nn.Sequential(a, act, b, act, c)


def layer_twice():
    a, b, c = linear(4, 4, 4, 2)
    return nn.Sequential(a, nn.Tanh(), b, nn.Tanh(), b, c)


def tied():
    a, b, c = linear(4, 4, 4, 2)
    b.weight = a.weight
    return nn.Sequential(a, nn.Tanh(), b, c)


def hooked():
    net = nn.Sequential(nn.Linear(4, 2))
    net[0].register_forward_hook(lambda module, inputs, output: output * torch.tensor([1.0, 3.0]))
    return net


def replaced_forward():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    net[1].forward = lambda x: torch.tanh(x - x.mean(0))
    return net


VECTORS = {
    "shared activation": shared_activation,
    "layer twice": layer_twice,
    "tied": tied,
    "subclass": lambda: Doubled(*linear(4, 2)),
    "nested subclass": lambda: nn.Sequential(Doubled(*linear(4, 3)), nn.Tanh(), nn.Linear(3, 2)),
    "subclass of an activation": lambda: nn.Sequential(nn.Linear(4, 3), Centred(), nn.Linear(3, 2)),
    "hook": hooked,
    "replaced forward": replaced_forward,
    "named": lambda: nn.Sequential(
        collections.OrderedDict(a=nn.Linear(4, 3), act=nn.Tanh(), b=nn.Linear(3, 2))
    ),
}


@pytest.mark.parametrize("build", VECTORS.values(), ids=VECTORS)
def test_networks_of_one_axis(build):
    torch.manual_seed(0)
    check(build().double(), tasks((4,)))


def _norms(running):
    net = nn.Sequential(
        nn.Linear(4, 4),
        nn.BatchNorm1d(4, track_running_stats=running),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 2),
    )
    if running:
        net[1].running_mean += torch.tensor([0.1, -0.2, 0.3, 0.0])
        net[1].running_var *= torch.tensor([1.0, 2.0, 0.5, 0.7])
    return net


@pytest.mark.parametrize("batch", [3, 2])  # 3 is also the number of tasks, which hides a wrong axis
def test_linear_over_the_last_axis(batch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))
    check(net.double(), tasks((4, 4), batch=batch), path="stacked")


def test_norms_of_sequences():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.BatchNorm1d(4, track_running_stats=False), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)
    )
    check(net.double(), tasks((4, 4)), path="stacked")  # as many channels as places


def test_kept_statistics_are_used_as_they_are():
    torch.manual_seed(0)
    net = _norms(True).double()
    for path in ("stacked", "functional"):
        check(net.eval(), tasks((4, 4)), path=path)
    assert net[1].running_mean.tolist() == pytest.approx([0.1, -0.2, 0.3, 0.0])
    other = copy.deepcopy(net)
    assert MetaTrainer([net, other]).runs == 2
    other[1].running_mean += 1  # runs side by side share the first one's statistics
    with pytest.raises(FMRLError, match="buffers"):
        MetaTrainer([net, other])


def conv_net(kind="flat"):
    torch.manual_seed(0)
    act, sizes = nn.ReLU(), (1, 4, 4)
    convs = [SameConv2d(a, b, 3, stride=2) for a, b in itertools.pairwise(sizes)]
    norms = [nn.BatchNorm2d(4, track_running_stats=False) for _ in convs]
    end = [nn.Flatten(), nn.Linear(16, 2)]
    if kind == "named":
        return nn.Sequential(
            collections.OrderedDict(
                c=convs[0], n=norms[0], r=act, d=convs[1], m=norms[1], s=act, f=end[0], out=end[1]
            )
        )
    if kind == "nested":
        return nn.Sequential(
            *(nn.Sequential(c, n, nn.ReLU()) for c, n in zip(convs, norms, strict=True)), *end
        )
    norms = [norms[0]] * 2 if kind == "norm twice" else norms
    return nn.Sequential(
        *(layer for c, n in zip(convs, norms, strict=True) for layer in (c, n, act)), *end
    )


@pytest.mark.parametrize("kind", ["shared", "named", "nested", "norm twice"])
def test_passes_by_hand_of_networks_written_in_other_ways(kind):
    net, source = conv_net(kind).double(), tasks((1, 8, 8))
    trainer = check(net, source)
    assert (trainer.loop.hand is None) == (kind == "norm twice")
    check(net, source, path="functional")


class MyNet(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def test_plans_are_for_exact_networks():
    names = collections.OrderedDict(
        (f"layer{i}", layer) for i, layer in enumerate(omniglot_net(5, filters=16))
    )
    named, net = nn.Sequential(names), omniglot_net(5, filters=16)
    for plan in (lambda net: by_hand(net, (1, 28, 28)), lambda net: fused(net, (1, 28, 28), 10)):
        assert torch.equal(plan(named).order, plan(net).order)
        assert plan(MyNet(*net)) is None
        assert plan(nn.Sequential(*linear(*[4] * 9))) is None
        tied = copy.deepcopy(net)
        tied[6].weight = tied[3].weight
        hooked = copy.deepcopy(net)
        hooked[2].register_forward_hook(lambda *_: None)
        flat = copy.deepcopy(net)
        flat[-2].start_dim = 2
        other = copy.deepcopy(net)
        other[2].forward = torch.tanh
        assert [plan(tied), plan(hooked), plan(flat), plan(other)] == [None] * 4


def test_a_stacked_form_with_other_numbers_is_not_used(monkeypatch):
    """Whatever the rules about layers overlook is found on a few inputs."""
    from fmrl.deep.engines import stacked

    right = stacked.at_once

    def wrong(*facts):
        return lambda theta, x, key=None: right(*facts)(theta, x, key) * 1.001

    monkeypatch.setattr(stacked, "at_once", wrong)
    net, x = nn.Linear(4, 2).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    theta = Layout.of(net).flat(net).expand(2, -1)
    with pytest.warns(RuntimeWarning, match="task by task"):
        assert torch.allclose(Stacked(net)(theta, x), net(x), rtol=1e-12)
    with pytest.raises(FMRLError, match="no stacked form"):
        Stacked(net, "stacked")(theta, x)


class Scaled(nn.Module):
    """A parameter without axes."""

    def __init__(self):
        super().__init__()
        self.scale, self.dense = nn.Parameter(torch.tensor(1.5)), nn.Linear(4, 2)

    def forward(self, x):
        return self.scale * self.dense(x)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.dense = nn.Embedding(7, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.dense(torch.tanh(self.table(x)).mean(1))


class Branching(nn.Module):
    """Another network where the mini-batch is negative on average."""

    def __init__(self):
        super().__init__()
        self.up, self.down = linear(4, 2, 2)[0], nn.Linear(4, 2)

    def forward(self, x):
        return self.up(x) if x.mean() > 0 else self.down(x)


def test_parameters_without_axes_and_whole_numbers():
    torch.manual_seed(0)
    check(Scaled().double(), tasks((4,)), Adam(1e-2, carry=False))
    trainer = check(Words().double(), tasks((5,), integers=True))
    assert trainer.loop.apply.whole and not trainer.loop.apply.looped
    whole = tasks((4,), integers=True)  # a dense layer takes no whole numbers: they are cast
    floats = copy.copy(whole)
    floats.inputs = whole.inputs.double()
    net = nn.Linear(4, 2).double()
    assert torch.equal(
        trained(copy.deepcopy(net), whole).phi, trained(copy.deepcopy(net), floats).phi
    )
    bytes_ = Stacked(nn.Linear(4, 2), sample=torch.zeros(3, 4, dtype=torch.uint8))
    assert not bytes_.whole and bytes_.outputs == (2,)


@pytest.mark.parametrize("inside", [False, True])
def test_what_vmap_refuses_is_run_task_by_task(inside):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), Branching()) if inside else Branching()
    said = f"the Branching at net{'[1]' * inside} is run task by task, which is exact but slow: "
    said += "a branch in it (if, while) depends on the data"
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(said)}$"):
        # torch's Adam counts no step where a branch was not taken, ours does; SGD has no such
        # count
        trainer = check(net.double(), tasks((4,)))
    assert trainer.loop.apply.looped is not inside  # only the layer, where there is another
    assert trainer.loop.apply.slow == (["the Branching at net[1]"] if inside else [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Stacked(nn.Linear(4, 2), sample=torch.zeros(3, 4))  # and nothing is said of others


def test_a_network_that_refuses_its_inputs_says_so():
    with pytest.raises(FMRLError, match="Linear does not take inputs"):
        trained(nn.Linear(5, 2).double(), tasks((4,)))
    with pytest.raises(FMRLError, match="one tensor"):
        trained(nn.LSTM(3, 2, batch_first=True).double(), tasks((5, 3)))

    class Counting(nn.Linear):
        def forward(self, x):
            self.seen += 1
            return super().forward(x)

    net = Counting(4, 2).double()
    net.register_buffer("seen", torch.zeros(1))
    with pytest.raises(FMRLError, match="writes to seen"):
        trained(net, tasks((4,)))
    assert net.seen == 0
    net = nn.Sequential(nn.Linear(4, 2), nn.AlphaDropout(0.5)).double()
    with pytest.raises(FMRLError, match=r"the AlphaDropout at net\[1\].*set p=0"):
        trained(net, tasks((4,)))


@pytest.mark.parametrize("path", ["auto", "stacked", "functional"])
@pytest.mark.parametrize("within", [SGD(0.2), Adam(1e-2)], ids=["sgd", "adam"])
def test_frozen_parameters_stay_to_the_last_bit(within, path):
    net, source = conv_net().double(), tasks((1, 8, 8))
    for layer in (net[0], net[4]):
        layer.requires_grad_(False)
    frozen = Layout.of(net).mask()
    before = Layout.of(net).flat(net)
    for update, meta in ((None, Interpolate(0.3, 0.3, 1)), (FLIBatch(), FollowLeader())):
        trainer = MetaTrainer(
            copy.deepcopy(net), within, update, meta, meta_batch=K, path=path
        ).fit(source, 5)
        assert (trainer.loop.hand is not None) == (path == "auto")
        assert torch.equal(trainer.phi[0, frozen], before[frozen])
        assert (trainer.phi[0, ~frozen] - before[~frozen]).abs().min() > 0
        if trainer.second is not None:
            assert (trainer.second[0, frozen] == 0).all() and (trainer.second[0, ~frozen] > 0).any()
        module = adapt(trainer, source.inputs[:4], [0, 1, 0, 1], steps=3)
        assert torch.equal(Layout.of(module).flat(module)[frozen], before[frozen])
    if path == "auto" and isinstance(within, SGD):
        check(net, source)
        with pytest.raises(FMRLError, match="frozen"):
            trained(copy.deepcopy(net).requires_grad_(False), source)
        with pytest.raises(FMRLError, match="one architecture"):
            MetaTrainer([net, conv_net().double()])


def test_a_loss_returns_a_number_for_every_task():
    net, source = (
        nn.Linear(4, 3).double(),
        tasks((4,), ways=3),
    )  # classes, mini-batch and tasks all 3
    for loss, match in (
        (F.cross_entropy, "3 tasks|2 tasks"),
        (lambda outputs, targets: cross_entropy(outputs, targets).mean(), "returned"),
        (
            lambda outputs, targets: cross_entropy(outputs, targets).mean().expand(len(outputs)),
            "beside",
        ),
        (lambda outputs, targets: outputs.sum((0, 2)), "returned"),
        (lambda outputs, targets: outputs @ targets, "does not take"),
    ):
        with pytest.raises(FMRLError, match=match):
            trained(copy.deepcopy(net), source, loss=loss)
    check(net, source, loss=None)
    own = trained(copy.deepcopy(net), source, loss=torch.func.vmap(F.cross_entropy))
    assert (own.phi[0] - plain(net, source)).abs().max() < 1e-10


def test_targets_have_a_shape_and_labels_a_range():
    net, inputs = nn.Linear(4, 2).double(), torch.randn(6, 4, dtype=torch.float64)
    options = {"tasks": 2, "steps": 3, "batch": 5}
    loop = InnerLoop(
        net, SGD(0.1), inputs, targets=torch.zeros(1, 3, 5, 2), loss=squared_error, **options
    )
    assert loop.label.shape == (3, 2, 5, 2)
    loop.index.random_(6)
    loop.label.normal_()
    loop.theta.copy_(Layout.of(net).flat(net).expand(2, -1))
    loop.eta.fill_(0.1)
    loop.play()
    for t in range(2):
        module = copy.deepcopy(net)
        optimiser = torch.optim.SGD(module.parameters(), 0.1)
        for s in range(3):
            optimiser.zero_grad()
            F.mse_loss(module(inputs[loop.index[s, t]]), loop.label[s, t].double()).backward()
            optimiser.step()
        assert (Layout.of(module).flat(module) - loop.theta[t]).abs().max() < 1e-12
    with pytest.raises(FMRLError, match="outputs"):
        InnerLoop(
            net, SGD(0.1), inputs, targets=torch.zeros(1, 3, 5, 3), loss=squared_error, **options
        )
    with pytest.raises(FMRLError, match="are not class numbers"):
        InnerLoop(net, SGD(0.1), inputs, targets=torch.float64, **options)
    loop = InnerLoop(net, SGD(0.1), inputs, targets=torch.int32, **options)
    assert loop.label.dtype == torch.int64
    loop.check(torch.tensor([0, 1]))
    for wrong in (torch.tensor([-100, 0]), torch.tensor([0, 2])):
        with pytest.raises(FMRLError, match="2 outputs"):
            loop.check(wrong)
        with pytest.raises(FMRLError, match="2 outputs"):
            check_labels(wrong, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_task_by_task_on_cuda_equals_cpu():
    """A branch that depends on data is in no CUDA graph: the meta-iteration is not captured."""
    torch.manual_seed(0)
    net, found = Branching(), []
    for device in ("cpu", "cuda"):
        source = tasks((4,))
        source = Arrays([(source.inputs, source.targets)], batch=BATCH, steps=2, device=device)
        with pytest.warns(RuntimeWarning, match="task by task"):
            found.append(trained(copy.deepcopy(net).double().to(device), source).phi.cpu())
    assert (found[0] - found[1]).abs().max() < 1e-8


def test_same_padding_and_glorot_weights():
    """TensorFlow's convention: an odd pixel is padded below and to the right. Glorot: uniform on
    ±√(6/(fan in + fan out)).
    """
    conv = SameConv2d(1, 1, 3, stride=2)
    with torch.no_grad():
        conv.weight.copy_(torch.arange(9.0).view(1, 1, 3, 3))
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, 0, 0] = 1
    assert conv.pads(4, 4) == (0, 1, 0, 1) and conv.pads(5, 4) == (0, 1, 1, 1)
    assert conv(image).flatten().tolist() == [
        0,
        0,
        0,
        0,
    ]  # the corner meets the first tap; with the pixel above it would be 4
    image[0, 0, 3, 3] = 1
    assert conv(image).flatten().tolist() == [0, 0, 0, 4]
    net = omniglot_net(5, seed=0)
    assert sum(p.numel() for p in net.parameters()) == 112965
    for layer, fans in ((net[0], 9 * (1 + 64)), (net[3], 9 * (64 + 64)), (net[-1], 256 + 5)):
        bound = (6 / fans) ** 0.5
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert (net[-1].bias == 0).all() and all(
        (n.weight == 1).all() and (n.bias == 0).all() for n in net[1:-2:3]
    )
    assert not torch.equal(net[0].weight, omniglot_net(5, seed=1)[0].weight)
    assert torch.equal(net[0].weight, omniglot_net(5, seed=0)[0].weight)
