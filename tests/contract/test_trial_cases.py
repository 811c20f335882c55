"""Models that a trial found to be answered wrongly, or with torch's raw words: right now, or refused in words."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

import pluribus as pb

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3


def members_one_by_one(ensemble, *args):
    """What copies of the members give, each a network of its own."""
    return torch.stack([ensemble.member(i).train(ensemble.training)(*args) for i in range(ensemble.size)])


class Graph(nn.Module):
    """A layer of a graph network: `edge_index` belongs to the whole batch."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, edge_index):
        h = self.enter(x)
        return self.leave((h + torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])).relu())


class Bags(nn.Module):
    """Words of all rows in one long list, as in torch's tutorial on classifying texts."""

    def __init__(self):
        super().__init__()
        self.words, self.middle, self.leave = nn.EmbeddingBag(10, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids, offsets):
        return self.leave(self.middle(self.words(ids, offsets)).relu())


class Padded(nn.Module):
    """Sequences of their own lengths."""

    def __init__(self):
        super().__init__()
        self.enter, self.recurrent, self.leave = nn.Linear(4, 5), nn.GRU(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.enter(x), lengths, batch_first=True, enforce_sorted=False)
        return self.leave(self.recurrent(packed)[1][-1])


WHOLE_BATCHES = {
    "edges": (Graph, (X, torch.tensor([[0, 1, 2, 5, 3], [4, 0, 1, 3, 5]]))),
    "as many edges as rows": (Graph, (X[:2], torch.tensor([[0, 1], [1, 0]]))),
    "bags": (Bags, (torch.arange(12) % 10, torch.tensor([0, 3, 5, 9, 10, 11]))),
    "as many bags as words": (Bags, (torch.arange(6), torch.arange(6))),
    "lengths": (Padded, (torch.randn(6, 7, 4), torch.tensor([7, 3, 5, 2, 6, 1]))),
}


@pytest.mark.parametrize("method", ["deep", "batch_ensemble", "masksembles"])
@pytest.mark.parametrize("name", WHOLE_BATCHES)
def test_inputs_that_belong_to_the_whole_batch(name, method):
    network, args = WHOLE_BATCHES[name]
    options = {"example": args} if method == "masksembles" else {}
    ensemble = getattr(pb, method)(network(), 2, **options)
    for mode in (True, False):
        ensemble.train(mode)
        torch.testing.assert_close(ensemble(*args), members_one_by_one(ensemble, *args))
    rows = len(members_one_by_one(ensemble, *args)[0])
    ensemble.train().loss(args, Y[:rows], F.cross_entropy).backward()
    assert all(parameter.grad.isfinite().all() for parameter in ensemble.parameters())


class Named(nn.Linear):
    """A layer that calls its input by another name than torch's."""

    def forward(self, x, scale=1.0):
        return scale * super().forward(x)


class CalledByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), Named(8, 8), Named(8, 3)

    def forward(self, x):
        return self.c(x=self.b(scale=2.0, x=self.a(input=x).relu()).relu())


@pytest.mark.parametrize("method", ["batch_ensemble", "masksembles", "mc_dropout", "lora", "tabm"])
def test_a_layer_that_is_called_by_the_name_of_its_input(method):
    options = {"rate": 0.5} if method == "mc_dropout" else {}
    ensemble = getattr(pb, method)(CalledByName(), 2, **options)
    outputs = ensemble.train()(X)
    assert outputs.shape == (2, 6, 3) and (method == "lora" or not torch.allclose(outputs[0], outputs[1]))
    if method != "mc_dropout":
        torch.testing.assert_close(outputs, members_one_by_one(ensemble, X))


def test_mimo_of_layers_that_are_called_by_the_names_of_their_inputs():
    model = nn.Sequential(Named(4, 8), nn.ReLU(), Named(8, 3))
    model.forward = lambda x: model[2](x=model[1](model[0](x=x)))
    expected = model(X)
    torch.testing.assert_close(pb.mimo(model, 2, example=X, init="same")(X), torch.stack([expected] * 2))


def test_mimo_refuses_rows_that_are_picked_by_their_values():
    class Picked(CalledByName):
        def forward(self, x):
            h, made = self.b(self.a(x).relu()), torch.zeros(len(x), 3)
            made[h[:, 0] > 0] = self.c(h[h[:, 0] > 0])
            return made

    with pytest.raises(
        ValueError, match="mimo: with the members' inputs side by side .* rows by their values.*pb.deep"
    ):
        pb.mimo(Picked(), 2, example=X)


def test_masks_of_layers_that_read_sorted_rows():
    class Sorted(CalledByName):
        def forward(self, x):
            h = self.a(x).relu()
            return self.c(self.b(h[h[:, 0].argsort()]).relu())

    ensemble = pb.masksembles(Sorted(), 2, example=X)
    assert len(list(ensemble.buffers())) == 2
    torch.testing.assert_close(ensemble.train()(X), members_one_by_one(ensemble, X))


@pytest.mark.parametrize("name", WHOLE_BATCHES)
def test_mimo_refuses_inputs_that_belong_to_the_whole_batch(name):
    network, args = WHOLE_BATCHES[name]
    rows = len(network()(*args))
    with pytest.raises(ValueError, match="any number of rows|widened|same for all members|counts rows of the batch"):
        for _ in range(20):  # each with orders of its own
            pb.mimo(network(), 2, example=args).loss(args, Y[:rows], F.cross_entropy)


def test_mimo_says_that_a_packed_sequence_cannot_be_its_input():
    class Direct(Padded):
        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.leave(self.recurrent(packed)[1][-1])

    args = torch.randn(6, 7, 5), torch.tensor([7, 3, 5, 2, 6, 1])
    with pytest.raises(ValueError, match="mimo: .*'recurrent'.*goes around them"):
        pb.mimo(Direct(), 2, example=args)
    with pytest.raises(TypeError, match="mimo: .* must get a tensor, but it gets a PackedSequence.* another method"):
        pb.mimo(Direct(), 2, first="recurrent", last="leave")(*args)


def test_packed_names_a_parametrization_that_knows_its_size():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.utils.parametrizations.orthogonal(model[2])
    with pytest.raises(ValueError, match=r"parametrization of '2.weight' .* new size \(4, 4\).* width_factor"):
        pb.packed(model, 4, example=X)


def test_deep_of_deep_with_batch_normalisation():
    def network():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    ensemble = pb.deep(pb.deep(network(), 2), 3)
    apart = [[ensemble.member(i).member(j) for j in range(2)] for i in range(3)]
    expected = torch.stack([torch.stack([net.train()(X) for net in nets]) for nets in apart])
    torch.testing.assert_close(ensemble.train()(X), expected)
    means = torch.stack([torch.stack([net[1].running_mean for net in nets]) for nets in apart])
    torch.testing.assert_close(ensemble.module.module[1].running_mean, means)


def test_a_mimo_of_one_layer_is_loaded(tmp_path):
    ensemble = pb.mimo(nn.Linear(4, 3), 2, example=X).eval()
    pb.save(ensemble, tmp_path / "one.safetensors")
    assert torch.equal(pb.load(tmp_path / "one.safetensors", nn.Linear(4, 3))(X), ensemble(X))


def test_an_optimizer_for_each_member_leaves_frozen_parameters_alone():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False)
    ensemble = pb.deep(model, 2)
    apart = [ensemble.member(i) for i in range(2)]
    optimizer = pb.PerMember(ensemble, SGD, ensemble.parameter_groups(lr=0.1))
    ensemble.loss(X, Y, F.cross_entropy).backward()
    optimizer.step()
    for i, network in enumerate(apart):
        F.cross_entropy(network(X), Y).backward()
        SGD([p for p in network.parameters() if p.requires_grad], lr=0.1).step()
        for trained, alone in zip(ensemble.member(i).parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(trained, alone)


def test_an_optimizer_that_computes_the_loss_itself_is_refused_for_each_member():
    ensemble = pb.deep(nn.Linear(4, 3), 2)
    with pytest.raises(ValueError, match="LBFGS computes the loss several times"):
        pb.PerMember(ensemble, torch.optim.LBFGS, ensemble.parameter_groups(lr=0.1))


def test_sparse_gradients_of_an_embedding_are_the_members():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.leave = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)

        def forward(self, ids):
            return self.leave(self.words(ids).mean(1))

    ensemble, ids = pb.deep(Words(), 2), torch.arange(30).reshape(6, 5) % 10
    apart = [ensemble.member(i) for i in range(2)]
    ensemble.loss(ids, Y, F.cross_entropy).backward()
    for network in apart:
        F.cross_entropy(network(ids), Y).backward()
    found = ensemble.module.words.weight.grad.to_dense()
    torch.testing.assert_close(found, torch.stack([network.words.weight.grad.to_dense() for network in apart]))


class Experts(nn.Module):
    """Each row goes to the experts that the router ranks first."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.enter, self.router, self.leave = rank, nn.Linear(6, 16), nn.Linear(16, 8), nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x):
        x = self.enter(x).relu()
        gate = self.router(x).softmax(-1)
        if self.rank == "by value":  # as sparse experts run: rows are picked, which no dry run can follow
            best, made = gate.argmax(-1), torch.zeros_like(x)
            for k, expert in enumerate(self.experts):
                made[best == k] = expert(x[best == k])
            return self.leave(made * gate.amax(-1, keepdim=True))
        weights, places = gate.topk(2, -1) if self.rank == "topk" else gate.max(-1, keepdim=True)
        return self.leave(sum(((places == k) * weights).sum(-1, True) * e(x) for k, e in enumerate(self.experts)))


@pytest.mark.parametrize("rank", ["topk", "max", "by value"])
def test_packed_keeps_the_outputs_of_a_router(rank):
    x = torch.randn(200, 6)
    ensemble = pb.packed(Experts(rank), 4, 2, example=x)
    member = ensemble.member(0)
    assert (member.router.in_features, member.router.out_features) == (8, 8)
    assert "8 outputs that the model ranks (argmax, topk) stay 8" in ensemble.explain()
    member(x).sum().backward()
    reached = [expert for expert in member.experts if expert.weight.grad is not None and expert.weight.grad.any()]
    assert len(reached) > 4  # with four outputs the others would never learn


def test_packed_names_projections_that_keep_their_outputs():
    class Heads(nn.Module):
        """Queries and keys are split by numbers in the code, values are not."""

        def __init__(self):
            super().__init__()
            self.enter, self.leave = nn.Linear(4, 16), nn.Linear(16, 3)
            self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            h = self.enter(x).relu()
            q, k = (layer(h).view(len(h), -1, 4, 4).transpose(1, 2) for layer in (self.q, self.k))
            return self.leave(((q @ k.mT).softmax(-1).mean(1) @ self.v(h)).mean(1))

    ensemble = pb.packed(Heads(), 4, 2, example=torch.randn(3, 5, 4))
    shapes = {name: tuple(layer.weight.shape) for name, layer in ensemble.member(0).named_children()}
    assert shapes == {"enter": (8, 4), "leave": (3, 8), "q": (16, 8), "k": (16, 8), "v": (8, 8)}
    assert "'q', 'k' keep their outputs, tied to numbers in the model's code" in ensemble.explain()


def test_packed_cuts_widths_whose_greatest_value_alone_is_used():
    class Maximum(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.leave = nn.Linear(6, 16), nn.Linear(16, 3)

        def forward(self, x):
            h = self.enter(x)
            return self.leave(h * h.max(-1, keepdim=True)[0])

    assert pb.packed(Maximum(), 4, 2, example=torch.randn(5, 6)).member(0).enter.out_features == 8


def test_packed_names_a_layer_that_the_example_did_not_reach():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.one, self.other, self.leave = (nn.Linear(*s) for s in ((4, 8), (8, 8), (8, 8), (8, 3)))

        def forward(self, x, deep=False):
            h = self.enter(x).relu()
            return self.leave(self.other(h) if deep else self.one(h))

    ensemble = pb.packed(Branches(), 4, 2, example=X)
    torch.testing.assert_close(ensemble(X), members_one_by_one(ensemble, X))
    with pytest.raises(ValueError, match="layer 'other' keeps its widths.*give an example that does"):
        ensemble(X, deep=True)


class Scaled(nn.Module):
    """A part that keeps something beside its tensors."""

    def __init__(self, factor):
        super().__init__()
        self.layer, self.factor = nn.Linear(4, 3), factor

    def forward(self, x):
        return self.layer(x) * float(self.factor)

    def get_extra_state(self):
        return {"factor": self.factor}

    def set_extra_state(self, state):
        self.factor = state["factor"]


def test_what_a_part_keeps_beside_its_tensors_is_saved(tmp_path):
    ensemble = pb.deep(Scaled(5.0), 2)
    pb.save(ensemble, tmp_path / "extra.safetensors")
    assert torch.equal(pb.load(tmp_path / "extra.safetensors", Scaled(2.0))(X), ensemble(X))


def test_what_the_file_cannot_hold_is_refused_before_it_is_written(tmp_path):
    with pytest.raises(ValueError, match="keeps a state of its own beside its tensors"):
        pb.save(pb.deep(Scaled(torch.tensor(5.0)), 2), tmp_path / "extra.safetensors")
    ensemble = pb.deep(Scaled(5.0), 2)
    ensemble.members[1].factor = 7.0  # as a pass might
    with pytest.raises(ValueError, match="the same for all members"):
        pb.save(ensemble, tmp_path / "extra.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_file_without_what_a_part_keeps_is_refused(tmp_path):
    pb.save(pb.deep(nn.Sequential(nn.Linear(4, 3)), 2), tmp_path / "plain.safetensors")
    with pytest.raises(ValueError, match="get_extra_state"):
        pb.load(tmp_path / "plain.safetensors", nn.Sequential(Scaled(2.0)))


def test_what_a_user_changes_deep_inside_reaches_every_member():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.config = nn.Linear(4, 3), {"output": {"factor": 1.0}}

        def forward(self, x):
            return self.layer(x) * self.config["output"]["factor"]

    ensemble = pb.deep(Nested(), 2)
    before = torch.stack([ensemble.module.layer.weight[i] @ X.T for i in range(2)]).transpose(1, 2)
    expected = before + ensemble.module.layer.bias[:, None]
    for factor in (3.0, 5.0):  # before the first batch, and after it
        ensemble.module.config["output"]["factor"] = factor
        torch.testing.assert_close(ensemble(X), factor * expected)
