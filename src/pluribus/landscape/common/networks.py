"""Networks of one architecture as rows of numbers, whatever holds them: a module, a list, an Ensemble, a Trajectory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.ensemble import Ensemble
from ...methods.building import check_model
from ...surgery.copying import assign_, duplicate, state

CHUNK = 2**22  # numbers taken into double precision at once
Buffers = dict[str, Tensor]


class Layout:
    """Where each parameter of a model lies in its weight vector; complex numbers are two real ones."""

    def __init__(self, model: nn.Module):
        named = [(n, p) for n, p in model.named_parameters() if p.is_floating_point() or p.is_complex()]
        self.names = [name for name, _ in named]
        self.shapes = {name: tuple(real(p.detach()).shape) for name, p in named}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.length = sum(self.sizes)
        wide = any(real(p.detach()).dtype == torch.float64 for _, p in named)
        self.dtype = torch.float64 if wide else torch.float32
        trainable = [p.requires_grad for _, p in named]
        self.moves = trainable if any(trainable) else [True] * len(named)  # what samplers and optimisers may change

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The parameters of one network in a row, (parameters), on the CPU."""
        parts = [real(tensors[name].detach()).to("cpu", self.dtype).reshape(-1) for name in self.names]
        return torch.cat(parts) if parts else torch.zeros(0)

    def pieces(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name and its piece of the vector, in its shape."""
        for name, part in zip(self.names, vector.split(self.sizes), strict=True):
            yield name, part.reshape(self.shapes[name])

    def mask(self) -> Tensor:
        """Which entries of the vector may be changed: those of frozen parameters may not."""
        parts = [torch.full((size,), moves) for size, moves in zip(self.sizes, self.moves, strict=True)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


class Networks:
    """Networks of one architecture: weights in rows, (networks, parameters), and the buffers beside them.

    Args:
        model: the module that each network is put into a copy of; it is not changed
        buffers: what is no floating-point parameter, by name, (networks, *shape)
        task, class_dim: what the outputs are, where somebody said so
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Tensor,
        buffers: Buffers,
        task: str | None = None,
        class_dim: int | None = None,
    ):
        self.model, self.weights, self.buffers = model, weights, buffers
        self.task, self.class_dim = task, class_dim
        self.layout = Layout(model)

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, i: int) -> nn.Module:
        """Network `i` as a module of its own, in eval mode."""
        return self.build(self.weights[i], self.buffers_of(i))

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[i] for i in range(len(self)))

    def buffers_of(self, i: int) -> Buffers:
        """The buffers of network `i`."""
        return {name: values[i] for name, values in self.buffers.items()}

    def build(self, vector: Tensor, buffers: Buffers | None = None) -> nn.Module:
        """A network with these weights and buffers, in eval mode."""
        module = duplicate(self.model).eval()
        put_(module, self.layout, vector, buffers or {})
        return module

    def take(self, rows: Sequence[int]) -> Networks:
        """Some of the networks."""
        index = torch.as_tensor(list(rows), dtype=torch.long)
        buffers = {name: values[index] for name, values in self.buffers.items()}
        return Networks(self.model, self.weights[index], buffers, self.task, self.class_dim)

    def columns(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter's name and its part of the weights, (networks, numbers)."""
        return zip(self.layout.names, self.weights.split(self.layout.sizes, 1), strict=True)

    def mix(self, coefficients: Any) -> Tensor:
        """The sum of the weight vectors times these coefficients, in the precision of the model."""
        total = torch.zeros(self.weights.shape[1], dtype=self.layout.dtype)
        for coefficient, row in zip(np.asarray(coefficients, float).tolist(), self.weights, strict=True):
            if coefficient:
                total.add_(row.to(total.dtype), alpha=coefficient)
        return total

    def mix_buffers(self, coefficients: Any) -> Buffers:
        """The mean of the buffers with these weights, which sum to one; whole numbers are those of the heaviest."""
        weights = torch.as_tensor(np.asarray(coefficients, float))
        heaviest = int(weights.argmax())
        mixed = {}
        for name, values in self.buffers.items():
            if values.is_floating_point() and int((weights != 0).sum()) > 1:
                mixed[name] = torch.tensordot(weights.to(values.dtype), values, 1)
            else:
                mixed[name] = values[heaviest].clone()
        return mixed


def networks_of(caller: str, holder: Any) -> Networks:
    """The networks that a module, an Ensemble, a Trajectory or a list of such things holds, in their order."""
    if isinstance(holder, Networks):
        return holder
    if isinstance(holder, Ensemble):
        return _of_ensemble(holder)
    if isinstance(holder, nn.Module):
        model = check_model(caller, holder, nests=True)
        tensors = dict(state(model))
        return _rows(model, [tensors], None, None)
    if isinstance(holder, (list, tuple)):
        if not holder:
            raise ValueError(f"{caller}: there must be at least one network, but the list is empty.")
        return _join(caller, [networks_of(caller, part) for part in holder])
    raise TypeError(
        f"{caller}: networks must be an nn.Module, an Ensemble, a Trajectory or a list of "
        f"those, but got a {type(holder).__name__}."
    )


def network_of(caller: str, holder: Any) -> Networks:
    """The one network that is meant: a trajectory's solution, or the only network that is held."""
    solution = getattr(holder, "solution_row", None)
    found: Networks = networks_of(caller, holder) if solution is None else solution()
    if len(found) != 1:
        raise ValueError(
            f"{caller}: needs one network, but the {type(holder).__name__} holds {len(found)}. "
            "Give one of them, such as ensemble.member(0)."
        )
    return found


def check_alike(caller: str, one: Networks, other: Networks) -> None:
    """Refuse networks of different architectures, naming the first difference."""
    shapes = [
        {**n.layout.shapes, **{name: tuple(values.shape[1:]) for name, values in n.buffers.items()}}
        for n in (one, other)
    ]
    for name in [*shapes[0], *shapes[1]]:
        if shapes[0].get(name) != shapes[1].get(name):
            first, second = ("absent" if s.get(name) is None else str(s[name]) for s in shapes)
            raise ValueError(
                f"{caller}: the networks must have the same architecture, but {name!r} has the shape {first} in one "
                f"and {second} in another. Give networks that differ only in their weights."
            )
    kinds = [[(name, type(part).__name__) for name, part in n.model.named_modules()] for n in (one, other)]
    for (name, kind), (_, unlike) in zip(*kinds, strict=False):
        if kind != unlike:
            raise ValueError(
                f"{caller}: the networks must have the same architecture, but {name!r} is a {kind} in one and a "
                f"{unlike} in another. Give networks that differ only in their weights."
            )


def ensemble_of(networks: Networks, notes: Sequence[str] = ()) -> Ensemble:
    """An ensemble with the networks as its members, in eval mode; it is saved and loaded as a `pb.deep` is."""
    module, layout, size = duplicate(networks.model).eval(), networks.layout, len(networks)
    tensors, stacked = dict(state(module)), dict(networks.buffers)
    for name, columns in networks.columns():
        piece = columns.reshape(size, *layout.shapes[name])
        piece = torch.view_as_complex(piece.contiguous()) if tensors[name].is_complex() else piece
        stacked[name] = piece.to(tensors[name].device, tensors[name].dtype, copy=True)
    own = {name: stacked[name].to(tensor.device) for name, tensor in tensors.items()}
    assign_(module, own)
    made = Ensemble(module, size, list(own), method="deep", settings={"init": "same"}, notes=notes)
    made.task, made.class_dim = networks.task or "classification", networks.class_dim
    return made.eval()


def gram(rows: Tensor, others: Tensor | None = None) -> np.ndarray:
    """The inner products of the rows with the others, in double precision: (rows, others)."""
    others = rows if others is None else others
    total = torch.zeros(len(rows), len(others), dtype=torch.float64)
    width = max(1, CHUNK // max(len(rows), len(others), 1))
    for start in range(0, rows.shape[1], width):
        part = slice(start, start + width)
        total += rows[:, part].double() @ others[:, part].double().T
    return total.numpy()


@torch.no_grad()
def put_(module: nn.Module, layout: Layout, vector: Tensor, buffers: Buffers) -> None:
    """Write weights and buffers into the module's own tensors."""
    own = dict(state(module))
    for name, piece in layout.pieces(vector):
        real(own[name].detach()).copy_(piece)
    for name, value in buffers.items():
        own[name].copy_(value)


def rest_of(layout: Layout, tensors: Mapping[str, Tensor]) -> Buffers:
    """The tensors that do not belong to the weight vector, on the CPU."""
    return {name: t.detach().cpu().clone() for name, t in tensors.items() if name not in layout.shapes}


def real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _rows(model: nn.Module, states: Sequence[Mapping[str, Tensor]], task: str | None, dim: int | None) -> Networks:
    layout = Layout(model)
    rests = [rest_of(layout, tensors) for tensors in states]
    buffers = {name: torch.stack([rest[name] for rest in rests]) for name in rests[0]}
    return Networks(model, torch.stack([layout.vector(tensors) for tensors in states]), buffers, task, dim)


def _of_ensemble(ensemble: Ensemble) -> Networks:
    if not ensemble.stacked:
        parts = [networks_of(ensemble.method, ensemble.member(i)) for i in range(ensemble.size)]
        return _join(ensemble.method, parts, ensemble)
    tensors = dict(state(ensemble.module))
    states = [{name: t[i] if name in ensemble.own else t for name, t in tensors.items()} for i in range(ensemble.size)]
    return _rows(ensemble.member(0), states, ensemble.task, ensemble.class_dim)


def _join(caller: str, parts: Sequence[Networks], ensemble: Ensemble | None = None) -> Networks:
    first = parts[0]
    for part in parts[1:]:
        check_alike(caller, first, part)
    weights = torch.cat([part.weights.to(first.layout.dtype) for part in parts])
    buffers = {name: torch.cat([part.buffers[name] for part in parts]) for name in first.buffers}
    said = [part for part in parts if part.task is not None]
    task, dim = (ensemble.task, ensemble.class_dim) if ensemble else (None, None)
    if said and task is None:
        task, dim = said[0].task, said[0].class_dim
    return Networks(first.model, weights, buffers, task, dim)
