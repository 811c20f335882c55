"""What we rely on in PyTorch beyond what it promises: after a new release, look here first."""

import copy
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import sympy
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import pluribus as pb
from pluribus._common import torch_operators, torch_private, torch_symbolic
from pluribus._common.torch_private import pytree

onednn = pytest.mark.skipif(not torch_private.is_onednn_enabled(), reason="needs oneDNN")
OPTIONS = [1, 1], [2, 2], [1, 1], 2  # padding, stride, dilation, groups


def test_a_tree_is_flattened_and_put_together_again():
    tree = {"a": [1, (2, None)], "b": 3}
    leaves, structure = pytree.tree_flatten(tree)
    assert leaves == [1, 2, None, 3]
    assert structure.num_leaves == 4
    assert pytree.tree_unflatten(leaves, structure) == tree
    assert pytree.tree_leaves(tree) == leaves
    assert pytree.tree_map(lambda x, y: (x, y), [1, [2]], [3, [4]]) == [(1, 3), [(2, 4)]]


def test_the_leaves_of_a_tree_have_paths_of_keys_and_indices():
    (path, leaf), *_ = pytree.tree_flatten_with_path({"a": [5]})[0]
    assert leaf == 5
    assert [getattr(key, "key", getattr(key, "idx", None)) for key in path] == ["a", 0]


def test_structures_of_trees_can_be_compared():
    assert pytree.tree_flatten([1, 2])[1] == pytree.tree_flatten([3, 4])[1] != pytree.tree_flatten((1, 2))[1]


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


def test_what_a_module_holds_itself_stands_in_three_tables():
    module = nn.BatchNorm1d(2)
    module.inner, module.empty = nn.Linear(2, 2), None
    module.register_module("missing", None)
    ((parameters, buffers, children),) = held = torch_private.tables(module)
    assert isinstance(held[0], torch_private.Tables)
    assert set(parameters) == {"weight", "bias"}
    assert set(buffers) == {"running_mean", "running_var", "num_batches_tracked"}
    assert children == {"inner": module.inner, "missing": None}
    parameters["bias"], children["inner"] = None, nn.Identity()
    assert module.bias is None
    assert isinstance(module.inner, nn.Identity)
    assert {"eps", "training", "empty"} <= torch_private.plain_attributes(module).keys()
    assert not [v for v in torch_private.plain_attributes(module).values() if isinstance(v, dict) and v]
    found = torch_private.attributes_of_parts(nn.Sequential(module))
    inside = {key: value for path, part, key, value in found if part is module and path == "0"}
    assert inside == torch_private.plain_attributes(module) and ("", "training") in {(p, key) for p, _, key, _ in found}


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_a_module_are_seen(kind):
    module = nn.Identity()
    assert not torch_private.has_forward_hooks(module)
    hook = getattr(module, kind)(lambda *_: None)
    assert torch_private.has_forward_hooks(module)
    hook.remove()
    assert not torch_private.has_forward_hooks(module)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, on its first use
def test_a_compiled_module_is_unwrapped():
    module = nn.Linear(2, 2)
    assert torch_private.unwrap_compiled(torch.compile(module)) is module
    assert torch_private.unwrap_compiled(module) is module


def test_a_spectral_norm_fits_a_new_weight():
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))
    parametrization = layer.parametrizations.weight[0]
    weight = torch.randn(4, 5)
    torch_private.estimate_spectral_norm_(parametrization, weight)
    largest = torch.linalg.svdvals(parametrization.eval()(weight))[0]
    torch.testing.assert_close(largest, torch.tensor(1.0), rtol=0.02, atol=0)
    torch_private.estimate_spectral_norm_(nn.Identity(), weight)


def test_a_convolution_states_its_padding_twice():
    assert getattr(nn.Conv2d(1, 1, 3, padding=(1, 2)), torch_private.PADDING_ATTRIBUTE) == (2, 2, 1, 1)


def test_a_view_knows_what_it_is_a_view_of():
    x = torch.zeros(4, 4)
    assert torch_private.view_base(x[1:].T) is x
    assert torch_private.view_base(x) is x
    assert torch_private.view_base(y := x.clone()) is y


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


def test_a_mode_that_watches_operators_is_noticed():
    class Watching(torch_operators.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    assert not torch_private.is_dispatch_watched()
    with Watching():
        assert torch_private.is_dispatch_watched()
        torch.zeros(2) + 1
    assert torch.ops.aten.add.Tensor in seen


def test_operators_that_change_something_or_draw_are_not_pure():
    def run(x):
        y = torch.rand_like(x) + x
        return y.mul_(2)

    graph = make_fx(run)(torch.zeros(2)).graph
    pure = {node.target for node in graph.nodes if torch_operators.is_pure_operator(node.target)}
    assert pure == {torch.ops.aten.add.Tensor}


def test_tensors_that_share_memory_have_the_same_storage():
    x = torch.zeros(4)
    key = torch_private.storage_key(x.untyped_storage())
    assert key == torch_private.storage_key(x[2:].untyped_storage())
    assert key != torch_private.storage_key(x.clone().untyped_storage())
    assert (
        torch_private.tensor_memory(x) == torch_private.tensor_memory(x[2:]) != torch_private.tensor_memory(x.clone())
    )


def test_parts_with_hooks_or_a_forward_of_their_own_are_known():
    hooked, own, plain = nn.Identity(), nn.Identity(), nn.Identity()
    hooked.register_forward_hook(lambda *_: None)
    own.forward = lambda x: x
    assert torch_private.parts_with_hooks([hooked, own, plain]) == {hooked, own}


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


def test_fake_tensors_have_shapes_and_no_memory():
    with torch_operators.fake_tensor_mode(allow_non_fake_inputs=True) as mode:
        y = nn.Linear(3, 10**9)(torch.zeros(2, 3))
    assert y.shape == (2, 10**9)
    assert mode.from_tensor(torch.zeros(5), static_shapes=True).shape == (5,)


def test_a_function_can_be_kept_from_the_compiler():
    seen = []

    def look():
        seen.append(torch.compiler.is_compiling())

    def run(x):
        torch_private.run_uncompiled("a reason", look)
        return x + 1

    torch.compile(run, backend="eager")(torch.zeros(2))
    assert seen == [False]


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


def test_a_question_about_a_symbolic_size_ends_in_the_shape_environment():
    asked = []

    class Environment(torch_symbolic.ShapeEnv):
        def evaluate_sym_node(self, node, *args, **kwargs):
            asked.append(str(node.expr))
            return sympy.true

    environment = Environment(duck_shape=False)
    symbol = sympy.Symbol("s0", positive=True, integer=True)
    size = torch.SymInt(torch_symbolic.SymNode(symbol, environment, int, 5))
    with torch_operators.fake_tensor_mode(shape_env=environment), torch_symbolic.enable_python_dispatcher():
        rows = torch.empty((size, 7)).T.shape[1]
        asked.clear()
        torch_symbolic.check(rows == 5)
    assert rows.node.hint == 5
    assert asked == ["Eq(s0, 5)"]


def test_the_methods_of_symbolic_sizes_are_listed_with_their_operators():
    methods = torch_symbolic.magic_methods
    assert {"add", "sub", "mul", "mod", "eq", "ne", "lt", "and", "or", "sym_not"} <= set(methods)
    assert torch_symbolic.method_to_operator("add")(2, 3) == 5
    assert all(hasattr(torch_symbolic.SymNode, name) for name in ("wrap_int", "wrap_bool", "wrap_float", "sym_sum"))
    assert "is_contiguous" in torch_symbolic.sizes_strides_methods


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


def test_cached_parametrizations_can_be_forgotten():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert not torch_private.is_parametrization_cached()
    with nn.utils.parametrize.cached():
        assert torch_private.is_parametrization_cached()
        before = layer.weight
        assert layer.weight is before
        torch_private.clear_parametrization_cache()
        assert layer.weight is not before


class Counting(torch_operators.OperatorMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, torch_operators.named_arguments(func, args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_operators_with_their_arguments_by_name():
    with Counting() as mode:
        torch.ones(2).add_(torch.ones(2)).sum(0, keepdim=True)
    (added, other), (summed, arguments) = mode.seen[-2:]
    assert [torch_operators.changes_inputs(operator) for operator in (added, summed)] == [True, False]
    assert set(other) >= {"self", "other", "alpha"} and other["alpha"] == 1  # its default
    assert arguments["dim"] == [0] and arguments["keepdim"] is True


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


def test_a_plain_product_is_torchs_own_linear_layer_or_convolution():
    class OwnForward(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class OwnPart(torch.nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return 2 * super()._conv_forward(x, weight, bias)

    class OwnNothing(torch.nn.Conv2d):
        pass

    plain = [torch.nn.Linear(4, 2), torch.nn.Conv1d(4, 2, 3), OwnNothing(4, 2, 3)]
    other = [OwnForward(4, 2), OwnPart(4, 2, 3), torch.nn.Conv2d(4, 2, 3, groups=2), torch.nn.ConvTranspose2d(4, 2, 3)]
    assert [torch_private.is_plain_product(layer, layer.forward) for layer in plain] == [True] * 3
    assert [torch_private.is_plain_product(layer, layer.forward) for layer in other] == [False] * 4


def test_a_convolution_runs_with_another_weight():
    layer, x = torch.nn.Conv2d(4, 2, 3, 2, padding=1, padding_mode="reflect"), torch.randn(3, 4, 6, 6)
    other = torch.nn.Conv2d(4, 2, 3, 2, padding=1, padding_mode="reflect")
    other.bias = layer.bias
    torch.testing.assert_close(torch_private.convolve_as(layer, x, other.weight), other(x))


@pytest.mark.parametrize("module", [torch_private, torch_operators, torch_symbolic])
def test_there_is_a_test_of_everything_private(module):
    """Every name is used in this file or the one beside it, in the code of a test."""
    names = [
        name for name in vars(module) if not name.startswith("_") and name not in ("annotations", "nn", "TYPE_CHECKING")
    ]
    ours = [name for name in names if name in getattr(module, "__all__", ()) or defined_in(module, name)]
    code = "".join(path.read_text() for path in Path(__file__).parent.glob("test_torch_private*.py"))
    used = set(re.findall(rf"{module.__name__.rpartition('.')[2]}(?:\.| import )(\w+)", code))
    assert [name for name in ours if name not in used] == []


def defined_in(module, name):
    value = getattr(module, name)
    return getattr(value, "__module__", "").startswith("pluribus") or name.isupper()


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
