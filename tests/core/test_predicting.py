"""What `predict` gives the network: its inputs as they are, all of them, and rows that are rows."""

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pluribus as pb


class Masked(nn.Module):
    """A network with a second input that it can do without."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x, mask=None):
        return self.head(x if mask is None else x * mask)


def test_the_last_of_what_a_loader_gives_are_the_targets_and_all_else_is_given_to_the_network():
    ensemble, x, mask, y = pb.deep(Masked(), 2), torch.randn(6, 4), torch.rand(6, 4).round(), torch.arange(6) % 3
    expected = ensemble(x, mask).softmax(-1).detach()
    three = DataLoader(TensorDataset(x, mask, y), batch_size=3)
    nested = [((x[:3], mask[:3]), y[:3]), ((x[3:], mask[3:]), y[3:])]
    named = [{"x": x[:3], "mask": mask[:3], "labels": y[:3]}, {"x": x[3:], "mask": mask[3:], "labels": y[3:]}]
    for given in (three, nested, named):
        torch.testing.assert_close(ensemble.predict(given).members, expected)
        assert pb.calibrate(ensemble, given).examples == 6


def test_a_number_that_is_none_is_named_by_its_row_and_column():
    table = pandas.DataFrame(torch.randn(6, 4).numpy(), columns=list("abcd"))
    table.iloc[4, 2] = float("nan")
    with pytest.raises(ValueError, match=r"row 4, column 'c'"):
        pb.deep(Masked(), 2).predict(table)
    with pytest.raises(ValueError, match=r"must hold numbers .*red"):
        pb.deep(Masked(), 2).predict(table.assign(d="red"))


class Clock(nn.Module):
    """Reads a large number, such as a time in seconds, of which small differences count."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1, 3)

    def forward(self, x):
        return self.head((x - 1.7e9).to(self.head.weight.dtype))


@pytest.mark.parametrize("kind", [lambda x: x, lambda x: x.numpy(), lambda x: [x[:3], x[3:]]])
def test_inputs_in_double_precision_are_not_rounded_where_the_network_takes_them(kind):
    ensemble = pb.deep(Clock(), 2)
    x = 1.7e9 + torch.arange(6, dtype=torch.float64)[:, None]
    offsets = torch.arange(6.0)[:, None]
    with torch.no_grad():
        expected = torch.stack([ensemble.member(i).head(offsets).softmax(-1) for i in range(2)])
    torch.testing.assert_close(ensemble.predict(kind(x)).members, expected)
    torch.testing.assert_close(ensemble.predict(x, batch_size=2).members, expected)


def test_inputs_get_the_weights_precision_where_the_network_takes_no_other():
    ensemble, x = pb.deep(nn.Linear(4, 3), 2), np.random.default_rng(0).normal(size=(6, 4))
    expected = ensemble(torch.tensor(x, dtype=torch.float32)).softmax(-1).detach()
    torch.testing.assert_close(ensemble.predict(x).members, expected)
    torch.testing.assert_close(ensemble.predict(x, batch_size=4).members, expected)


class Sequence(nn.Module):
    """Steps first, as torch's recurrent layers have them by default."""

    def __init__(self, batch_first):
        super().__init__()
        self.steps, self.head = nn.GRU(4, 5, batch_first=batch_first), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.steps(x)[0])


def test_steps_of_a_sequence_are_not_cut_into_batches():
    x = torch.randn(8, 6, 4)
    first, second = (pb.deep(Sequence(kind), 2) for kind in (False, True))
    with pytest.raises(ValueError, match="cannot be split so that each row keeps its output. Leave batch_size out"):
        first.predict(x, batch_size=4)
    for ensemble in (first, second):
        with torch.no_grad():
            expected = torch.stack([ensemble.member(i)(x).softmax(-1) for i in range(2)])
        torch.testing.assert_close(ensemble.predict(x).members, expected)
    torch.testing.assert_close(second.predict(x, batch_size=3).members, expected)


def test_rows_that_give_several_outputs_are_still_cut():
    ensemble, x = pb.deep(nn.Sequential(nn.Linear(4, 3), nn.Flatten(0, 1)), 2), torch.randn(6, 5, 4)
    torch.testing.assert_close(ensemble.predict(x, batch_size=4).mean, ensemble.predict(x).mean)


def test_batches_of_other_lengths_are_summarised_or_refused_in_words():
    ensemble = pb.deep(nn.Linear(4, 3), 2)
    batches = [(torch.randn(2, length, 4), torch.randint(3, (2, length))) for length in (5, 3, 3)]
    with pytest.raises(ValueError, match=r'one shape, but there are \(3, 3\), \(5, 3\).*keep="summary"'):
        ensemble.predict(batches)
    summary = ensemble.predict(batches, keep="summary")
    flat = [(ensemble.predict(x).mean.argmax(-1) == y).flatten() for x, y in batches]
    assert pb.evaluate(summary)["accuracy"] == pytest.approx(torch.cat(flat).double().mean().item())
