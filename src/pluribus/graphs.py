"""A network as a graph of operations; a part that cannot be traced stays one operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .layers import GroupedLinear
from .surgery import DROPOUTS, duplicate, state
from .trees import Batch, flatten, map_rows, rows_of, tensors_of


class Unfit(Exception):  # noqa: N818
    """Why a network cannot be written as a graph of operations without side effects."""


class Traced(NamedTuple):
    """What one call does: a graph from the tensors of the batch to the leaves of the output."""

    graph: fx.Graph
    tree: pytree.TreeSpec
    kept: dict[str, str]  # the parts that stay one operation, and why
    sized: bool  # what it does depends on the sizes of the example, but not on how many rows it has


class Holder(nn.Module):
    """Holds the network under one name, so that the network itself may be one operation."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output."""
        return self.module(*args, **kwargs)


def member_trees(module: nn.Module, size: int, own: Collection[str]) -> list[Holder]:
    """One network per member, whose tensors are slices of one copy of `module` or shared: nothing is allocated."""
    base = duplicate(module).requires_grad_(False)
    shared: dict[int, Any] = {id(tensor): tensor for name, tensor in state(base) if name not in own}
    trees = []
    for i in range(size if own else 1):
        memo = dict(shared)
        for name, tensor in state(base):
            if name in own:
                value = tensor.detach()[i]
                memo[id(tensor)] = nn.Parameter(value, False) if isinstance(tensor, nn.Parameter) else value
        trees.append(Holder(deepcopy(base, memo)))
    return trees


def trace(root: Holder, batch: Batch, around: AbstractContextManager[Any]) -> Traced:
    """The graph of one call, without side effects; `Unfit` where there is none."""
    tracer = _Tracer(batch)
    with around, torch.no_grad():
        try:
            graph = tracer.trace(root)
        except Exception as error:
            raise Unfit(_first_line(error)) from error
    if any(node.op == "call_module" and node.target == "module" for node in graph.nodes) and tracer.kept:
        raise Unfit(tracer.kept["module"])
    _without_idle(graph, root)
    _without_side_effects(graph, root)
    without_dead(graph)
    kept = {name.removeprefix("module."): reason for name, reason in tracer.kept.items()}
    return Traced(graph, cast(pytree.TreeSpec, tracer.tree), kept, tracer.sized)


class _Value(fx.Proxy):
    """A value while the code is traced; it knows how many parts it has."""

    def __getattr__(self, k: str) -> Any:
        return _Attribute(self, k)

    def __len__(self) -> int:
        return self.tracer.count(self)  # type: ignore[attr-defined]


class _Attribute(fx.proxy.Attribute):
    def __len__(self) -> int:
        return self.tracer.count(self)  # type: ignore[attr-defined]


class _Buffer(fx.proxy.ParameterProxy):
    """A buffer, whose shape is known; torch has this for parameters alone."""

    def __init__(self, tracer: fx.Tracer, node: fx.Node, name: str, buffer: Tensor):
        fx.Proxy.__init__(self, node, tracer)
        self.param, self.name = cast(nn.Parameter, buffer), name


class _Tracer(fx.Tracer):
    """Traces a network on proxies in place of its tensors; a part that refuses becomes one operation."""

    proxy_buffer_attributes = True

    def __init__(self, batch: Batch):
        super().__init__(param_shapes_constant=True)
        self.batch, self.kept = batch, {}  # type: ignore[var-annotated]
        self.tree: pytree.TreeSpec | None = None
        self.running = False  # a graph, and not the code that is traced
        self.sized = False
        rows = rows_of(batch)
        twice = map_rows(batch, rows, lambda t: torch.cat([t, t]))
        self.values: list[dict[Any, Any]] = [self._places(batch), self._places(twice)]  # of what was looked at

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """The tensors of the batch become placeholders, everything else stays as it is in the example."""
        leaves, tree = flatten(self.batch)
        places = [
            self.create_proxy("placeholder", f"x{i}", (), {}) if isinstance(leaf, Tensor) else leaf
            for i, leaf in enumerate(leaves)
        ]
        args, kwargs = pytree.tree_unflatten(places, tree)

        def run(root: nn.Module) -> list[Any]:
            outputs, self.tree = flatten(root.module(*args, **kwargs))  # type: ignore[operator]
            return outputs

        return run, [self.root]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Torch's layers, ours, and whatever has hooks."""
        adapted = hasattr(type(m), "_made_of") or isinstance(m, GroupedLinear)
        whole = super().is_leaf_module(m, "") and not isinstance(m, OPENED)
        return adapted or bool(m._forward_hooks or m._forward_pre_hooks) or whole

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """As torch does; where it fails, what the part added to the graph is taken back."""
        if self.running:
            return forward(*args, **kwargs)
        last, stack, scope = next(iter(reversed(self.graph.nodes)), None), self.module_stack.copy(), self.scope
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            self.module_stack, self.scope = stack, scope
            self._take_back(last)
            path = self.path_of_module(m)
            self.kept = {name: why for name, why in self.kept.items() if not name.startswith(f"{path}.")}
            self.kept[path] = _first_line(error)
            return self.create_proxy("call_module", path, args, kwargs)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Over the parts that an operation such as `chunk` gives: how many there are is seen on the example."""
        try:
            return super().iter(obj)
        except fx.proxy.TraceError:
            return iter([operator.getitem(cast(Any, obj), i) for i in range(self.count(obj))])

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for the value of a node."""
        return _Value(node, self)

    def count(self, obj: fx.Proxy) -> int:
        """How many parts a value has."""
        value, other = self._seen(obj.node)
        if not isinstance(value, tuple | list) or len(value) != len(other):
            raise fx.proxy.TraceError("the model counts the rows of a tensor")
        self.sized = self.sized or not isinstance(value, torch.Size)
        return len(value)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """What the code asks about sizes is answered by the example, unless the number of rows decides it."""
        if not _is_about_sizes(obj.node):
            return super().to_bool(obj)
        value, other = self._seen(obj.node)
        if bool(value) != bool(other):
            return super().to_bool(obj)
        self.sized = self.sized or _is_about_sizes(obj.node, SIZES)
        return bool(value)

    @staticmethod
    def _places(batch: Batch) -> dict[Any, Any]:
        return {f"x{i}": leaf.clone() for i, leaf in enumerate(flatten(batch)[0]) if isinstance(leaf, Tensor)}

    def _seen(self, node: fx.Node) -> list[Any]:
        """What a node gives for the example, and for the example twice."""
        interpreter = fx.Interpreter(self.root, garbage_collect_values=False, graph=self.graph)
        self.running = True
        try:
            with torch.random.fork_rng(devices=[]):
                for values in self.values:
                    for new in (each for each in self.graph.nodes if each not in values):
                        args, kwargs = fx.map_arg((new.args, new.kwargs), values.__getitem__)
                        place = new.op == "placeholder"
                        values[new] = (
                            values[new.target] if place else getattr(interpreter, new.op)(new.target, args, kwargs)
                        )
            return [values[node] for values in self.values]
        finally:
            self.running = False

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """As torch does, but the tensor itself while a graph runs, and buffers as well as parameters."""
        if self.running:
            return attr_val
        if not isinstance(attr_val, Tensor) or isinstance(attr_val, nn.Parameter):
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        name = next((name for name, buffer in self.root.named_buffers() if buffer is attr_val), None)
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            make = lambda node: _Buffer(self, node, name, attr_val)  # noqa: E731
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {}, proxy_factory_fn=make)
        return parameter_proxy_cache[name]

    def _take_back(self, last: fx.Node | None) -> None:
        for node in reversed(list(self.graph.nodes)):
            if node is last:
                return
            if node.op not in ("get_attr", "placeholder"):  # attributes are remembered
                self.graph.erase_node(node)


def _is_about_sizes(node: fx.Node, names: Collection[str] = ()) -> bool:
    """Whether a node is computed from what tensors know about themselves (by these names), and not from values."""
    if node.target is getattr or node.op == "call_method":
        name = str(node.args[1] if node.target is getattr else node.target)
        return name in (names or KNOWN)
    known = node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "math", "builtins")
    sources = node.all_input_nodes
    if not known or not sources:
        return False
    return (any if names else all)(_is_about_sizes(source, names) for source in sources)


def without_dead(graph: fx.Graph) -> None:
    """Take out what nobody reads."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _without_idle(graph: fx.Graph, root: nn.Module) -> None:
    """Take out what does nothing in eval mode."""
    for node in list(graph.nodes):
        if _is_idle(node, root):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)


def _is_idle(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        module = root.get_submodule(cast(str, node.target))
        hooks = module._forward_hooks or module._forward_pre_hooks
        return not hooks and (type(module) is nn.Identity or (type(module) in DROPOUTS and not module.training))
    return node.op == "call_function" and is_dropout(node) and not draws(node)


def is_dropout(node: fx.Node) -> bool:
    """Whether the node calls dropout as a function."""
    return node.target in DROPS


def draws(node: fx.Node) -> bool:
    """Whether a function draws at random."""
    if node.target in DROPS:
        training = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
        return bool(training)
    if node.target is F.scaled_dot_product_attention:
        return bool(node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.rstrip("_") in RANDOM


def _without_side_effects(graph: fx.Graph, root: nn.Module) -> None:
    """Every operation that changes its input in place becomes one that does not; who reads it later reads the new."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is operator.setitem or node.kwargs.get("out") is not None:
            raise Unfit(f"the model changes a part of a tensor in place ({node})")
        if not _made_pure(node, root):
            continue
        changed = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(changed, fx.Node):
            continue
        if _is_view(changed):
            raise Unfit(f"the model changes a view of a tensor in place ({node})")
        for user in list(changed.users):
            if user is not node and order[user] > order[node]:
                user.replace_input_with(changed, node)


def _made_pure(node: fx.Node, root: nn.Module) -> bool:
    """Whether the node changed its input in place; it does not any more."""
    if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
        node.target = str(node.target).rstrip("_")
        if not hasattr(Tensor, node.target):
            raise Unfit(f"the model changes a tensor in place by {node.target}_")
        return True
    if node.op == "call_function" and node.target in PURE:
        node.target = PURE[node.target]
        return True
    if node.op == "call_module":
        module = root.get_submodule(cast(str, node.target))
        return bool(vars(module).get("inplace", False))
    if node.op == "call_function" and (node.kwargs.get("inplace") or _positional_inplace(node)):
        node.kwargs = {**node.kwargs, "inplace": False}
        if _positional_inplace(node):
            place = INPLACE_AT[cast(Any, node.target)]
            node.kwargs = {k: v for k, v in node.kwargs.items() if k != "inplace"}
            node.args = (*node.args[:place], False, *node.args[place + 1 :])
        return True
    return False


def _positional_inplace(node: fx.Node) -> bool:
    place = INPLACE_AT.get(cast(Any, node.target))
    return place is not None and len(node.args) > place and bool(node.args[place])


def _is_view(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in VIEWS


OPENED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer)
SIZES = ("shape", "size", "numel")
KNOWN = (*SIZES, "ndim", "dim", "dtype", "device", "is_cuda", "is_nested", "is_floating_point")
DROPS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
RANDOM = {
    *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli", "multinomial"),
    *("normal", "poisson", "dropout", "native_dropout", "uniform", "exponential", "rrelu", "gumbel_softmax"),
}
VIEWS = {
    *("getitem", "view", "reshape", "transpose", "permute", "chunk", "split", "flatten", "squeeze", "unsqueeze"),
    *("narrow", "select", "t", "expand", "unbind", "movedim", "unflatten", "view_as", "expand_as", "swapaxes"),
}
PURE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    torch.relu_: torch.relu,
    F.relu_: F.relu,
    F.elu_: F.elu,
    F.leaky_relu_: F.leaky_relu,
    F.hardtanh_: F.hardtanh,
}
INPLACE_AT: dict[Any, int] = {
    **dict.fromkeys((F.relu, F.relu6, F.silu, F.hardswish, F.hardsigmoid, F.mish, F.selu), 1),
    **dict.fromkeys((F.elu, F.leaky_relu, F.celu), 2),
    **dict.fromkeys(DROPS, 3),
}


class Still(TorchFunctionMode):
    """Nothing is dropped: what two networks with dropout compute can be compared."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Dropout gives its input."""
        kwargs = dict(kwargs or {})
        if func in DROPS or func is torch.dropout:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args, kwargs = args[:4] + ((0.0,) + args[5:] if len(args) > 4 else ()), {**kwargs}
            if "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def shapes_of(graph: fx.Graph, root: nn.Module, batch: Batch) -> dict[fx.Node, tuple[int, ...]]:
    """The shape of every tensor of the graph, for this batch."""
    shapes: dict[fx.Node, tuple[int, ...]] = {}

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                shapes[n] = tuple(value.shape)
            return value

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        Noting(root, graph=graph).run(*(tensor.clone() for tensor in tensors_of(batch)))
    return shapes
