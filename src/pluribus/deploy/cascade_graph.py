"""A cascade as one ONNX graph: each further stage stands in an `If` and runs on the gathered rows that go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._common.trees import Batch, logits_of
from ..uncertainty.outputs import answer_names, compute_answers
from .export_graph import plain_of, trace_program
from .stages import Cascade

Convert = Callable[[torch.export.ExportedProgram], Any]  # to an ONNX model


def cascade_names(cascade: Cascade) -> tuple[str, ...]:
    """The names of the answers of an exported cascade."""
    return (*answer_names(cascade.task), "members", *(["accepted"] if cascade.keep < math.inf else []))


@torch.no_grad()
def compose(cascade: Cascade, batch: Batch, inputs: Sequence[str], convert: Convert) -> Any:
    """The ONNX model: stage 1 on all rows, then If(any row goes on): stage 2 on those, and so on inside of it.

    An `If` is right here: onnxruntime runs one branch only, and a stage never sees a batch without rows.
    """
    import onnx
    from onnx import helper

    votes = rows_first(cascade(*batch[0], **batch[1]))
    parts, so_far = [], None
    for k in range(len(cascade.stages)):
        part = _StagePart(cascade, k)
        given = batch if so_far is None or not cascade.pooled else ((so_far, *batch[0]), batch[1])
        parts.append(_prefixed(convert(trace_program(part, given, True)), f"stage{k + 1}_"))
        so_far = part(*given[0], **given[1])[0]
    end = _prefixed(convert(trace_program(_Answers(cascade), ((votes,), {}), True)), "answer_")

    def node(kind: str, ins: Sequence[str], out: str, **settings: Any) -> Any:
        return helper.make_node(kind, list(ins), [out], name=out, **settings)

    def whole(value: int, name: str) -> Any:
        return helper.make_node("Constant", [], [name], value_ints=[value], name=name)

    def run_stage(k: int, x: Sequence[str], so_far: str | None, like: str) -> tuple[list[Any], list[Any], str, str]:
        """Nodes and weights of stage k and of all after it, with the names of its rows' answers and members."""
        graph, at = parts[k].graph, f"at{k + 1}_"
        joined, answer, on = (one.name for one in graph.output)
        sources = [*([] if so_far is None else [so_far]), *x]
        nodes = [node("Identity", [one], own.name) for one, own in zip(sources, graph.input, strict=True)] + [
            *graph.node
        ]
        nodes += [node("Shape", [like], f"{at}shape"), whole(0, f"{at}zero"), whole(1, f"{at}one")]
        nodes.append(node("Slice", [f"{at}shape", f"{at}zero", f"{at}one"], f"{at}rows"))
        nodes += [whole(cascade.counts[k], f"{at}count"), node("Expand", [f"{at}count", f"{at}rows"], f"{at}members")]
        if k + 1 == len(parts):
            return nodes, list(graph.initializer), answer, f"{at}members"
        nodes += [node("NonZero", [on], f"{at}nonzero"), node("Transpose", [f"{at}nonzero"], f"{at}where")]
        nodes += [whole(-1, f"{at}flat"), node("Reshape", [f"{at}nonzero", f"{at}flat"], f"{at}index")]
        nodes += [
            node("Size", [f"{at}index"], f"{at}size"),
            node("Cast", [f"{at}size"], f"{at}any", to=onnx.TensorProto.BOOL),
        ]
        inner = [node("Gather", [one, f"{at}index"], f"{at}x{i}", axis=0) for i, one in enumerate(x)]
        if cascade.pooled:
            inner.append(node("Gather", [joined, f"{at}index"], f"{at}joined", axis=0))
        names = [f"{at}x{i}" for i in range(len(x))]
        later, weights, new, count = run_stage(k + 1, names, f"{at}joined" if cascade.pooled else None, names[0])
        inner += later
        inner.append(node("ScatterND", [answer, f"{at}where", new], f"{at}scattered"))
        inner.append(node("ScatterND", [f"{at}members", f"{at}where", count], f"{at}counted"))
        outer = [node("Identity", [answer], f"{at}kept"), node("Identity", [f"{at}members"], f"{at}kept_members")]
        branches = {
            "then_branch": _graph(f"{at}on", inner, (f"{at}scattered", f"{at}counted"), weights),
            "else_branch": _graph(f"{at}done", outer, (f"{at}kept", f"{at}kept_members"), []),
        }
        nodes.append(helper.make_node("If", [f"{at}any"], [f"{at}out", f"{at}out_members"], name=f"{at}if", **branches))
        return nodes, list(graph.initializer), f"{at}out", f"{at}out_members"

    nodes, weights, answer, members = run_stage(0, inputs, None, inputs[0])
    nodes += [
        node("Identity", [answer], end.graph.input[0].name),
        *end.graph.node,
        node("Identity", [members], "members"),
    ]
    names = [name for name in cascade_names(cascade) if name != "members"]
    outputs = [helper.make_tensor_value_info("members", onnx.TensorProto.INT64, ["batch"])]
    for name, one in zip(names, end.graph.output, strict=True):
        nodes.append(node("Identity", [one.name], name))
        outputs.append(_named(one, name))
    first = parts[0].graph.input
    ends = [_named(one, name) for one, name in zip(first, inputs, strict=True)]
    graph = helper.make_graph(nodes, "cascade", ends, outputs, [*weights, *end.graph.initializer])
    model = helper.make_model(graph, opset_imports=parts[0].opset_import, producer_name="pluribus")
    model.ir_version = parts[0].ir_version
    onnx.checker.check_model(model)
    return model


def rows_first(outputs: Tensor) -> Tensor:
    """(members, batch, ...) as (batch, members, ...): what is gathered and scattered has rows first."""
    return outputs.transpose(0, 1).contiguous()


class _StagePart(nn.Module):
    """One stage on the rows that reach it: all members so far, the answer as votes, and which rows go on."""

    def __init__(self, cascade: Cascade, k: int):
        super().__init__()
        self.stage, self.k, self.held = plain_of(cascade.stages[k]), k, [cascade]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Rows first: (batch, members, classes), (batch, votes, classes), (batch)."""
        cascade = self.held[0]
        first, rest = ([args[0].transpose(0, 1)], args[1:]) if cascade.pooled and self.k else ([], args)
        outputs = torch.cat([*first, logits_of(self.stage(*rest, **kwargs))])
        low, high = [*cascade.windows, (math.inf, math.inf)][self.k]
        score = cascade.scores(outputs)
        return outputs.transpose(0, 1), cascade._expand(outputs).transpose(0, 1), (score >= low) & (score < high)


class _Answers(nn.Module):
    """The answers that votes are, without the members, which the graph counts."""

    def __init__(self, cascade: Cascade):
        super().__init__()
        self.held = [cascade]

    def forward(self, votes: Tensor) -> tuple[Tensor, ...]:
        """As `Cascade.answers`."""
        cascade, outputs = self.held[0], votes.transpose(0, 1)
        found = tuple(compute_answers(cascade.task, outputs, cascade.class_dim).values())
        return found if cascade.keep == math.inf else (*found, cascade.scores(outputs) < cascade.keep)


def _prefixed(model: Any, prefix: str) -> Any:
    import onnx.compose

    assert not model.functions  # all are inlined
    return onnx.compose.add_prefix(model, prefix)


def _graph(name: str, nodes: Sequence[Any], outputs: tuple[str, str], weights: Sequence[Any]) -> Any:
    from onnx import TensorProto, helper

    kinds = (TensorProto.FLOAT, TensorProto.INT64)
    ends = [helper.make_tensor_value_info(one, kind, None) for one, kind in zip(outputs, kinds, strict=True)]
    return helper.make_graph(list(nodes), name, [], ends, list(weights))


def _named(value: Any, name: str) -> Any:
    """An input or output under another name, its first dimension the batch."""
    made = type(value)()
    made.CopyFrom(value)
    made.name = name
    if made.type.tensor_type.shape.dim:
        made.type.tensor_type.shape.dim[0].dim_param = "batch"
    return made
