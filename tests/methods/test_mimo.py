"""MIMO on models that look at their input beside the first layer, that run parts again, or that cannot be widened."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pluribus as pb


class Words(nn.Module):
    """Words, the sum of what they become, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def pool(self, hidden: Tensor, words: Tensor) -> Tensor:
        """(batch, time, 8) -> (batch, 8)."""
        return hidden.mean(1)

    def forward(self, words: Tensor) -> Tensor:
        """(batch, time) -> (batch, 3)."""
        return self.head(self.pool(torch.tanh(self.body(self.words(words))), words))


class Masked(Words):
    """Words of padding do not count."""

    def pool(self, hidden: Tensor, words: Tensor) -> Tensor:
        """The mean over words that are no padding."""
        mask = (words != 0).to(hidden.dtype)
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class Last(Words):
    """The last word that is no padding."""

    def pool(self, hidden: Tensor, words: Tensor) -> Tensor:
        """What became of that word."""
        return hidden[torch.arange(len(words)), (words != 0).sum(1) - 1]


class Counted(Words):
    """A number that Python reads."""

    def pool(self, hidden: Tensor, words: Tensor) -> Tensor:
        """The mean, over the words that the longest sentence has."""
        return hidden[:, : int((words != 0).sum(1).max())].sum(1)


class Placed(Words):
    """Positions that follow from the length alone."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(9, 8)

    def pool(self, hidden: Tensor, words: Tensor) -> Tensor:
        """The mean with positions."""
        return (hidden * self.places(torch.arange(words.shape[1]))).mean(1)


DERIVED = {"mask": Masked, "last word": Last, "number": Counted}


def sentences(rows: int = 6) -> Tensor:
    """Words, the last of them padding."""
    words = torch.randint(1, 11, (rows, 5))
    words[torch.arange(5) >= torch.randint(2, 6, (rows, 1))] = 0
    words[0], words[1] = words[0].clamp(min=1), torch.tensor([3, 0, 0, 0, 0])
    return words


@pytest.mark.parametrize("build", DERIVED.values(), ids=DERIVED)
def test_what_a_model_computes_from_its_input_beside_the_first_layer_is_refused(build):
    torch.manual_seed(0)
    x, y = sentences(), torch.randint(3, (6,))
    with pytest.raises(ValueError, match=r"mimo: .*'words'.*it also goes around them"):
        pb.mimo(build(), 3, example=x)
    with pytest.raises(ValueError, match=r"mimo: .*'words'.*also computes something else from it"):
        for _ in range(4):  # whatever order the members have
            pb.mimo(build(), 3, first="words", last="head").loss(x, y, F.cross_entropy)


@pytest.mark.parametrize("build", [Words, Placed])
def test_what_follows_from_sizes_is_not_refused(build):
    torch.manual_seed(0)
    x, y = sentences(), torch.randint(3, (6,))
    assert pb.mimo(build(), 3, example=x).loss(x, y, F.cross_entropy).isfinite()


def test_the_index_of_gpt_s_last_word_is_refused():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 8, "num_labels": 3}
    model = GPT2ForSequenceClassification(GPT2Config(**sizes, pad_token_id=0))
    with pytest.raises(ValueError, match="mimo: .*computes something else|mimo: .*goes around"):
        pb.mimo(model, 2, example={"input_ids": sentences()})


class Steps(nn.Module):
    """A first layer that is computed again for its gradients."""

    def __init__(self, again: bool):
        super().__init__()
        self.again, self.enter, self.head = again, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 3)."""
        part = lambda x: torch.tanh(self.enter(x))  # noqa: E731
        return self.head(checkpoint(part, x, use_reentrant=False) if self.again else part(x))


@pytest.mark.parametrize("between", [False, True])
def test_checkpointing_over_the_first_layer_gives_the_same_gradients(between):
    torch.manual_seed(0)
    x, y = torch.randn(3, 5, 6), torch.randint(3, (3, 5))
    gradients = []
    for again in (False, True):
        torch.manual_seed(1)
        ensemble = pb.mimo(Steps(again), 3, example=x[0], init="different").train()
        loss = ensemble.loss(x, y, F.cross_entropy, per_member=True)
        if between:  # another pass before the gradients
            loss = loss + ensemble.loss(x.flip(1), y, F.cross_entropy, per_member=True)
            ensemble.eval()(x[0])
        loss.backward()
        gradients.append([p.grad.clone() for p in ensemble.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


CHANGES = {
    "weight norm": nn.utils.parametrizations.weight_norm,
    "spectral norm": nn.utils.parametrizations.spectral_norm,
}


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_layer_that_cannot_be_widened_is_named(change, place):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    change(model[place])
    with pytest.raises(ValueError, match=rf"mimo: layer '{place}' computes its weight from other tensors.*first="):
        pb.mimo(model, 3, example=torch.randn(2, 6))


@pytest.mark.parametrize("method", ["masksembles", "batch_ensemble"])
def test_a_layer_of_another_ensemble_is_named(method):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    member = pb.METHODS[method](model, 3).member(0)
    member(torch.randn(2, 6))
    with pytest.raises(ValueError, match="mimo: layer '[04]' belongs to a member of another ensemble"):
        pb.mimo(member, 3, example=torch.randn(2, 6))


def test_an_embedding_that_is_tied_to_a_layer_in_between_is_named():
    class Tied(Words):
        def __init__(self) -> None:
            super().__init__()
            self.others = nn.Embedding(11, 8)
            self.others.weight = self.words.weight

    with pytest.raises(ValueError, match="mimo: layer 'words' shares its weight with 'others.weight'"):
        pb.mimo(Tied(), 3, example=sentences())


def test_first_and_last_layers_that_are_tied_have_a_tensor_each_and_explain_says_so():
    class Tied(Words):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.words.weight

    model, words = Tied().eval(), sentences()
    ensemble = pb.mimo(model, 3, example=words, init="same").eval()
    torch.testing.assert_close(ensemble(words), model(words).expand(3, -1, -1))
    assert "shared one tensor and now have one each" in ensemble.explain()


# ---------------------------------------------------------------- where members start


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))


def start_apart(ensemble, first: str, last: str) -> bool:
    """Whether no two members have the same slice of the first or of the last layer."""
    weights = dict(ensemble.module.named_parameters())
    pieces = [weights[f"{first}.weight"].chunk(3, 1), weights[f"{last}.weight"].chunk(3, 0)]
    return all(not torch.equal(one[i], one[j]) for one in pieces for i in range(3) for j in range(i))


def train_a_little(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(len(x)) % 4).backward()
        optimizer.step()


@pytest.mark.parametrize(("build", "shape", "last"), [(plain, (6,), "4"), (normalised, (2, 6, 6), "4")])
def test_members_start_apart_in_a_fresh_network_and_as_it_in_a_trained_one(build, shape, last):
    torch.manual_seed(0)
    x = torch.randn(32, *shape)
    for _ in range(5):
        model = build()
        fresh = pb.mimo(model, 3, example=x)
        assert start_apart(fresh, "0", last) and "does not seem to be trained" in fresh.explain()
        train_a_little(model, x)
        kept = pb.mimo(model.eval(), 3, example=x).eval()
        torch.testing.assert_close(kept(x), model(x).expand(3, -1, -1))
        assert "init: 'same', because the model seems to be trained" in kept.explain()


def test_an_initialisation_of_ones_own_is_no_training():
    torch.manual_seed(0)
    model = plain()
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    assert start_apart(pb.mimo(model, 3, example=torch.randn(4, 6)), "0", "4")


def test_what_is_asked_for_is_done():
    x, model = torch.randn(4, 6), plain()
    assert not start_apart(pb.mimo(model, 3, example=x, init="same"), "0", "4")
    train_a_little(model, x)
    assert start_apart(pb.mimo(model, 3, example=x, init="different"), "0", "4")
    with pytest.raises(ValueError, match="init must be"):
        pb.mimo(model, 3, example=x, init="apart")
