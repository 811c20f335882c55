"""A model run with unknown sizes: PyTorch's own shape checks become equations between them.

Every size of a tensor and every integer attribute of a module becomes a symbol; the model runs on fake tensors
(shapes without memory); whenever PyTorch or the model asks whether two sizes agree, the answer is the one of the
original model and the question is noted as an equation.

    Linear(8, 64) then Linear(64, 3)      weights (a, b) and (c, d), with a=64, b=8, c=3, d=64
    x @ weight.T                          "is 8 the same as b?"  yes; noted: b = 8, the input stays
    the second layer                      "is a the same as d?"  yes; noted: a = d, one symbol for both
    the output                            c is never asked about a hidden width: it is the number of classes

| class | what it does |
|---|---|
| `SizeNode` | what a symbolic integer holds: a term, and its value in the original model |
| `EquationRecorder` | is asked by PyTorch for values, answers with the original's, and notes the question |
| `SizeObserver` | sees every operator: fixes what is indexed, notes what weights contract and make |
| `ShapeRules` | states the shapes of operations that take plain integers only, or are slow |

It rests on private parts of PyTorch (`_common.torch_symbolic`): import it late, and expect it to fail.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import sympy
import torch
import torch.nn.functional as F
from torch import SymInt, Tensor, nn
from torch.overrides import TorchFunctionMode

from ..._common.torch_operators import ATTENTION, EMBEDDING_BAGS, TO_COPY, TorchDispatchMode, fake_tensor_mode
from ..._common.torch_private import ConvNd, view_base
from ..._common.torch_symbolic import (
    ShapeEnv,
    SymNode,
    check,
    enable_python_dispatcher,
    magic_methods,
    method_to_operator,
    sizes_strides_methods,
)
from ..selecting import dotted_name
from .attributes import GEOMETRY, Holder, holders, leaves_with_paths, named_tensors, size_attributes
from .polynomials import Operation, Term, Terms, add, constant_term, is_constant
from .shape_runs import Rankings, RunError, make_fake, run_fake
from .solver import SizeTrace, Use, find_roots

aten = torch.ops.aten


def trace_sizes(
    model: nn.Module, example: Any, modes: Iterable[bool], plain: set[str], plain_parts: bool = False
) -> SizeTrace:
    """Run the model with unknown sizes and note the equations.

    Args:
        plain: names of modules whose attributes stay plain integers.
        plain_parts: whether the attributes of configurations stay plain integers.
    """
    recorder = EquationRecorder()
    trace = recorder.trace
    mode = fake_tensor_mode(shape_env=recorder, allow_non_fake_inputs=True)
    mode.cache_enabled = False
    unknown = {name: recorder.lift(tuple(t.shape)) for name, t in named_tensors(model).items()}
    trace.sizes = {name: tuple(map(_term, sizes)) for name, sizes in unknown.items()}
    trace.terms.measured = set(range(len(trace.terms.atoms)))
    _, fake = make_fake(model, example, unknown, mode)
    names = {id(tensor): name for name, tensor in named_tensors(fake).items()}
    _lift_attributes(fake, model, recorder, unknown, plain, plain_parts)
    for training in modes:
        try:
            observer = SizeObserver(recorder, names, dict(model.named_parameters()))
            run_fake(
                fake,
                example,
                mode,
                training,
                recorder.stack,
                (enable_python_dispatcher(), observer, ShapeRules(observer)),
            )
        except Exception as cause:
            raise RunError(recorder.stack[-1], cause) from cause
    return trace


class SizeNode(SymNode):
    """What a symbolic integer holds: a term, and its value in the original model."""

    def __init__(self, recorder: EquationRecorder, term: Term, hint: Any):
        atoms = [atom for monomial, _ in term for atom in monomial]
        if any(atom in recorder.terms.solved for atom in atoms):
            term = recorder.terms.rewrite(term)
        self.recorder, self.term, self._hint = recorder, term, hint
        self.shape_env = recorder
        self.pytype, self.fx_node = type(hint), None
        self.constant = hint if not atoms or is_constant(term) else None
        self._expr = recorder.name(term) if self.constant is None else sympy.sympify(hint)

    @property
    def expr(self) -> Any:
        """The name under which PyTorch knows the term."""
        return self._expr

    def wrap(self, value: Any) -> SizeNode:
        """A number as a node."""
        return SizeNode(self.recorder, constant_term(value), value)

    wrap_int = wrap_float = wrap_bool = wrap  # type: ignore[assignment]

    def sym_sum(self, args: list[Any]) -> Any:
        """The sum of some nodes."""
        return functools.reduce(lambda total, node: total.add(node), args)


def _operation(method: str) -> Callable[..., SizeNode]:
    operator = method_to_operator(method)

    def apply(self: SizeNode, *others: SizeNode | None) -> SizeNode:
        nodes = [self, *(node for node in others if node is not None)]
        term = self.recorder.terms.apply(method, tuple(node.term for node in nodes))
        return SizeNode(self.recorder, term, operator(*(node.hint for node in nodes)))

    return apply


def _layout(method: str, rule: Callable[..., Any]) -> Callable[..., SizeNode]:
    def apply(self: SizeNode, sizes: list[SizeNode], strides: list[SizeNode]) -> SizeNode:
        # How a tensor lies in memory is no equation between widths.
        numbers = ([sympy.Integer(node.hint) for node in nodes] for nodes in (sizes, strides))
        answer = rule(*numbers)
        return self.wrap(int(answer) if "indicator" in method else bool(answer))

    return apply


for _method in magic_methods:
    setattr(SizeNode, f"_{_method}_" if _method in ("and", "or") else f"_{_method}", _operation(_method))

for _method, _rule in sizes_strides_methods.items():
    setattr(SizeNode, f"_{_method}", _layout(_method, _rule))


class EquationRecorder(ShapeEnv):
    """Answers every question about a size by its value in the original model, and notes the equations."""

    def __init__(self) -> None:
        super().__init__(duck_shape=False)
        self.stack = [""]  # names of the running modules
        self.terms = Terms(method_to_operator, lambda: self.stack[-1])
        self.trace = SizeTrace(self.terms)
        self.names: dict[Term, sympy.Symbol] = {}

    def name(self, term: Term) -> sympy.Symbol:
        """The name under which PyTorch knows a term."""
        if term not in self.names:
            self.names[term] = sympy.Symbol(f"s{len(self.names)}", positive=True, integer=True)
        return self.names[term]

    def lift(self, value: Any) -> Any:
        """The value with its integers, at any depth, replaced by new symbols."""
        if type(value) is int and value > 1:
            return SymInt(SizeNode(self, self.terms.symbol(value), value))
        if type(value) in (tuple, list):
            return type(value)(map(self.lift, value))
        if type(value) is dict and all(type(key) in (str, int) for key in value):
            return {key: self.lift(inner) for key, inner in value.items()}
        return value

    def note(self, term: Term, value: Any) -> None:
        """Take note that a term has a value, as far as that is an equation between sizes."""
        if type(value) is int:
            self.terms.equate(add(term, constant_term(value), -1))
        elif type(value) is bool and len(term) == 1 and len(term[0][0]) == 1:
            atom = self.terms.atoms[term[0][0][0]]
            if isinstance(atom, Operation):
                self._note_answer(atom, value)

    def _note_answer(self, question: Operation, answer: bool) -> None:
        case = question.method, answer
        if case in (("eq", True), ("ne", False)):
            self.terms.equate(self.terms.apply("sub", question.arguments))
        elif case in (("and", True), ("or", False)):
            for argument in question.arguments:
                self.note(argument, answer)
        elif question.method == "sym_not":
            self.note(question.arguments[0], not answer)

    def evaluate_sym_node(self, node: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """The value of a node in the original model."""
        self.note(node.term, node.hint)
        return sympy.sympify(node.hint)

    def guard_or_defer_runtime_assert(self, *args: Any, **kwargs: Any) -> bool:  # type: ignore[override]
        """Nothing is deferred: every value is known."""
        return True

    def _maybe_evaluate_static(self, expr: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return expr if expr.is_number or expr in (sympy.true, sympy.false) else None


class SizeObserver(TorchDispatchMode):
    """Fixes what is indexed (rows of a table, extent of a kernel) and notes what weights contract and make."""

    INDEXED = (aten.embedding, *EMBEDDING_BAGS, aten.index_select, aten.gather, aten.select, aten.scatter)
    PRODUCTS = {aten.mm: 1, aten.addmm: 2}  # the position of the second factor
    COPIES = (aten.clone, TO_COPY)

    def __init__(self, recorder: EquationRecorder, names: Mapping[int, str], parameters: Collection[str]):
        super().__init__()
        self.recorder, self.trace, self.parameters = recorder, recorder.trace, parameters
        self.names: dict[int, str | None] = dict(names)  # by identity: the model's tensors and copies of them
        self.copies: list[Any] = []
        self.rankings = Rankings(lambda size: self.trace.ranked.add(int(size)))  # asking for its value fixes it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what the operation says about sizes, and run it."""
        operation = func.overloadpacket
        self.rankings.look_at_inputs(args)
        if operation in self.PRODUCTS:
            self.product(args[self.PRODUCTS[operation]])
        elif operation is aten.convolution:
            self._convolution(*args)
        elif operation in (aten.bmm, aten.baddbmm):
            self._batched_product([a for a in args if isinstance(a, Tensor)][-2:])
        elif operation in ATTENTION:
            self.trace.counts |= {_term(n) for n in args[0].shape[:-2] if isinstance(n, SymInt)}
            self._root(args[0].shape[-1])
        else:
            for size in self._indexed_sizes(operation, args):
                int(size)  # asking for its value fixes it
        result = func(*args, **(kwargs or {}))
        if operation in self.COPIES and self._owner(args[0]) is not None:
            self.names[id(result)] = self._owner(args[0])
            self.copies.append(result)  # an identity lasts as long as the object
        self.rankings.note(func, args, kwargs or {}, result)
        return result

    def product(self, weight: Tensor) -> None:
        """Note the widths of a matrix, inputs first."""
        inputs, outputs = weight.shape
        self.trace.contracted.add(_term(inputs))
        self._width(inputs, weight, is_input=True)
        self._width(outputs, weight, is_input=False)

    def _convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> None:
        transposed, groups = rest[3], rest[5]
        for size in weight.shape[2:]:
            int(size)
        self.group(groups)
        inputs, outputs = weight.shape[:2] if transposed else weight.shape[1::-1]
        made = outputs * groups if transposed else outputs
        check(weight.shape[0] % groups == 0)  # of 1D convolutions, older releases of torch ask neither this
        _check_sizes([bias], (made,))  # nor that
        self.trace.contracted.add(_term(inputs))
        self._width(x.shape[1], weight, is_input=True)
        self._width(made, weight, is_input=False)

    def group(self, groups: Any) -> None:
        """Note that a size is a number of groups."""
        if isinstance(groups, SymInt):
            self.trace.groups.add(_term(groups))

    def _batched_product(self, factors: list[Tensor]) -> None:
        self._root(factors[0].shape[2])
        for factor in factors:
            owner = self._owner(factor)
            if owner is None:
                self.trace.counts.add(_term(factor.shape[0]))
            else:  # a stack of weights: as many as there are; or a table of data
                for size in factor.shape[: 1 if owner in self.parameters else 3]:
                    int(size)
                self._width(factor.shape[1], factor, is_input=True)
                self._width(factor.shape[2], factor, is_input=False)

    def _width(self, size: Any, weight: Tensor, is_input: bool) -> None:
        term, running = _term(size), self.recorder.stack[-1]
        if isinstance(size, SymInt):
            self.trace.widths.setdefault(term, running)
        owner = self._owner(weight)
        layer = running if owner is None else owner.rpartition(".")[0]
        self.trace.uses[Use(term, layer, running, is_input)] = None

    def _owner(self, tensor: Tensor) -> str | None:
        """The name of the model's tensor that this one is a view of."""
        return self.names.get(id(view_base(tensor)))

    def _indexed_sizes(self, operation: Any, args: Any) -> list[Any]:
        if operation in self.INDEXED and args[0].ndim:
            return [args[0].shape[args[1] if isinstance(args[1], int) else 0]]
        if operation in (aten.index, aten.index_put, aten.index_put_):
            return [n for n, i in zip(args[0].shape, args[1], strict=False) if i is not None]
        if operation is aten.slice:
            dim, start, end, step = args[1:] + (0, None, None, 1)[len(args) - 1 :]
            size = args[0].shape[dim]
            for bound in (start, end):
                if isinstance(bound, SymInt) and isinstance(size, SymInt) and 0 < bound.node.hint < size.node.hint:
                    self.trace.cuts.setdefault(bound.node.term, size.node.term)
            if isinstance(end, SymInt) and end.node.hint == _hint(size):  # a cut that takes all shall take all
                check(end == size)
            if (type(end) is int and end < size) or (type(start) is int and start and step == 1):
                return [size]
        return []

    def _root(self, size: Any) -> None:
        """Note a size over which attention sums, if the module holds a float that is its root."""
        seen = self.trace.roots.get(self.recorder.stack[-1], {})
        if isinstance(size, SymInt) and size.node.hint in seen:
            seen[size.node.hint].add(size.node.term)


class ShapeRules(TorchFunctionMode):
    """The shapes of operations that take plain integers, walk through time or are slow, stated in symbols."""

    def __init__(self, observer: SizeObserver):
        super().__init__()
        self.observer = observer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the rule for the function if there is one, else the function."""
        kwargs = kwargs or {}
        if func in NORMS:
            if NORMS[func] is _group_norm:
                self.observer.group(args[1] if len(args) > 1 else kwargs["num_groups"])
            return NORMS[func](*args, **kwargs)
        if func in POINTWISE and isinstance(args[0], Tensor) and "dtype" not in kwargs:
            return args[0]
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func in CELLS:
            return _cell(CELLS[func], *args)
        if func in RECURRENT and type(args[3]) is bool:  # otherwise a packed sequence
            return _recurrent(RECURRENT[func], *args)
        return func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.ndim != 2:
            return F.linear(input, weight, bias)
        self.observer.product(weight.T)
        check(input.shape[-1] == weight.shape[1])
        _check_sizes([bias], weight.shape[:1])
        return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _batch_norm(input: Tensor, *statistics: Any, **named: Any) -> Tensor:
    _check_sizes([*statistics, *named.values()], (input.shape[1],))
    return input


def _layer_norm(input: Tensor, normalized_shape: Any, *rest: Any, **named: Any) -> Tensor:
    shape = tuple(normalized_shape)
    _check_sizes([*rest, *named.values()], shape)
    for n, m in zip(input.shape[-len(shape) :], shape, strict=True):
        check(n == m)
    return input.contiguous()


def _group_norm(input: Tensor, num_groups: int, *rest: Any, **named: Any) -> Tensor:
    check(input.shape[1] % num_groups == 0)
    _check_sizes([*rest, *named.values()], (input.shape[1],))
    return input.contiguous()


def _check_sizes(values: Iterable[Any], shape: tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            for n, m in zip(value.shape, shape, strict=True):
                check(n == m)


def _cell(gates: int, x: Tensor, state: Any, w: Tensor, u: Tensor, b: Any = None, c: Any = None) -> Any:
    states = state if isinstance(state, (tuple, list)) else (state,)
    y = (F.linear(x, w, b) + F.linear(states[0], u, c)).chunk(gates, -1)[0] + states[-1]
    return (y, y) if len(states) > 1 else y


def _recurrent(
    gates: int, x: Tensor, state: Any, weights: list[Tensor], biases: bool, layers: int, *options: Any
) -> Any:
    _, _, both, batch_first = options  # dropout, training, bidirectional, batch_first
    states = state if isinstance(state, (tuple, list)) else (state,)
    directions = 1 + both
    per_cell = len(weights) // (layers * directions)
    for layer in range(layers):
        outputs = []
        for i in range(layer * directions, (layer + 1) * directions):
            own = weights[i * per_cell :][:per_cell]
            begin = [s[i].unsqueeze(int(batch_first)) for s in states]
            y = _cell(gates, x, begin, *own[:2], *(own[2:4] if biases else ()))
            y = y[0] if len(begin) > 1 else y
            outputs.append(F.linear(y, own[-1]) if per_cell % 2 else y)  # an LSTM with projections
        x = torch.cat(outputs, -1)
    return x, *states


NORMS: dict[Any, Callable[..., Tensor]] = {
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    torch.batch_norm: _batch_norm,
    torch.layer_norm: _layer_norm,
    torch.group_norm: _group_norm,
}

POINTWISE = {
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.hardtanh),
    *(F.dropout, F.softmax, torch.relu, torch.sigmoid, torch.tanh, torch.softmax, Tensor.sigmoid, Tensor.softmax),
}

CELLS = {torch.lstm_cell: 4, torch.gru_cell: 3, torch.rnn_tanh_cell: 1, torch.rnn_relu_cell: 1}

RECURRENT = {torch.lstm: 4, torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 1}


def _known_sizes(
    module: nn.Module, path: str, recorder: EquationRecorder, unknown: Mapping[str, Any]
) -> dict[str, Any]:
    """The attributes of a known layer that state sizes of its own tensors."""
    found = {}
    for key, tensor, dim in size_attributes(module):
        size = unknown.get(dotted_name(path, tensor), ())[dim : dim + 1]
        if size and _hint(size[0]) == getattr(module, key):
            found[key] = size[0]
    weight = unknown.get(dotted_name(path, "weight"), ())
    if isinstance(module, ConvNd) and len(weight) > 1:
        found["groups"] = recorder.lift(module.groups)
        found["out_channels" if module.transposed else "in_channels"] = weight[1] * found["groups"]
    if isinstance(module, nn.LayerNorm) and tuple(map(_hint, weight)) == module.normalized_shape:
        found["normalized_shape"] = weight
    if isinstance(module, nn.MultiheadAttention) and "embed_dim" in found:
        found["num_heads"] = recorder.lift(module.num_heads)
        found["head_dim"] = found["embed_dim"] // found["num_heads"]
    return found


def _lift_attributes(
    fake: nn.Module,
    model: nn.Module,
    recorder: EquationRecorder,
    unknown: Mapping[str, Any],
    plain: set[str],
    plain_parts: bool,
) -> None:
    """Replace the integers in the attributes of the modules of a copy by symbols."""
    base, originals = set(nn.Module().__dict__), holders(model)
    for holder, attributes in holders(fake).items():
        path, part = holder
        for size in find_roots(attributes).values():
            recorder.trace.roots.setdefault(path, {})[size] = set()
        if path in plain or (part and plain_parts) or attributes is originals.get(holder):
            continue
        known = {} if part else _known_sizes(fake.get_submodule(path), path, recorder, unknown)
        for key, value in list(attributes.items()):
            if key not in base and key not in GEOMETRY:
                new = known[key] if key in known else recorder.lift(value)
                _set_attribute(attributes, holder, key, new, recorder.trace)


def _set_attribute(attributes: dict[str, Any], holder: Holder, key: str, new: Any, trace: SizeTrace) -> None:
    unknown = {(key, *path): leaf for path, leaf in leaves_with_paths(new) if isinstance(leaf, SymInt)}
    if unknown:
        attributes[key] = new
        trace.attributes |= {(holder, path): _term(leaf) for path, leaf in unknown.items()}


def _term(size: Any) -> Term:
    return size.node.term if isinstance(size, SymInt) else constant_term(int(size))


def _hint(size: Any) -> int:
    return size.node.hint if isinstance(size, SymInt) else size
