"""What we rely on in PyTorch beyond what it promises: after a new release, look here first."""

import copy
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import pluribus as pb
from pluribus._common import torch_operators, torch_private

onednn = pytest.mark.skipif(not torch_private.is_onednn_enabled(), reason="needs oneDNN")
OPTIONS = [1, 1], [2, 2], [1, 1], 2  # padding, stride, dilation, groups


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d])
def test_all_convolutions_have_one_base(kind):
    layer = kind(2, 4, 3)
    assert isinstance(layer, torch_private.ConvNd)
    assert layer.transposed == (kind is nn.ConvTranspose2d)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm2d])
def test_batch_and_instance_normalisation_have_one_base(kind):
    layer = kind(2)
    assert isinstance(layer, torch_private.NormBase)
    layer.reset_running_stats()
    assert hasattr(layer, "num_batches_tracked")
    assert not isinstance(nn.LayerNorm(2), torch_private.NormBase)


def test_a_spectral_norm_fits_a_new_weight():
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))
    parametrization = layer.parametrizations.weight[0]
    weight = torch.randn(4, 5)
    torch_private.estimate_spectral_norm_(parametrization, weight)
    largest = torch.linalg.svdvals(parametrization.eval()(weight))[0]
    torch.testing.assert_close(largest, torch.tensor(1.0), rtol=0.02, atol=0)
    torch_private.estimate_spectral_norm_(nn.Identity(), weight)


@pytest.mark.parametrize(
    "run, operators",
    [
        (lambda x: F.scaled_dot_product_attention(x, x, x), torch_operators.ATTENTION),
        (lambda x: x.half(), (torch_operators.TO_COPY,)),
        (lambda x: F.bilinear(x[0, 0], x[0, 0], torch.zeros(2, 4, 4)), (torch_operators.TRILINEAR,)),
        (lambda x: F.embedding_bag(torch.zeros(1, 2, dtype=torch.long), x[0, 0]), torch_operators.EMBEDDING_BAGS),
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_a_function_becomes_a_private_operator(run, operators, gradients):
    seen = []

    class Watching(torch_operators.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    with Watching():
        run(torch.zeros(1, 2, 3, 4, requires_grad=gradients))
    assert set(seen) & set(operators)


def test_a_backward_pass_is_told_from_a_forward_pass():
    seen = [torch_private.in_backward()]
    x = torch.zeros(2, requires_grad=True)
    x.register_hook(lambda _: seen.append(torch_private.in_backward()))
    x.sum().backward()
    assert [*seen, torch_private.in_backward()] == [False, True, False]


def test_a_slice_is_a_parameter_once_it_is_marked():
    piece = nn.Parameter(torch.zeros(2, 3)).unbind(0)[0]
    assert not isinstance(piece, nn.Parameter)
    torch_private.mark_parameters_([piece])
    assert isinstance(piece, nn.Parameter)


def test_the_hooks_of_a_checkpoint_are_seen_inside_of_it_alone():
    seen = []
    run = lambda x: seen.append(torch_private.checkpoint_hooks()) or 2 * x  # noqa: E731
    torch.utils.checkpoint.checkpoint(run, torch.ones(2, requires_grad=True), use_reentrant=False)
    assert torch_private.checkpoint_hooks() is None is not seen[0]


@onednn
def test_a_reordered_weight_convolves_as_the_plain_one():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 8, 6, 6), torch.randn(16, 4, 3, 3), torch.randn(16)
    expected = F.conv2d(x, weight, bias, stride=2, padding=1, groups=2)
    packed = torch_private.reorder_weight(weight, OPTIONS, x.shape)
    torch.testing.assert_close(torch_private.convolve(x, packed, bias, OPTIONS), expected)
    torch.testing.assert_close(torch_private.convolve(x, packed, bias, OPTIONS, relu=True), expected.relu())
    torch.testing.assert_close(packed.to_dense(), weight)


@onednn
@pytest.mark.parametrize("relu", [False, True])
def test_a_convolution_adds_before_relu(relu):
    torch.manual_seed(0)
    x, weight, added = torch.randn(3, 8, 6, 6), torch.randn(16, 4, 3, 3), torch.randn(3, 16, 3, 3)
    expected = F.conv2d(x, weight, None, stride=2, padding=1, groups=2) + added
    packed = torch_private.reorder_weight(weight, OPTIONS, x.shape)
    made = torch_private.convolve_and_add(x, added, packed, None, OPTIONS, relu)
    torch.testing.assert_close(made, expected.relu() if relu else expected)


def test_onednn_can_be_turned_off():
    before = torch.backends.mkldnn.set_flags(False)
    try:
        assert not torch_private.is_onednn_enabled()
    finally:
        torch.backends.mkldnn.set_flags(before[0])


def test_the_slow_path_of_attention_is_chosen_for_one_thread():
    """The fast path gives zeros in padded positions: with the mode they are not zero."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), 1).eval()
    x, padding = torch.randn(2, 3, 4), torch.tensor([[False, False, False], [False, True, True]])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        assert not encoder(x, src_key_padding_mask=padding)[1, 1:].any()
        with torch_private.SlowPath():
            assert encoder(x, src_key_padding_mask=padding)[1, 1:].any()


def test_all_parts_of_a_module_are_met_once():
    inner = nn.Linear(2, 2)
    module = nn.Sequential(nn.Sequential(inner, nn.ReLU()), inner, nn.ModuleList([nn.Tanh()]))
    module.register_module("missing", None)
    parts = torch_private.parts_of(module)
    assert set(parts) == set(module.modules())
    assert len(parts) == len(set(parts))


def test_transformations_are_counted():
    assert torch_private.transform_level() == 0 and not torch_private.is_watched()

    def keep(x):
        assert torch_private.is_transforming() and torch_private.transform_level() == 1 and torch_private.is_watched()
        return torch.func.grad(lambda y: y * torch_private.transform_level())(x)

    assert torch.func.vmap(keep)(torch.ones(2)).tolist() == [2.0, 2.0]


def test_hooks_for_saved_tensors_are_left_and_only_then():
    packed = []
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        with torch_private.own_saved_tensors():
            (x * x).sum()
        assert not packed
        (x * x).sum()
        assert packed
    with torch_private.own_saved_tensors():
        assert torch.func.grad(lambda y: (y * y).sum())(x).tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_attributes_that_hooks_compute_anew_are_known():
    layer = nn.utils.spectral_norm(nn.utils.weight_norm(nn.Linear(2, 2), "bias", dim=None))
    assert torch_private.recomputed(layer) == {"weight", "bias"}
    assert torch_private.recomputed(nn.Linear(2, 2)) == set()


@pytest.mark.filterwarnings("ignore")  # of torch.compile
def test_a_function_that_is_not_compiled_runs_as_python_and_says_why():
    def outer(x):
        return x * (10 if torch.compiler.is_dynamo_compiling() else 2)

    def whole(x):
        return torch_private.run_uncompiled("a reason", outer, x) + 1

    assert torch.compile(whole, backend="eager")(torch.ones(())) == 3
    with pytest.raises(Exception, match="a reason"):
        torch.compile(lambda x: whole(x), backend="eager", fullgraph=True)(torch.ones(()))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("change", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_weights_that_hooks_make_follow_their_parameters(change):
    layer = change(torch.nn.Linear(6, 6))
    before = layer.weight.detach().clone()
    with torch.no_grad():
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        torch_private.refresh_hooked_weights_(layer)
    computed = layer.weight.detach().clone()
    assert not torch.equal(computed, before)
    layer.eval()(torch.zeros(1, 6))
    torch.testing.assert_close(layer.weight.detach(), computed, rtol=1e-3, atol=1e-4)


# -------------------------------------------------------------------- a torch without these parts


class WithoutC:
    """torch as somebody sees it who finds nothing in `torch._C`."""

    _C = object()

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def torch_without_private_parts(monkeypatch):
    monkeypatch.setattr(torch_private, "torch", WithoutC())
    monkeypatch.setitem(sys.modules, "pluribus._common.torch_operators", None)  # importing it fails
    monkeypatch.delitem(sys.modules, "pluribus.surgery.marks", raising=False)


@pytest.mark.parametrize("method", ["deep", "multihead", "batch_ensemble", "masksembles", "mc_dropout", "packed"])
def test_an_ensemble_runs_without_the_private_parts_of_torch_as_with_them(request, method):
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5 * (method == "mc_dropout")), nn.Linear(8, 3))
    needed = {"example": x} if method in ("masksembles", "packed") else {}
    ensemble = pb.METHODS[method](model, 4, **needed)

    def run(ensemble):
        torch.manual_seed(0)
        loss = ensemble.loss(x, y, nn.functional.cross_entropy)
        loss.backward()
        return [loss, *(p.grad for p in ensemble.parameters()), ensemble.predict(x).members, ensemble.eval()(x)]

    expected = run(copy.deepcopy(ensemble))
    request.getfixturevalue("torch_without_private_parts")
    torch.testing.assert_close(run(ensemble), expected)


@pytest.mark.usefixtures("torch_without_private_parts")
def test_without_its_private_parts_torch_is_asked_in_public_or_not_trusted():
    private, x, seen = torch_private, torch.ones(2), []
    assert not private.is_transforming() and private.transform_level() == 0 and private.is_watched()
    assert private.checkpoint_hooks() != private.checkpoint_hooks() and private.in_backward() != private.in_backward()

    def note(x):
        with private.own_saved_tensors():
            seen.append((private.is_transforming(), private.transform_level()))
        return (x * x).sum()

    torch.func.vmap(note)(x)
    torch.func.vmap(note, randomness="different")(x)
    assert torch.func.grad(note)(x).tolist() == [2.0, 2.0]
    assert seen == [(True, 1)] * 3


def test_importing_what_runs_ensembles_needs_nothing_private():
    code = """
import sys, torch
for name in ("torch.utils._python_dispatch", "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"):
    sys.modules[name] = None
del torch.nn.modules.batchnorm._NormBase, torch.nn.modules.conv._ConvNd, torch._C._functorch, torch._C._autograd
import pluribus as pb, pluribus.core.ensemble, pluribus.uncertainty.evaluation
"""
    subprocess.run([sys.executable, "-c", code], check=True)
