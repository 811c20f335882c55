"""An ensemble as one graph without vmap: what is exported."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._common.torch_operators import is_pure_operator
from .._common.torch_private import pytree
from .._common.trees import Batch, flatten, logits_of, map_rows, map_tensors, repeat_votes, rows_of, stack_trees
from ..core.ensemble import Ensemble
from ..surgery.copying import assign_, duplicate, run_with, state


class ExportedMembers(nn.Module):
    """An ensemble's members one after the other, each with its own tensors under their own names; no vmap."""

    def __init__(self, ensemble: Ensemble):
        super().__init__()
        copy = duplicate(ensemble)
        assert isinstance(copy, Ensemble)
        self.size, self.votes, self.module = copy.size, copy.votes, copy.module
        self.active_dropout = copy.active_dropout
        self.ensemble = copy if copy.run == "once" or not copy.stacked else None
        if self.ensemble is not None:
            return
        own = {name: tensor.detach() for name, tensor in state(copy.module) if name in copy.own}
        assign_(self.module, {name: tensor[0].clone() for name, tensor in own.items()})
        self.own = nn.ModuleList(nn.Module() for _ in range(self.size))
        for i, part in enumerate(self.own):
            for number, tensor in enumerate(own.values()):
                part.register_buffer(f"t{number}", tensor[i].clone())
        self.names = list(own)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member on every row: (members, batch, ...)."""
        if self.ensemble is not None and self.ensemble.run == "once":
            return logits_of(self.ensemble(*args, **kwargs))
        return repeat_votes(_stack([logits_of(self._one(i, (args, kwargs))) for i in range(self.size)]), self.votes)

    def train(self, mode: bool = True) -> ExportedMembers:
        """Set the mode; MC-Dropout's dropout stays active."""
        super().train(mode)
        for name in self.active_dropout:
            self.module.get_submodule(name).training = True
        return self

    def _one(self, i: int, batch: Batch) -> Any:
        batch = map_tensors(batch, lambda t: t.clone())  # a model may change its input in place
        if self.ensemble is not None:
            return self.ensemble.members[i](*batch[0], **batch[1])
        own = {name: getattr(self.own[i], f"t{number}") for number, name in enumerate(self.names)}
        return run_with(self.module, own, *batch)[0]


def _stack(outputs: list[Any]) -> Any:
    if all(isinstance(output, Tensor) for output in outputs):
        return torch.stack(outputs)
    if all(isinstance(output, (tuple, list)) for output in outputs):
        return tuple(_stack(list(parts)) for parts in zip(*outputs, strict=True))
    return stack_trees(outputs)


def plain_of(ensemble: nn.Module) -> nn.Module:
    """What can be traced: members by a loop; of a frozen ensemble its graph."""
    if isinstance(ensemble, Ensemble):
        return ExportedMembers(ensemble).eval()
    return duplicate(ensemble).eval()


def trace_program(module: nn.Module, batch: Batch, dynamic: bool) -> torch.export.ExportedProgram:
    """The exported program, functional, each operation once."""
    if dynamic and rows_of(batch) == 1:
        batch = resize(batch, 2)  # torch takes a size of 1 for a constant
    names = [*(f"input_{i}" for i in range(len(batch[0]))), *batch[1]]
    try:
        program = torch.export.export(
            _Named(module, names), *batch, dynamic_shapes=_shapes(batch, names) if dynamic else None, strict=False
        )
        program = program.run_decompositions({})
    except Exception as error:
        hint = " Where the model's code depends on the number of rows, give dynamic=False." if dynamic else ""
        raise ValueError(f"export: torch.export cannot trace the model: {first_words(error)}.{hint}") from error
    merge_(program)
    return program


class _Named(nn.Module):
    """A module whose arguments have names: torch.export has no free dimensions in a forward(**kwargs)."""

    def __init__(self, module: nn.Module, names: Sequence[str]):
        super().__init__()
        self.module = module
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

        def forward(*args: Any, **kwargs: Any) -> Any:
            return module(*args, **kwargs)

        forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind) for name in names]
        )
        self.forward = forward


def _shapes(batch: Batch, names: Sequence[str]) -> dict[str, Any]:
    """Which dimensions are free, by argument: the first of every tensor that has rows."""
    leaves, structure = flatten(batch)
    rows = rows_of(batch)
    free = [isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == rows for leaf in leaves]
    args, kwargs = pytree.tree_unflatten([{0: torch.export.Dim.DYNAMIC} if f else None for f in free], structure)
    return dict(zip(names, (*args, *kwargs.values()), strict=True))


def merge_(program: torch.export.ExportedProgram) -> None:
    """Let equal operations on equal inputs run once, unless they are random."""
    outputs = {spec.arg.name for spec in program.graph_signature.output_specs if hasattr(spec.arg, "name")}
    seen: dict[Any, torch.fx.Node] = {}
    for node in list(program.graph.nodes):
        target = node.target
        if node.op != "call_function" or not is_pure_operator(target) or node.name in outputs:
            continue
        first = seen.setdefault((target, str(node.args), str(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            program.graph.erase_node(node)
    program.graph_module.recompile()


def first_words(error: BaseException) -> str:
    """The first line of what an error says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\x1b\[\d+m", "", (lines or [type(error).__name__])[0]).rstrip(".")[:400]


def resize(batch: Batch, rows: int) -> Batch:
    """The example's rows, repeated up to the wanted number."""
    given = rows_of(batch)
    index = torch.arange(rows) % given
    return map_rows(batch, given, lambda t: t[index.to(t.device)])
