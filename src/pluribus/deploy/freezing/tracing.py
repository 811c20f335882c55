"""A network as a graph of operations; a part that cannot be traced stays one operation.

The code runs once on proxies in place of its tensors (torch.fx), which note what it does. It may ask about sizes:

    y = x.flatten(1) if x.ndim > 2 else x       answered by the example: the number of rows does not matter
    y = x[: len(x) // 2]                        answered nowhere: this part becomes one operation of the graph

What a size is for any number of rows is known from batches of `SAMPLES` rows, run as far as the code has come; the last
has sizes alone and computes nothing. Afterwards, in-place operations become ones without side effects.
"""

from __future__ import annotations

import inspect
import operator
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..._common.torch_operators import fake_tensor_mode
from ..._common.torch_private import has_forward_hooks, pytree
from ..._common.trees import Batch, flatten, tensors_of
from ...methods.adapted_layers import GroupedLinear
from ...methods.method_info import first_line
from ...surgery.copying import replicate
from ...surgery.dropout import DROPOUT_FUNCTIONS, RATES_AND_SWITCHES
from ...surgery.selecting import DROPOUTS
from .call_signature import VALUES, Unfit
from .module_code import torch_type


class Traced(NamedTuple):
    """What one call does: a graph from the tensors of the batch to the leaves of the output."""

    graph: fx.Graph
    tree: pytree.TreeSpec
    kept: dict[str, str]  # the parts that stay one operation, and why
    sized: bool  # what it does depends on the sizes of the example, but not on how many rows it has
    typed: bool  # what it does depends on the types of the example's tensors


class Holder(nn.Module):
    """Holds the network under one name, so that the network itself may be one operation."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output."""
        return self.module(*args, **kwargs)


def trace(root: Holder, batches: Sequence[Batch]) -> Traced:
    """The graph of one call, without side effects; `Unfit` where there is none.

    Args:
        batches: the call with each of `SAMPLES` as its number of rows
    """
    tracer = _Tracer(batches)
    copy = replicate(root)  # modules may keep values that stand for tensors
    with TRACING, torch.no_grad():
        try:
            graph = tracer.trace(copy)
        except Exception as error:
            raise Unfit(first_line(error)) from error
    vars(root).update({name: value for name, value in vars(copy).items() if name not in vars(root)})  # constants
    for name, buffer in copy.named_buffers(recurse=False):
        root.register_buffer(name, buffer)
    if any(node.op == "call_module" and node.target == "module" for node in graph.nodes) and tracer.kept:
        raise Unfit(tracer.kept["module"])
    for node in [node for node in graph.nodes if _is_idle(node, root)]:
        node.replace_all_uses_with(node.all_input_nodes[0])
        graph.erase_node(node)
    _without_side_effects(graph, root)
    without_dead(graph)
    kept = {name.removeprefix("module."): reason for name, reason in tracer.kept.items()}
    return Traced(graph, cast(pytree.TreeSpec, tracer.tree), kept, tracer.sized, tracer.typed)


TRACING = threading.RLock()  # torch.fx puts functions of its own into torch while it traces


class _Counted(fx.Proxy):
    """A value while the code is traced; it knows how many parts it has."""

    def __getattr__(self, k: str) -> Any:
        return _CountedAttribute(self, k)

    def __len__(self) -> int:
        return self.tracer.count(self)  # type: ignore[attr-defined]


class _CountedAttribute(fx.proxy.Attribute):
    __len__ = _Counted.__len__


class _Buffer(fx.proxy.ParameterProxy):
    """A buffer, whose shape is known; torch has this for parameters alone."""

    def __init__(self, tracer: fx.Tracer, node: fx.Node, name: str, buffer: Tensor):
        fx.Proxy.__init__(self, node, tracer)
        self.param, self.name = cast(nn.Parameter, buffer), name


class _Tracer(fx.Tracer):
    """Traces a network on proxies in place of its tensors; a part that refuses becomes one operation."""

    proxy_buffer_attributes = True

    def __init__(self, batches: Sequence[Batch]):
        super().__init__(param_shapes_constant=True)
        self.batch, self.kept = batches[0], {}  # type: ignore[var-annotated]
        self.tree: pytree.TreeSpec | None = None
        self.running = False  # a graph, and not the code that is traced
        self.thread = threading.get_ident()
        self.sized = self.typed = False
        self.shapes_only = fake_tensor_mode(allow_non_fake_inputs=True)
        self.values: list[dict[Any, Any]] = [  # of what was looked at, for each batch
            {f"x{i}": leaf for i, leaf in enumerate(flatten(batch)[0]) if isinstance(leaf, Tensor)} for batch in batches
        ]

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
        return adapted or has_forward_hooks(m) or whole

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """As torch does; where it fails, what the part added to the graph is taken back."""
        if self.is_elsewhere():
            return forward(*args, **kwargs)
        if _looks_at_padding(m, args, kwargs):
            self.kept[path := self.path_of_module(m)] = (
                "torch gives zeros for padding where all of it stands at the end"
            )
            return self.create_proxy("call_module", path, args, kwargs)
        last, stack, scope = next(iter(reversed(self.graph.nodes)), None), self.module_stack.copy(), self.scope
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            self.module_stack, self.scope = stack, scope
            self._take_back(last)
            path = self.path_of_module(m)
            self.kept = {name: why for name, why in self.kept.items() if not name.startswith(f"{path}.")}
            self.kept[path] = first_line(error)
            return self.create_proxy("call_module", path, args, kwargs)

    def is_elsewhere(self) -> bool:
        """Whether a module is called by other code than that which is traced: a graph, or another thread."""
        return self.running or threading.get_ident() != self.thread

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Over the parts that an operation such as `chunk` gives: how many there are is seen on the example."""
        try:
            return super().iter(obj)
        except fx.proxy.TraceError:
            return iter([operator.getitem(cast(Any, obj), i) for i in range(self.count(obj))])

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for the value of a node."""
        return _Counted(node, self)

    def count(self, obj: fx.Proxy) -> int:
        """How many parts a value has."""
        first, *others = self._node_values(obj.node)
        if not isinstance(first, tuple | list) or any(len(other) != len(first) for other in others):
            raise fx.proxy.TraceError("the model's code counts the rows of a tensor")
        self.sized = self.sized or not isinstance(first, torch.Size)
        return len(first)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """What the code asks about sizes is answered by the example, unless the number of rows decides it."""
        if not _is_about_sizes(obj.node):
            return super().to_bool(obj)
        asked = self._by_rows(obj.node)
        first = bool(asked(SAMPLES[0]))
        if any(bool(asked(rows)) != first for rows in ROWS):
            raise fx.proxy.TraceError("the number of rows decides what the model does")
        self.sized = self.sized or _is_about_sizes(obj.node, SIZES)
        self.typed = self.typed or _is_about_sizes(obj.node, TYPES)
        return first

    def _by_rows(self, node: fx.Node) -> Callable[[int], Any]:
        """What a node about sizes gives for any number of rows."""
        if not _is_computed(node):
            return extrapolate(self._node_values(node))
        sources = {source: self._by_rows(source) for source in node.all_input_nodes}

        def give(rows: int) -> Any:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: sources[source](rows))
            return node.target(*args, **kwargs)  # type: ignore[operator]

        return give

    def _node_values(self, node: fx.Node) -> list[Any]:
        """What a node gives for each of the batches; for the last one only its sizes are right."""
        self.running = True
        try:
            with torch.random.fork_rng(devices=[]):
                *small, large = self.values
                for values in small:
                    self._run(values, lambda tensor: tensor.clone())
                with self.shapes_only:
                    self._run(large, self.shapes_only.from_tensor)
            return [values[node] for values in self.values]
        except (RuntimeError, NotImplementedError) as error:
            raise fx.proxy.TraceError(
                f"its sizes cannot be worked out for any number of rows: {first_line(error)}"
            ) from error
        finally:
            self.running = False

    def _run(self, values: dict[Any, Any], take: Callable[[Tensor], Tensor]) -> None:
        """Compute what the nodes give that are new."""
        interpreter = fx.Interpreter(self.root, garbage_collect_values=False, graph=self.graph)
        for new in (each for each in self.graph.nodes if each not in values):
            args, kwargs = fx.map_arg((new.args, new.kwargs), values.__getitem__)
            place = new.op == "placeholder"
            values[new] = take(values[new.target]) if place else getattr(interpreter, new.op)(new.target, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """As torch does, but the tensor itself while a graph runs, and buffers as well as parameters."""
        if self.is_elsewhere():
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


def _looks_at_padding(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether an encoder leaves padding out, which its fast path does after a look at the values of the mask."""
    if not isinstance(module, nn.TransformerEncoder) or module.layers[0].training:
        return False
    padding = kwargs.get("src_key_padding_mask", args[2] if len(args) > 2 else None)
    return padding is not None and getattr(module, "use_nested_tensor", False)


def _is_about_sizes(node: fx.Node, names: Collection[str] = ()) -> bool:
    """Whether a node is computed from what tensors know about themselves (by these names), and not from values."""
    if node.target is getattr or node.op == "call_method":
        name = str(node.args[1] if node.target is getattr else node.target)
        return name in (names or KNOWN)
    if not _is_computed(node) or not node.all_input_nodes:
        return False
    return (any if names else all)(_is_about_sizes(source, names) for source in node.all_input_nodes)


def _is_computed(node: fx.Node) -> bool:
    """Whether a node calls a function of Python, such as a sum or a comparison."""
    module = getattr(node.target, "__module__", "")
    return node.op == "call_function" and node.target is not getattr and module in ("_operator", "math", "builtins")


def extrapolate(seen: Sequence[Any]) -> Callable[[int], Any]:
    """What was seen for `SAMPLES` rows, for any number of rows: sizes that grow with it do so in a line."""
    first, second, *_ = seen
    if all(type(value) is type(first) and value == first for value in seen):
        return lambda rows: first
    if all(isinstance(value, tuple) and len(value) == len(first) for value in seen):
        parts = [extrapolate(column) for column in zip(*seen, strict=True)]
        return lambda rows: torch.Size([part(rows) for part in parts])
    step = second - first if all(type(value) is int for value in seen) else None  # per row: the samples begin with 2, 3
    if step is None or any(value != first + step * (n - SAMPLES[0]) for n, value in zip(SAMPLES, seen, strict=True)):
        raise fx.proxy.TraceError("the model's code uses a number that depends on the number of rows")
    return lambda rows: first + step * (rows - SAMPLES[0])


def without_dead(graph: fx.Graph) -> None:
    """Take out what nobody reads."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def _is_idle(node: fx.Node, root: nn.Module) -> bool:
    """Whether a node does nothing in eval mode."""
    if node.op == "call_module":
        module = root.get_submodule(cast(str, node.target))
        kind = torch_type(module)
        return kind is nn.Identity or (kind in DROPOUTS and not module.training)
    return node.op == "call_function" and node.target in DROPOUT_FUNCTIONS and not draws(node)


def draws(node: fx.Node) -> bool:
    """Whether a function draws at random."""
    if node.target in RATES_AND_SWITCHES:
        return all(argument.of(node.args, node.kwargs) for argument in RATES_AND_SWITCHES[cast(Any, node.target)])
    return _name(node).rstrip("_") in RANDOM


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _without_side_effects(graph: fx.Graph, root: nn.Module) -> None:
    """Every operation that changes its input in place becomes one that does not; who reads it later reads the new."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is operator.setitem or node.kwargs.get("out") is not None:
            raise Unfit(f"the model changes a part of a tensor in place ({node})")
        if not _make_pure_(node, root):
            continue
        changed = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(changed, fx.Node):
            continue
        if changed.op in ("call_function", "call_method") and _name(changed) in VIEWS:
            raise Unfit(f"the model changes a view of a tensor in place ({node})")
        for user in list(changed.users):
            if user is not node and order[user] > order[node]:
                user.replace_input_with(changed, node)


def _make_pure_(node: fx.Node, root: nn.Module) -> bool:
    """Whether the node changed its input in place; it does not any more."""
    if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
        node.target = str(node.target).rstrip("_")
        if not hasattr(Tensor, node.target):
            raise Unfit(f"the model changes a tensor in place by {node.target}_")
        return True
    if node.op == "call_module":
        return bool(vars(root.get_submodule(cast(str, node.target))).get("inplace", False))
    if node.op != "call_function":
        return False
    if node.target in PURE:
        node.target = PURE[node.target]
        return True
    if getattr(node.target, "__module__", "") != F.__name__:
        return False
    given = inspect.signature(cast(Any, node.target)).bind(*node.args, **node.kwargs)
    if not given.arguments.get("inplace"):
        return False
    given.arguments["inplace"] = False
    node.args, node.kwargs = given.args, given.kwargs
    return True


OPENED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder, nn.TransformerDecoderLayer)

SIZES = ("shape", "size", "numel")

TYPES = ("dtype", "device", "is_cuda", "is_floating_point")

KNOWN = (*SIZES, *TYPES, "ndim", "dim", "is_nested")

SAMPLES = (2, 3, 5, 8191)  # rows of the batches on which sizes are seen, on the last without computing anything

ROWS = (*range(1, 65), *(2**k + more for k in range(7, 21) for more in (-1, 0, 1)))  # for which questions are asked

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


def shapes_of(graph: fx.Graph, root: nn.Module, batch: Batch) -> dict[fx.Node, tuple[int, ...]]:
    """The shape of every tensor of the graph, for this batch; nodes that give a plain value are marked as such."""
    shapes: dict[fx.Node, tuple[int, ...]] = {}

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                shapes[n] = tuple(value.shape)
            n.meta["plain"] = isinstance(value, VALUES)
            return value

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            Noting(root, graph=graph).run(*(tensor.clone() for tensor in tensors_of(batch)))
        except Exception as error:  # what was traced is not what the code does
            raise Unfit(first_line(error)) from error
    return shapes
