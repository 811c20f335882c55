"""A frozen network takes its arguments as the model does, and keeps to the code that the model runs for them."""

import pytest
import torch
from freezing import alike, frozen
from torch import Tensor, nn
from zoo import bert

import pluribus as pb

ROWS = (1, 2, 3, 5, 8, 9, 16, 40)


def separate(build, size: int = 3) -> list[nn.Module]:
    """Networks built apart, in eval mode."""
    made = []
    for seed in range(size):
        torch.manual_seed(seed)
        made.append(build().eval())
    return made


def check(made: pb.Frozen, networks: list[nn.Module], *args, **kwargs) -> None:
    with torch.no_grad():
        wanted = torch.stack([network(*args, **kwargs) for network in networks])
    torch.testing.assert_close(made(*args, **kwargs), wanted, rtol=1e-4, atol=1e-5)


class Two(nn.Module):
    """Takes two tensors of one shape, and options."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor | None = None, scale: float = 1.0, *, flip: bool = False) -> Tensor:
        """(batch, 3)."""
        y = self.one(left) if right is None else self.one(left) - 2 * self.two(right)
        return scale * (y.flip(-1) if flip else y)


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    return torch.randn(5, 4), torch.randn(5, 4)


def test_arguments_are_found_by_place_and_by_name_in_any_order(pair):
    left, right = pair
    networks = separate(Two)
    for example in ((left, right), {"left": left, "right": right}, {"right": right, "left": left}):
        made = frozen(pb.deep(networks), example)
        assert made.form in ("loop", "beside")
        for kwargs in ({"left": left, "right": right}, {"right": right, "left": left}):
            check(made, networks, **kwargs)
        check(made, networks, left, right)
        check(made, networks, left, right=right)
        check(made, networks, left, right, 1.0, flip=False)


@pytest.mark.parametrize("options", [{"scale": 3.0}, {"flip": True}, {"scale": 2}, {"right": None}])
def test_what_is_no_tensor_is_as_in_the_example_or_refused(pair, options):
    left, right = pair
    networks = separate(Two)
    plain, other = {"left": left, "right": right}, {"left": left, "right": right, **options}
    check(frozen(pb.deep(networks), other), networks, **other)
    name = next(iter(options))
    for made, call in ((pb.deep(networks), other), (pb.deep(networks), plain)):
        given = frozen(made, plain if call is other else other)
        with pytest.raises(
            ValueError, match=rf"the argument '{name}' was .* in the example.*Freeze the ensemble again"
        ):
            given(**call)


def test_a_transformer_takes_its_arguments_in_any_order():
    networks = separate(bert, 2)
    words, mask = torch.randint(50, (3, 7)), torch.arange(7) < torch.tensor([[4], [7], [5]])
    made = frozen(pb.deep(networks), {"attention_mask": mask.long(), "input_ids": words})
    wanted = torch.stack([network(words, mask.long()).logits.detach() for network in networks])
    for call in (
        {"input_ids": words, "attention_mask": mask.long()},
        {"attention_mask": mask.long(), "input_ids": words},
    ):
        alike(made(**call).logits, wanted)
    alike(made(words, mask.long()).logits, wanted)
    with pytest.raises(ValueError, match="'token_type_ids' was None in the example.*a tensor"):
        made(words, mask.long(), torch.zeros_like(words))


class Trees(nn.Module):
    """Takes a dict in a list, and any names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, parts: list[dict[str, Tensor]], **named: Tensor) -> Tensor:
        """(batch, 3)."""
        y = self.a(parts[0]["a"]) - self.b(parts[0]["b"])
        return y + 5 * self.a(named["p"]) - 7 * self.b(named["q"])


def test_trees_and_free_arguments_are_found_by_their_names():
    a, b, p, q = torch.randn(4, 5, 4)
    networks = separate(Trees)
    made = frozen(pb.deep(networks), {"parts": [{"a": a, "b": b}], "p": p, "q": q})
    check(made, networks, q=q, parts=[{"b": b, "a": a}], p=p)
    for parts, names in (([{"a": a}], {"p": p, "q": q}), ([{"a": a, "b": b}], {"p": p})):
        with pytest.raises(ValueError, match="must have the structure of the example"):
            made(parts, **names)


def test_a_call_with_other_dimensions_is_refused():
    made = frozen(pb.deep(nn.Linear(4, 3), 2), torch.randn(5, 4))
    with pytest.raises(ValueError, match=r"\[2\] dimensions.*\[3\]"):
        made(torch.randn(5, 2, 4))


class Typed(nn.Module):
    """Asks for the type of its mask, as attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, 3)."""
        return self.layer(x.masked_fill(mask, 0.0) if mask.dtype == torch.bool else x + mask)


def test_another_type_than_the_code_was_traced_for_is_refused():
    networks, x, mask = separate(Typed), torch.randn(5, 4), torch.rand(5, 4) > 0.5
    made = frozen(pb.deep(networks), (x, mask))
    check(made, networks, x, mask)
    with pytest.raises(ValueError, match=r"torch.bool.* types of its inputs.*torch.float32"):
        made(x, mask.float())


class Configured(nn.Module):
    """Reads an object that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, settings: object) -> Tensor:
        """(batch, 3)."""
        return self.layer(x) * settings.factor


def test_objects_whose_content_may_change_leave_the_network_as_it_was():
    class Factor:
        factor = 2.0

    networks, x, factor = separate(Configured), torch.randn(5, 4), Factor()
    made = frozen(pb.deep(networks), (x, factor))
    assert "is unchanged: a call takes a Factor object" in made.explain()
    factor.factor = 3.0
    check(made, networks, x, factor)


# -------------------------------------------------------------------- rows


QUESTIONS = {
    "len": lambda x: len(x) > 8,
    "shape": lambda x: x.shape[0] > 8,
    "size": lambda x: x.size(0) >= 9,
    "many": lambda x: x.shape[0] > 1000,
    "odd": lambda x: x.shape[0] % 2 == 1,
    "part": lambda x: x.shape[0] // 9 > 0,
    "numel": lambda x: x.numel() > 32,
    "minimum": lambda x: min(x.shape[0], 8) == 8,
    "sliced": lambda x: x[8:].shape[0] > 0,
    "split": lambda x: len(x.split(8)) > 1,
    "whole": lambda x: tuple(x.shape) == (16, 4),
    "int": lambda x: int(x.shape[0]) > 8,
}


class Asking(nn.Module):
    """Does one thing or another."""

    def __init__(self, question: str):
        super().__init__()
        self.question, self.layer, self.other = question, nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3)."""
        return self.other(x) if QUESTIONS[self.question](x) else self.layer(x)


@pytest.mark.parametrize(("question", "rows"), [("shape", 1), *((question, 16) for question in QUESTIONS)])
def test_code_that_the_number_of_rows_decides_is_right_for_all_of_them(question, rows):
    networks = separate(lambda: Asking(question))
    made = frozen(pb.deep(networks), torch.randn(rows, 4))
    for n in (*ROWS, 1001):
        check(made, networks, torch.randn(n, 4))


class Checked(nn.Module):
    """Checks that shapes fit together, which is true for any number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3)."""
        y = self.layer(x)
        if y.shape[0] != x.shape[0] or y.shape != (x.shape[0], 6):
            raise ValueError
        return self.head(y.view(x.shape[0], -1))


def test_questions_with_one_answer_for_any_number_of_rows_are_traced():
    networks = separate(Checked)
    made = frozen(pb.deep(networks), torch.randn(4, 4))
    assert "is unchanged" not in made.explain()
    for n in ROWS:
        check(made, networks, torch.randn(n, 4))


class Shared(nn.Module):
    """Adds a table that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(6, 3, 1)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """(batch, 6, 4) -> (batch, 3, 4)."""
        return self.layer(x + table @ x)


@pytest.mark.parametrize("rows", [2, 6, 40])  # as long as the table, and more
def test_a_tensor_that_all_rows_share_is_never_cut(rows):
    networks, table = separate(Shared), torch.randn(6, 6)
    made = frozen(pb.deep(networks), (torch.randn(rows, 6, 4), table))
    assert made.form in ("loop", "beside")
    for n in (1, 2, 6, 40):
        check(made, networks, torch.randn(n, 6, 4), table)
