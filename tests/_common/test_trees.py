"""Trees of tensors in every form that models take and give, and what happens around a run of the members."""

import dataclasses
from collections import OrderedDict, namedtuple
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from small import Tied
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pluribus._common.trees import (
    as_batch,
    device_of,
    logits_of,
    rows_of,
    stack_trees,
    tensors_of,
    unstack,
)
from pluribus.methods._shared_trunk import shared_parts
from pluribus.surgery.row_splitting import rows_to_predict

CPU = torch.device("cpu")
Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Output:
    """What a model may give back."""

    logits: Tensor
    extra: dict[str, Tensor]
    loss: Tensor | None = None
    name: str = "plain"


@dataclasses.dataclass
class Outer:
    """One dataclass in another."""

    inner: Output


def hugging_face(x: Tensor):
    from transformers.modeling_outputs import SequenceClassifierOutput

    return SequenceClassifierOutput(logits=x, hidden_states=(x + 1, x + 2))


TREES = {
    "tensor": (lambda x: x, lambda t: [t]),
    "tuple": (lambda x: (x, (x + 1, "a")), lambda t: [t[0], t[1][0]]),
    "list": (lambda x: [x, None, x + 1], lambda t: [t[0], t[2]]),
    "dict": (lambda x: {"a": x, "b": {"c": x + 1}}, lambda t: [t["a"], t["b"]["c"]]),
    "ordered dict": (lambda x: OrderedDict(z=x, a=x + 1), lambda t: [t["z"], t["a"]]),
    "named tuple": (lambda x: Pair(x, x + 1), lambda t: [t.first, t.second]),
    "dataclass": (lambda x: Output(x, {"a": x + 1}), lambda t: [t.logits, t.extra["a"]]),
    "dataclass in one": (lambda x: Outer(Output(x, {"a": x + 1})), lambda t: [t.inner.logits, t.inner.extra["a"]]),
    "dataclass in a tuple": (lambda x: (x, Output(x + 1, {})), lambda t: [t[0], t[1].logits]),
    "hugging face": (hugging_face, lambda t: [t.logits, *t.hidden_states]),
}
trees = pytest.mark.parametrize(("build", "parts"), TREES.values(), ids=TREES)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@trees
def test_stacked_trees_are_the_tree_of_stacked_tensors(build, parts):
    x = torch.randn(4, 3)
    stacked = stack_trees([build(row) for row in x])
    assert type(stacked) is type(build(x))
    assert same(parts(stacked), parts(build(x)))


@trees
def test_unstacked_trees_are_those_that_were_stacked(build, parts):
    x = torch.randn(4, 3)
    for tree, row in zip(unstack(build(x), 4), x, strict=True):
        assert type(tree) is type(build(row))
        assert same(parts(tree), parts(build(row)))


def test_rows_are_those_of_the_first_tensor_that_has_any():
    assert rows_of(as_batch({"scale": torch.tensor(1.0), "x": torch.ones(5, 2)})) == 5
    assert rows_of(torch.ones(3, 5), dim=1) == 5
    assert device_of((1, torch.ones(1, device="meta"))).type == "meta"
    with pytest.raises(ValueError, match="must hold a tensor whose first dimension counts its rows"):
        rows_of({"a": 1})


def test_one_call_takes_a_tensor_a_tuple_or_a_mapping():
    from transformers import BatchEncoding

    x = torch.ones(2)
    assert as_batch(x) == ((x,), {})
    assert as_batch((x, 1)) == as_batch([x, 1]) == ((x, 1), {})
    assert as_batch({"x": x}) == as_batch(BatchEncoding({"x": x})) == ((), {"x": x})


def test_answer_is_what_is_called_logits():
    x = torch.ones(2)
    assert logits_of(x) is x
    assert logits_of(Output(x, {})) is x
    assert logits_of({"logits": x, "loss": 1}) is x
    assert logits_of(hugging_face(x)) is x
    assert logits_of((x, x)) == (x, x)
    assert logits_of({"a": x}) == {"a": x}


# -------------------------------------------------------------------- batches


def batches(x, batch_size, device, dtype):
    def run(batch):
        """A model that takes its own precision alone, and gives a row for each row of its first input."""
        if any(t.is_floating_point() and t.dtype != dtype for t in tensors_of(batch)):
            raise TypeError
        return tensors_of(batch)[:1]

    return (batch for batch, _ in rows_to_predict(x, batch_size, device, dtype, lambda: nullcontext(run)))


def first_arguments(x, batch_size: int | None = None, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [args[0] if args else kwargs["x"] for args, kwargs in batches(x, batch_size, CPU, dtype)]


X = torch.arange(14.0).view(7, 2)
FORMS = {
    "tensor": lambda: X,
    "array": lambda: X.double().numpy(),
    "array that runs backwards": lambda: X.flip(0).numpy()[::-1],
    "tuple": lambda: (X, torch.tensor(1.0)),
    "dict": lambda: {"x": X},
    "dict of arrays": lambda: {"x": X.numpy()},
    "loader": lambda: DataLoader(TensorDataset(X), 3),
    "loader with targets": lambda: DataLoader(TensorDataset(X, torch.zeros(7)), 3),
    "loader of dicts": lambda: [{"x": X[:3]}, {"x": X[3:]}],
    "loader of dicts with targets": lambda: [({"x": X[:3]}, torch.zeros(3)), ({"x": X[3:]}, torch.zeros(4))],
    "list of tensors": lambda: list(X.split(3)),
    "generator": lambda: (part for part in X.split(2)),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@forms
@pytest.mark.parametrize("batch_size", [None, 1, 2, 7, 100])
def test_batches_hold_every_row_once_and_in_order(form, batch_size):
    parts = first_arguments(form(), batch_size)
    assert torch.equal(torch.cat(parts), X)
    assert all(len(part) <= (batch_size or 7) for part in parts)


def test_without_a_batch_size_a_tensor_is_one_batch_and_a_loader_gives_its_own():
    assert [len(part) for part in first_arguments(X)] == [7]
    assert [len(part) for part in first_arguments(FORMS["loader"]())] == [3, 3, 1]


def test_batches_have_the_precision_of_the_model_and_integers_stay():
    (args, _), *_ = batches(
        (np.ones((2, 2)), np.ones((2, 2), np.int64), torch.ones(2, dtype=torch.bool)), None, CPU, torch.bfloat16
    )
    assert [t.dtype for t in args] == [torch.bfloat16, torch.int64, torch.bool]


def test_a_batch_without_rows_is_refused():
    with pytest.raises(ValueError, match=r"at least one row, but its first tensor has the shape \(0, 2\)"):
        first_arguments(X[:0], 3)


def test_tensors_without_rows_go_into_every_batch():
    scales = [args[1].item() for args, _ in batches((X, torch.tensor(3.0)), 3, CPU, torch.float32)]
    assert scales == [3, 3, 3]


def test_arrays_that_must_not_be_written_are_taken_without_a_warning():
    array = X.numpy().copy()
    array.flags.writeable = False
    assert torch.equal(first_arguments(array)[0], X)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_below_one_is_an_error(batch_size):
    with pytest.raises(ValueError, match="batch_size"):
        first_arguments(X, batch_size)


# -------------------------------------------------------------------- shared parts


def test_unowned_knows_the_other_names_of_a_tied_tensor():
    assert shared_parts(Tied(), ["one.weight"]) == ["enter", "drop", "head"]


def test_unowned_enters_lists_since_they_are_never_called():
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "head": nn.Linear(2, 2)})
    assert shared_parts(model, ["head.weight"]) == ["blocks.0", "blocks.1"]
