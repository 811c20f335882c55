"""What is found out by running a model: where the batch is, where the input enters, where the output leaves."""

import pytest
import torch
import torch.nn.functional as F
from small import Encoder, Recurrent
from torch import Tensor, nn

import pluribus as pb
from pluribus._common.trees import as_batch
from pluribus.core.rows import locate_rows_
from pluribus.methods.adapted_layers import Masked
from pluribus.surgery.dataflow import find_entrances, find_exits
from pluribus.surgery.probing import BatchLayout
from pluribus.surgery.replacing import adapt_

# -------------------------------------------------------------------- where the batch is


class Seen(nn.Module):
    """A layer whose input is `turn(x)`; what follows does not matter."""

    def __init__(self, turn, words: int = 0, layer: nn.Module | None = None):
        super().__init__()
        self.turn, self.words = turn, nn.Embedding(words, 6) if words else nn.Identity()
        self.layer = nn.Linear(6, 6) if layer is None else layer

    def forward(self, x: Tensor, times: Tensor | None = None) -> Tensor:
        """Whatever the layer makes of it."""
        x = self.words(x)
        return self.layer(self.turn(x if times is None else x * times))


def layout(model: nn.Module, x) -> BatchLayout | None:
    """Where the model's masked layer finds the batch."""
    model.layer.register_buffer("mask", torch.ones(getattr(model.layer, "in_features", 6)))
    adapt_(model.layer, Masked)
    model.layer.begin_()
    locate_rows_("masksembles", model, {}, as_batch(x))
    return model.layer.layout


def windows(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, 2)).flatten(0, 1)


TURNS = {
    "plain": (lambda x: x, BatchLayout(0)),
    "the mean": (lambda x: x.mean(1), BatchLayout(0)),
    "time first": (lambda x: x.transpose(0, 1), BatchLayout(1)),
    "third": (lambda x: x.unflatten(1, (2, 2)).movedim(0, 2), BatchLayout(2)),
    "windows": (windows, BatchLayout(0)),
    "each step a row": (lambda x: x.flatten(0, 1), BatchLayout(0)),
    "steps times batch": (lambda x: x.transpose(0, 1).flatten(0, 1), BatchLayout(0, True)),
    "steps times batch, behind a dimension": (lambda x: x.transpose(0, 1).flatten(0, 1)[None], BatchLayout(1, True)),
    "windows behind a dimension": (lambda x: windows(x).transpose(0, 1), BatchLayout(1)),
}
turns = pytest.mark.parametrize(("turn", "expected"), TURNS.values(), ids=TURNS)


@turns
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_batch_is_found_where_it_is(turn, expected, rows):
    assert layout(Seen(turn), torch.randn(rows, 4, 6)) == expected


@turns
def test_rows_that_are_equal_do_not_hide_the_batch(turn, expected):
    assert layout(Seen(turn), torch.randn(1, 4, 6).expand(3, -1, -1)) == expected
    assert layout(Seen(turn, words=9), torch.tensor([[1, 2, 3, 4]]).expand(3, -1)) == expected


def test_named_arguments_and_tensors_without_rows_are_passed_on():
    x = {"x": torch.randn(3, 4, 6), "times": torch.tensor(2.0)}
    assert layout(Seen(lambda x: x.transpose(0, 1)), x) == BatchLayout(1)


def test_layer_whose_input_has_no_batch_is_named():
    model = Seen(lambda x: x.mean((0, 1), keepdim=True))
    with pytest.raises(ValueError, match="masksembles: .* cannot be found in the input of layer 'layer'"):
        layout(model, torch.randn(3, 4, 6))


class Table(nn.Module):
    """A layer that reads a table of the model's own, of `length` entries."""

    def __init__(self, length: int):
        super().__init__()
        self.table, self.inner, self.head = nn.Parameter(torch.randn(length, 6)), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 3)."""
        return self.head(x * self.inner(self.table).sum(0))


@pytest.mark.parametrize("length", [3, 4])
@pytest.mark.parametrize("method", ["masksembles", "batch_ensemble"])
def test_members_with_a_layer_that_reads_no_row_run_one_by_one(method, length):
    ensemble = pb.METHODS[method](Table(length), 3, where="inner|head").train()
    x, y = torch.randn(5, 6), torch.randint(3, (5,))
    separate = torch.stack([F.cross_entropy(ensemble.member(i)(x), y) for i in range(3)])
    torch.testing.assert_close(ensemble.loss(x, y, F.cross_entropy), separate.mean())
    assert "cannot be found in the input of layer 'inner'" in ensemble.explain()


@pytest.mark.parametrize("method", ["masksembles", "batch_ensemble"])
def test_layer_that_reads_no_row_is_left_out_where_an_example_shows_it(method):
    ensemble = pb.METHODS[method](Table(3), 3, example=torch.randn(2, 6)).train()
    assert not any(name.startswith("inner") for name in ensemble.own)
    assert ensemble.loss(torch.randn(5, 6), torch.randint(3, (5,)), F.cross_entropy).isfinite()


# -------------------------------------------------------------------- where the input enters


class Branches(nn.Module):
    """Two convolutions that read the input side by side, as in RepVGG."""

    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.next = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) -> (batch, 4, height, width)."""
        x = self.norm(x)
        return self.next(torch.relu(self.wide(x) + self.narrow(x)))


class Around(nn.Module):
    """The input goes around the first layer into the second, or into the output."""

    def __init__(self, into: str):
        super().__init__()
        self.into, self.one, self.two = into, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        if self.into == "second":
            return self.two(x + self.one(x))
        return x + self.two(torch.relu(self.one(x)))


ENTRANCES = {
    "one convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)), (2, 3, 5, 5), ["0"], True),
    "two convolutions": (Branches, (2, 3, 5, 5), ["wide", "narrow"], True),
    "through a reshape": (lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(75, 2)), (2, 3, 5, 5), ["2"], True),
    "attention": (Encoder, (2, 4, 5), ["enter"], True),
    "around the first layer": (lambda: Around("second"), (2, 4), ["one", "two"], False),
    "around all layers": (lambda: Around("output"), (2, 4), ["one"], False),
    "no layer": (nn.ReLU, (2, 4), [], False),
}


@pytest.mark.parametrize(("build", "shape", "names", "through"), ENTRANCES.values(), ids=ENTRANCES)
def test_entrances_are_the_layers_that_read_the_input_first(build, shape, names, through):
    assert find_entrances(build(), torch.randn(shape)) == (names, through)


def test_words_enter_through_their_embedding():
    assert find_entrances(Recurrent(), torch.randint(11, (2, 7))) == (["words"], True)


def test_sequences_enter_through_a_recurrent_layer():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    assert find_entrances(Sequence(), torch.randn(2, 7, 5)) == (["lstm"], True)


# -------------------------------------------------------------------- where the output leaves


class Heads(nn.Module):
    """A trunk and two heads whose outputs are averaged, and one that is trained on the side."""

    def __init__(self):
        super().__init__()
        self.trunk, self.one, self.two, self.idle = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        x = torch.relu(self.trunk(x))
        self.idle(x)
        return (self.one(x) + self.two(x)) / 2


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 1, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """A dict, after operations in place."""
        return {"logits": self.two(self.one(x).relu_()).squeeze(1).mul_(2), "size": torch.tensor(3)}


EXITS = {
    "one head": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (2, 4), ["2"]),
    "a layer alone": (lambda: nn.Linear(4, 2), (2, 4), [""]),
    "two averaged": (Heads, (2, 4), ["one", "two"]),
    "softmax behind it": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2), nn.Softmax(-1)), (2, 4), ["1"]),
    "squeezed, in place, in a dict": (InPlace, (2, 4, 3), ["two"]),
    "a shortcut into the output": (lambda: Around("output"), (2, 4), ["two"]),
    "behind an average": (
        lambda: nn.Sequential(nn.Conv1d(4, 2, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        (2, 4, 3),
        ["0"],
    ),
    "no layer": (nn.ReLU, (2, 4), []),
}


@pytest.mark.parametrize(("build", "shape", "names"), EXITS.values(), ids=EXITS)
@pytest.mark.parametrize("frozen", [True, False])
def test_exits_are_the_layers_whose_output_passes_no_other(build, shape, names, frozen):
    with torch.set_grad_enabled(not frozen):
        assert find_exits(build().requires_grad_(not frozen), torch.randn(shape)) == names
