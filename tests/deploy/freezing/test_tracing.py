"""What can be traced, and what stays as it was: the outputs are the same."""

import pytest
import torch
from freezing import alike, expected, frozen, trained
from torch import Tensor, nn

import pluribus as pb
from pluribus.deploy.freezing import frozen as freezing
from pluribus.deploy.freezing import lowering


class Choosing(nn.Module):
    """A network of which one part looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.look = Looking()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3)."""
        return self.fc(self.look(self.enter(x)).mean((2, 3)))


class Looking(nn.Module):
    """A part that cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return self.conv(x) if x.sum() > 0 else x


def test_a_part_that_cannot_be_traced_stays_as_it_was_and_is_named():
    torch.manual_seed(0)
    ensemble, x = pb.deep(trained(Choosing()), 3), torch.randn(4, 3, 8, 8)
    made = frozen(ensemble, x)
    assert "'look' is unchanged" in made.explain()
    assert "normalisation layers folded into the layer before: 1" in made.explain()
    ensemble.run = "loop"
    alike(made(x), expected(ensemble, x))


def test_a_network_that_cannot_be_traced_at_all_gives_the_same():
    ensemble, x = pb.deep(Looking(), 3), torch.randn(2, 4, 3, 3)
    ensemble.run = "loop"
    made = frozen(ensemble, x)
    assert "the network is unchanged" in made.explain()
    alike(made(x), expected(ensemble, x))


class InPlace(nn.Module):
    """Operations that change tensors which are read again."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 4)."""
        y = self.one(x)
        z = torch.relu_(y)
        z += x
        return self.two(y) * z


def test_operations_in_place_are_seen_by_later_readers():
    torch.manual_seed(0)
    ensemble, x = pb.treenet(InPlace(), 3, "two"), torch.randn(5, 4)
    alike(frozen(ensemble, x)(x), expected(ensemble, x))


def test_inputs_are_not_changed():
    model, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), torch.randn(5, 4)
    before = x.clone()
    frozen(pb.deep(model, 2), x)(x)
    assert torch.equal(x, before)


class Uneven(nn.Module):
    """Asks for the dimensions and for the sizes of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) -> (batch, 4)."""
        if x.ndim != 4 or len(x.shape) != 4:
            raise ValueError
        if x.shape[-1] > 40:
            x = x[..., :40]
        return self.layer(x).mean((2, 3))


def test_a_network_that_asks_for_sizes_takes_those_of_the_example():
    ensemble, x = pb.deep(Uneven(), 2), torch.randn(2, 3, 32, 32)
    made = frozen(ensemble, x)
    alike(made(x.repeat(3, 1, 1, 1)), expected(ensemble, x.repeat(3, 1, 1, 1)))
    with pytest.raises(ValueError, match=r"\(3, 32, 32\).*\(3, 48, 48\).*Freeze the ensemble again"):
        made(torch.randn(2, 3, 48, 48))


class Encoder(nn.Module):
    """Words, an encoder as torch has it, any length."""

    def __init__(self, **options) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
        self.words, self.encoder, self.head = nn.Embedding(9, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time) -> (batch, 3)."""
        return self.head(self.encoder(self.words(x)).mean(1))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("form", lowering.FORMS)
@pytest.mark.parametrize(
    ("method", "norm_first"),
    [
        *(("packed", False), ("masksembles", True)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("batch_ensemble", False), ("deep", True))),
    ],
)
def test_transformers_of_torch_are_traced_and_take_any_length(method, norm_first, form, monkeypatch):
    monkeypatch.setattr(freezing, "FORMS", {form: lowering.FORMS[form]})
    x = torch.randint(9, (2, 5), generator=torch.Generator().manual_seed(0))
    options = {} if method in ("deep", "multihead") else {"example": x}
    ensemble = pb.METHODS[method](Encoder(norm_first=norm_first), 3, **options)
    made = frozen(ensemble, x)
    assert "is unchanged" not in made.explain()
    assert method != "masksembles" or made.mult_adds[1] < 0.7 * made.mult_adds[0]
    for shape in ((2, 5), (1, 8), (4, 3)):
        x = torch.randint(9, shape)
        alike(made(x), expected(ensemble, x))


class Padded(nn.Module):
    """An encoder whose padded positions reach the output."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.words, self.encoder, self.head = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """(batch, time) -> (batch, time, 3)."""
        return self.head(self.encoder(self.words(x), src_key_padding_mask=padding))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("shown", ["none", "end", "middle"])
def test_padding_gives_what_networks_apart_give(shown):
    networks = [Padded().eval() for _ in range(3)]
    end = torch.arange(5) >= torch.tensor([[2], [5], [3], [4]])
    masks = {"none": torch.zeros(4, 5, dtype=torch.bool), "end": end, "middle": end.flip(1)}
    x = torch.randint(9, (4, 5))
    ensemble = pb.deep(networks)
    for memory in ("fast", "small"):
        made = frozen(ensemble, (x, masks[shown]), memory=memory)
        for mask in masks.values():
            with torch.no_grad():
                alike(made(x, mask), torch.stack([network(x, mask) for network in networks]))


class Opaque(nn.Module):
    """A part that cannot be traced gives a structure of which some is None; that part of it is handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.head = Pair(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        """Logits, and nothing else."""
        hidden = self.look(x)
        return {"logits": self.head(hidden["y"]), "rest": hidden["rest"]}


class Pair(nn.Module):
    """Looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        """The same shape, and None."""
        return {"y": self.layer(x) if x.sum() > 0 else x, "rest": None}


@pytest.mark.parametrize("form", lowering.FORMS)
def test_what_is_no_tensor_in_the_outputs_stays_as_it_is(form, monkeypatch):
    monkeypatch.setattr(freezing, "FORMS", {form: lowering.FORMS[form]})
    networks, x = [Opaque().eval() for _ in range(3)], torch.randn(5, 4)
    ensemble = pb.deep(networks)
    ensemble.run = "loop"
    made = frozen(ensemble, x)
    assert made.form == form
    output = made(x)
    assert output["rest"] is None
    with torch.no_grad():
        alike(output["logits"], torch.stack([network(x)["logits"] for network in networks]))
