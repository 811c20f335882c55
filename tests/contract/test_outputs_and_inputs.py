"""Outputs that are no tree, and inputs that all rows share: as separate networks give and take them."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import targets
from torch import nn

import pluribus as pb


class Gives(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layer, self.make = nn.Linear(6, 3), make

    def forward(self, x):
        return self.make(self.layer(x))


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = {"deep": [inner]}


OUTPUTS = {
    "namespace": (lambda y: SimpleNamespace(logits=y, more=[y * 2]), lambda o: [o.logits, o.more[0]]),
    "distribution": (lambda y: torch.distributions.Normal(y, 2.0), lambda o: [o.mean, o.log_prob(torch.ones(3))]),
    "nested": (
        lambda y: {"d": torch.distributions.Independent(torch.distributions.Normal(y, 1.0), 1)},
        lambda o: [o["d"].mean],
    ),
    "object": (lambda y: (y, Slotted(y)), lambda o: [o[0], o[1].inner["deep"][0]]),
}


@pytest.mark.filterwarnings("ignore:.*this model does not run under vmap .its output holds tensors inside of objects")
@pytest.mark.parametrize("run", ["vmap", "loop", "unlike"])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_objects_in_an_output_are_each_members_own(kind, run):
    make, read = OUTPUTS[kind]
    models, x = [Gives(make) for _ in range(3)], torch.randn(5, 6)
    if run == "unlike":
        models[1].layer = nn.Sequential(models[1].layer)
    ensemble = pb.deep(models)
    if run != "unlike":
        ensemble.run = run
    outputs = ensemble(x)
    for i, model in enumerate(models):
        for mine, expected in zip(read_member(read, outputs, kind, i), read(model(x)), strict=True):
            torch.testing.assert_close(mine, expected)

    def criterion(output, y):
        return F.cross_entropy(output if isinstance(output, torch.Tensor) else read(output)[0], y)

    y = targets()
    torch.testing.assert_close(ensemble.loss(x, y, criterion), sum(criterion(model(x), y) for model in models))


def read_member(read, outputs, kind, i):
    if kind == "namespace":
        return [t[i] for t in read(outputs)]
    if kind == "distribution":
        return read(outputs[i])
    if kind == "nested":
        return read({"d": outputs["d"][i]})
    return read((outputs[0][i], outputs[1][i]))


def test_numbers_that_differ_between_members_are_all_there():
    class Number(nn.Linear):
        def forward(self, x):
            return super().forward(x), float(self.weight.detach().sum()), np.asarray(self.bias.detach()), "one"

    models = [Number(6, 3) for _ in range(3)]
    ensemble = pb.deep(models)
    ensemble.run = "loop"
    _, sums, arrays, word = ensemble(torch.randn(5, 6))
    assert sums == [float(model.weight.detach().sum()) for model in models]
    assert all(np.array_equal(a, model.bias.detach()) for a, model in zip(arrays, models, strict=True))
    assert word == "one"


class Table(nn.Module):
    """Reads a table that all rows share; `how` it does so differs."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how, self.drop = nn.Linear(6, 3), how, nn.Dropout(0.5)

    def forward(self, x, table):
        return self.drop(self.layer(x)) + self.how(x, table)


TABLES = {
    "mean": lambda x, table: table.mean(),
    "first": lambda x, table: table[0, :3],
    "product": lambda x, table: (x[:, :1] * table.sum(1)).sum(1, keepdim=True),
    "own row": lambda x, table: table[:, :3],
    "unused": lambda x, table: 0.0,
}


@pytest.mark.parametrize("method", ["deep", "batch_ensemble", "mc_dropout", "unlike"])
@pytest.mark.parametrize("how", TABLES)
def test_an_input_that_all_rows_share_is_not_cut(how, method):
    model, batch = Table(TABLES[how]).eval(), (torch.randn(5, 6), torch.randn(5, 5))
    ensemble = pb.deep([model, copy.deepcopy(model).train()]) if method == "unlike" else pb.METHODS[method](model, 3)
    if method == "mc_dropout":
        ensemble(*batch)
        for part in ensemble.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0  # the draws of whole batches and of parts differ
    whole = ensemble.predict(batch).mean
    for rows in (1, 2, 3, 4):
        torch.testing.assert_close(ensemble.predict(batch, batch_size=rows).mean, whole)
    torch.testing.assert_close(ensemble.predict([(batch, targets())], batch_size=1).mean, whole)


def test_bags_of_words_with_offsets_cannot_be_cut():
    model = nn.EmbeddingBag(10, 3)
    ensemble = pb.deep(model, 3)
    words, offsets = torch.randint(10, (20,)), torch.tensor([0, 3, 7, 12, 15])
    assert ensemble.predict((words, offsets)).mean.shape == (5, 3)
    for rows in (1, 4):
        with pytest.raises(ValueError, match="Leave batch_size out"):
            ensemble.predict((words, offsets), batch_size=rows)
    assert ensemble.predict(words.view(5, 4), batch_size=2).mean.shape == (5, 3)


class AddsATable(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, x, table):
        return self.last(self.drop(torch.tanh(self.first(x) + 0.1 * table.sum())))


class Mixes(AddsATable):
    def forward(self, x, table):
        return self.last(self.drop(torch.tanh(self.first(x @ table))))


IN_ROWS = ["masksembles", "batch_ensemble"]  # members are rows of one batch


@pytest.mark.parametrize("model", [AddsATable, Mixes])
@pytest.mark.parametrize("method", IN_ROWS)
def test_a_table_as_long_as_the_batch_is_not_taken_for_rows_in_training(method, model):
    ensemble = pb.METHODS[method](model(), 3).train()
    x, table = torch.randn(6, 6), torch.randn(6, 6)
    ensemble.module.drop.p, y = 0.0, targets(6)
    expected = torch.stack([ensemble.member(i)(x, table) for i in range(3)])
    torch.testing.assert_close(ensemble(x, table), expected)
    loss = torch.stack([F.cross_entropy(each, y) for each in expected]).mean()
    torch.testing.assert_close(ensemble.loss((x, table), y, F.cross_entropy), loss)
    assert "not as rows" in ensemble.explain()


def test_a_table_of_another_length_is_the_same_for_all_rows_in_training():
    x, table, y = torch.randn(5, 6), torch.randn(6, 6), targets(5)
    ensemble = pb.batch_ensemble(Mixes(), 3).train()
    ensemble.module.drop.p = 0.0
    separate = [F.cross_entropy(ensemble.member(i)(x, table), y) for i in range(3)]
    torch.testing.assert_close(ensemble.loss((x, table), y, F.cross_entropy), torch.stack(separate).mean())


def test_sparse_inputs_are_right_and_refused_in_words_where_rows_must_be_taken(tmp_path):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Parameter(torch.randn(6, 4)), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(torch.sparse.mm(x, self.table))

    models, x = [Sparse().eval() for _ in range(3)], torch.eye(6)[:4].to_sparse()
    ensemble = pb.deep(models)
    expected = torch.stack([model.head(x.to_dense() @ model.table) for model in models])
    for run in ("vmap", "loop"):
        ensemble.run = run
        torch.testing.assert_close(ensemble(x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="freeze: an input is sparse.*to_dense"):
        pb.freeze(ensemble, x)
    with pytest.raises(ValueError, match="export: an input is sparse.*to_dense"):
        pb.export(ensemble, x, tmp_path / "model.pt2")
