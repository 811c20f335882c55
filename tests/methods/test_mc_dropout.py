"""Dropout is found wherever a model has it, at the rate it has, and nowhere else."""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb
from pluribus._common.trees import as_batch
from pluribus.methods._mc_dropout import droppers, set_rate_
from pluribus.surgery.replacing import expose_weights

X = torch.randn(4, 16, 8, generator=torch.Generator().manual_seed(0))


def found(model: nn.Module, x=X) -> dict[str, float]:
    return droppers(model, as_batch(x))


class Calls(nn.Module):
    """`function(x, training)` in a forward, inside a child."""

    def __init__(self, function):
        super().__init__()
        self.enter, self.inner = nn.Linear(8, 8), Called(function)

    def forward(self, x):
        return self.inner(self.enter(x))


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, self.training)


FUNCTIONS = {
    "dropout": lambda x, training: F.dropout(x, 0.2, training),
    "by name": lambda x, training: F.dropout(x, training=training, p=0.2),
    "in place": lambda x, training: F.dropout(x.clone(), 0.2, training, True),
    "dropout1d": lambda x, training: F.dropout1d(x, 0.2, training),
    "dropout2d": lambda x, training: F.dropout2d(x[..., None], 0.2, training)[..., 0],
    "dropout3d": lambda x, training: F.dropout3d(x[..., None, None], 0.2, training)[..., 0, 0],
    "alpha": lambda x, training: F.alpha_dropout(x, 0.2, training),
    "feature alpha": lambda x, training: F.feature_alpha_dropout(x, 0.2, training),
    "torch": lambda x, training: torch.dropout(x, 0.2, training),
    "native": lambda x, training: torch.native_dropout(x, 0.2, training)[0],
    "attention": lambda x, training: F.scaled_dot_product_attention(x, x, x, dropout_p=0.2 if training else 0.0),
    "attention by place": lambda x, training: F.scaled_dot_product_attention(x, x, x, None, 0.2 if training else 0.0),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_dropout_called_as_a_function_is_found_in_the_module_that_calls_it(function):
    model = Calls(function)
    torch.manual_seed(1)
    first, second = model(X), model(X)
    assert not torch.equal(first, second)  # it does drop
    assert found(model.eval()) == {"inner": 0.2}


QUIET = {
    "rate 0": lambda x, training: F.dropout(x, 0.0, training),
    "never in training": lambda x, training: F.dropout(x, 0.5, not training),
    "alpha is off unless told": lambda x, training: F.alpha_dropout(x, 0.5),
    "attention": lambda x, training: F.scaled_dot_product_attention(x, x, x),
    "torch": lambda x, training: torch.dropout(x, 0.5, False),
    "nothing": lambda x, training: x,
}


@pytest.mark.parametrize("function", QUIET.values(), ids=QUIET)
def test_what_drops_nothing_in_training_is_not_found(function):
    assert found(Calls(function)) == {}


class Attending(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=rate)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("change", [lambda m: m, expose_weights])
def test_dropout_in_attention_is_found(change):
    assert found(change(Attending(0.3))) == {"attention": 0.3}
    assert found(change(Attending(0.0))) == {}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_the_layers_of_a_recurrent_network_is_found(kind):
    assert found(kind(8, 8, num_layers=2, dropout=0.3)) == {"": 0.3}
    assert found(kind(8, 8, num_layers=2)) == {}
    with pytest.warns(UserWarning, match="num_layers"):
        assert found(kind(8, 8, num_layers=1, dropout=0.3)) == {}


def vision_transformer(**rates):
    timm = importlib.import_module("timm")
    return timm.models.VisionTransformer(16, 8, num_classes=3, embed_dim=8, depth=1, num_heads=2, **rates)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_dropout_of_a_timm_transformer_is_found():
    x = torch.randn(2, 3, 16, 16)
    model = vision_transformer(drop_rate=0.1, pos_drop_rate=0.2, proj_drop_rate=0.3, attn_drop_rate=0.4)
    found_ = found(model, x)
    assert found_["head_drop"] == 0.1
    assert found_["pos_drop"] == 0.2
    assert found_["blocks.0.attn.proj_drop"] == found_["blocks.0.mlp.drop1"] == found_["blocks.0.mlp.drop2"] == 0.3
    assert found_["blocks.0.attn"] == 0.4
    assert len(found_) == 6
    assert found(vision_transformer(), x) == {}


def bert(rate: float) -> nn.Module:
    transformers = importlib.import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=rate, attention_probs_dropout_prob=rate / 2, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def test_dropout_of_a_hugging_face_transformer_is_found():
    words = {"input_ids": torch.randint(20, (2, 5))}
    layer = "bert.encoder.layer.0"
    assert found(bert(0.2), words) == {
        "bert.embeddings.dropout": 0.2,
        f"{layer}.attention.self": 0.1,
        f"{layer}.attention.output.dropout": 0.2,
        f"{layer}.output.dropout": 0.2,
        "dropout": 0.2,
    }
    assert found(bert(0.0), words) == {}


def test_looking_for_dropout_leaves_model_and_chance_alone():
    model = nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.5), Attending(0.5)).eval()
    before, chance = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found(model)
    assert not any(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), chance)


# -------------------------------------------------------------------- rates


@pytest.mark.parametrize(
    "build", [lambda: nn.Dropout(0.1), lambda: Attending(0.1).attention, lambda: nn.LSTM(8, 8, 2, dropout=0.1)]
)
def test_rate_is_set_however_a_module_drops(build):
    model = build()
    set_rate_(model, 0.7)
    assert found(model, (X, X, X) if isinstance(model, nn.MultiheadAttention) else X) == {"": 0.7}


class Drops(nn.Module):
    """Drops at its end, as a function."""

    def __init__(self, drop):
        super().__init__()
        self.layer, self.norm, self.drop, self.rate = nn.Linear(8, 8), nn.BatchNorm1d(8), drop, 0.5

    def forward(self, x):
        y = torch.nn.functional.dropout(self.norm(self.layer(x)), 0.9, False)  # never drops
        return self.drop(self, y)


def attend(self, y):
    """Attention of each row to itself alone: what is dropped is the row."""
    y = y[:, None, None]
    rate = self.rate if self.training else 0.0
    return torch.nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=rate)[:, 0, 0]


CALLS = {
    "torch.dropout": lambda self, y: torch.dropout(y, self.rate, self.training),
    "native": lambda self, y: torch.native_dropout(y, self.rate, self.training)[0],
    "function": lambda self, y: torch.nn.functional.dropout(y, self.rate, self.training),
    "in training only": lambda self, y: torch.nn.functional.dropout(y, self.rate) if self.training else y,
    "named": lambda self, y: torch.nn.functional.dropout(
        y, p=self.rate if self.training else 0.0, training=self.training
    ),
    "attention": attend,
}


@pytest.mark.filterwarnings("default:mc_dropout. this model does not run under vmap")  # attention that drops
@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("drop", CALLS)
def test_only_dropout_is_active_in_eval_mode(drop, run):
    model, x = Drops(CALLS[drop]), torch.randn(200, 8)
    plain = model.eval()(x).detach()  # nothing drops
    ensemble = pb.mc_dropout(model, 3).eval()
    ensemble.run = run
    outputs = ensemble(x).detach()
    dropped = outputs.abs() < 1e-6
    torch.testing.assert_close(torch.where(dropped, 2 * plain, outputs), (2 * plain).expand(3, -1, -1))
    assert 0.4 < dropped.float().mean() < 0.6
    assert torch.equal(ensemble.module.norm.running_mean, model.norm.running_mean)
    another = copy.deepcopy(ensemble)
    torch.manual_seed(1)
    expected = ensemble(x)
    torch.manual_seed(1)
    torch.testing.assert_close(another(x), expected)


MORE = {
    "noise": lambda self, y: F.dropout(y + torch.randn_like(y) if self.training else y, 0.5, self.training),
    "another output": lambda self, y: (F.dropout(y), y) if self.training else y,
    "batch statistics": lambda self, y: F.dropout(
        F.batch_norm(y, torch.zeros(8), torch.ones(8), training=self.training), 0.5, self.training
    ),
}


@pytest.mark.parametrize("drop", MORE)
def test_a_module_that_does_more_than_drop_in_training_is_refused(drop):
    with pytest.raises(ValueError, match="more than dropout would be active. Use nn.Dropout"):
        pb.mc_dropout(Drops(MORE[drop]), 3).eval()(torch.randn(9, 8))


def test_stochastic_depth_is_off_in_eval_mode():
    class Depth(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

        def forward(self, x):
            keep = torch.rand(len(x), 1).round() if self.training else 1.0
            return self.drop(x + keep * self.layer(x))

    model, x = Depth().eval(), torch.randn(100, 8)
    outputs, plain = pb.mc_dropout(model, 3).eval()(x).detach(), model(x).detach()
    torch.testing.assert_close(torch.where(outputs == 0, 2 * plain, outputs), (2 * plain).expand(3, -1, -1))


def test_every_prediction_of_a_model_given_in_eval_mode_has_its_draws():
    model, x = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3)).eval(), torch.randn(9, 6)
    ensemble = pb.mc_dropout(model, 3)
    for _ in range(2):
        members = ensemble.predict(x, batch_size=3).members
        assert all((members[0, rows] - members[1, rows]).abs().max() > 1e-3 for rows in torch.arange(9).split(3))
    assert not model.training
