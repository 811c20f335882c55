"""What is special to lora and to batch_ensemble of a higher rank, against separate networks and against peft."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small import Encoder, cnn, mlp, targets
from torch import Tensor, nn

import pluribus as pb

X = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


def part_(ensemble: pb.Ensemble, spread: float = 0.1) -> pb.Ensemble:
    """Let members differ, as if they had learnt."""
    with torch.no_grad():
        for name, p in ensemble.named_parameters():
            if name.endswith("lora_b"):
                p.normal_(0, spread)
    return ensemble


def merged(ensemble: pb.Ensemble, model: nn.Module, i: int, names: list[str], factor: float) -> nn.Module:
    """Member i as a plain network, by the equation."""
    plain, state = copy.deepcopy(model), dict(ensemble.module.named_parameters())
    with torch.no_grad():
        for name in names:
            plain.get_submodule(name).weight += factor * state[f"{name}.lora_b"][i] @ state[f"{name}.lora_a"][i]
    return plain


def test_members_are_networks_with_a_low_rank_matrix_added_to_their_weights():
    model = mlp().eval()
    ensemble = part_(pb.lora(model, 3, rank=2, alpha=6, where="0|3"))
    for i in range(3):
        torch.testing.assert_close(ensemble(X)[i], merged(ensemble, model, i, ["0", "3"], 3.0)(X), rtol=1e-4, atol=1e-5)


def test_members_start_as_the_model_given_and_differ_in_what_they_can_learn():
    model = mlp().eval()
    ensemble = pb.lora(model, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ensemble(X), model(X).expand(3, -1, -1), rtol=0, atol=1e-6)
    drawn = ensemble.module[0].lora_a  # (members, rank, inputs)
    assert (drawn[0] - drawn[1]).abs().min() > 0
    bound = 10 * (6 / (6 + 8)) ** 0.5  # Xavier's law with the paper's gain
    assert 0.9 * bound < drawn.abs().max() <= bound


def test_all_but_the_matrices_is_frozen_statistics_too():
    model = nn.Sequential(*cnn()[:-1], nn.Linear(8, 8), nn.Linear(8, 3))
    ensemble = part_(pb.lora(model, 2, heads=True)).train()
    before = {name: t.clone() for name, t in ensemble.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in ensemble.parameters() if p.requires_grad], 0.1)
    ensemble.loss(torch.randn(4, 3, 8, 8), targets(4), F.cross_entropy).backward()
    optimizer.step()
    changed = {name for name, t in ensemble.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {f"module.{name}" for name in ("6.lora_a", "6.lora_b", "7.weight", "7.bias")}


def test_a_joint_step_equals_separate_steps():
    model = mlp().eval()
    ensemble, y = part_(pb.lora(model, 2, rank=2)).eval(), targets(6)
    ensemble.loss(X, y, F.cross_entropy).backward()
    for i in range(2):
        alone = ensemble.member(i)
        F.cross_entropy(alone(X), y).backward()
        for name in ("0.lora_a", "3.lora_b"):
            expected = alone.get_parameter(name).grad
            torch.testing.assert_close(ensemble.module.get_parameter(name).grad[i], expected, rtol=1e-4, atol=1e-6)


def test_by_default_the_projections_of_attention_get_matrices():
    own = {name.rpartition(".")[0] for name in pb.lora(Encoder(layers=2), 2).own}
    names = [f"encoder.layers.{i}.self_attn.{part}_proj" for i in range(2) for part in ("q", "k", "v", "out")]
    assert own == set(names)


class Fused(nn.Module):
    """Attention as timm writes it: queries, keys and values in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head((q @ k.transpose(-2, -1)).softmax(-1) @ v)


@pytest.mark.parametrize(("where", "parts"), [("qkv", (0, 1, 2)), (r"qkv\.(q|v)", (0, 2)), (r"qkv\.k", (1,))])
def test_fused_projections_count_as_three(where, parts):
    torch.manual_seed(0)
    model = Fused()
    ensemble = part_(pb.lora(model, 2, rank=2, where=where))
    layer = ensemble.module.qkv
    for i in range(2):
        plain = copy.deepcopy(model)
        with torch.no_grad():
            for k, part in enumerate(parts):
                product = layer.lora_b[i, 6 * k : 6 * k + 6] @ layer.lora_a[i, 2 * k : 2 * k + 2]
                plain.qkv.weight[6 * part : 6 * part + 6] += product
        torch.testing.assert_close(ensemble(X)[i], plain(X), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pb.freeze(ensemble.eval(), X)(X), ensemble(X), rtol=1e-4, atol=1e-5)


def test_a_file_holds_what_members_own_and_refuses_another_base(tmp_path):
    model, path = mlp().eval(), tmp_path / "own"
    ensemble = part_(pb.lora(model, 2, rank=1, where="3"))
    pb.save(ensemble, path)
    pb.save(ensemble, tmp_path / "whole", whole=True)
    assert path.stat().st_size < (tmp_path / "whole").stat().st_size
    torch.testing.assert_close(pb.load(path, model)(X), ensemble(X), rtol=0, atol=0)
    other = copy.deepcopy(model)
    other[0].weight.data[0, 0] += 1e-6
    with pytest.raises(ValueError, match=rf"hash {ensemble.base}, but .* have {pb.lora(other, 2).base}"):
        pb.load(path, other)
    torch.testing.assert_close(pb.load(tmp_path / "whole", other)(X), ensemble(X), rtol=0, atol=0)


def test_a_base_that_was_changed_is_saved_whole(tmp_path):
    model = mlp().eval()
    ensemble = part_(pb.lora(model, 2))
    ensemble.module[0].weight.data += 1
    pb.save(ensemble, tmp_path / "file")
    torch.testing.assert_close(pb.load(tmp_path / "file", model)(X), ensemble(X), rtol=0, atol=0)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="no linear layer"):
        pb.lora(nn.Sequential(nn.Conv2d(3, 8, 3)), 2)
    for options, message in (
        ({"rank": 0}, "rank must be a whole number of at least 1"),
        ({"alpha": -1.0}, "alpha must be finite and positive"),
        ({"gain": float("nan")}, "gain must be finite and positive"),
        ({"where": "nothing"}, "'nothing' matches none"),
    ):
        with pytest.raises(ValueError, match=message):
            pb.lora(mlp(), 2, **options)


def _bert(transformers):
    """BERT-base: 12 layers, 109 million parameters."""
    return (
        transformers.BertForSequenceClassification(transformers.BertConfig()),
        r".*\.(query|value)",
        ["query", "value"],
    )


def _gpt(transformers):
    """GPT-2's attention, queries, keys and values in one layer that keeps its inputs first: one piece, as in peft."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
    model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(vocab_size=100, **sizes))
    return model, r".*\.c_proj", ["c_proj"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [_bert, _gpt])
def test_a_member_equals_pefts_with_the_same_matrices(make):
    peft = pytest.importorskip("peft", reason="peft, the peer, is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model, where, targets = make(transformers)
    ensemble = part_(pb.lora(model.eval(), 2, 8, alpha=16, where=where), 0.01)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, fan_in_fan_out=make is _gpt)
    theirs, words = peft.get_peft_model(copy.deepcopy(model), config).eval(), torch.randint(1, 100, (3, 9))
    own = dict(ensemble.module.named_parameters())
    for i in range(2):
        with torch.no_grad():
            for name, p in theirs.named_parameters():
                if "lora_" in name:
                    ours = name.removeprefix("base_model.model.").replace(".default.weight", "").lower()
                    p.copy_(own[ours][i])
        expected = theirs(input_ids=words).logits
        assert not torch.allclose(expected, model(input_ids=words).logits, atol=1e-3)
        torch.testing.assert_close(ensemble(input_ids=words).logits[i], expected, rtol=0, atol=1e-5)


def test_gpt_2_gets_matrices_in_its_fused_layers_which_keep_their_inputs_first():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
    model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(vocab_size=20, **sizes)).eval()
    ensemble, words = part_(pb.lora(model, 2, 3)), torch.randint(1, 20, (2, 5))
    assert {name.split(".h.0.")[1] for name in ensemble.own if "lora_b" in name} == {
        "attn.c_attn.lora_b", "attn.c_proj.lora_b",
    }  # fmt: skip
    for i in range(2):
        plain, own = copy.deepcopy(model), dict(ensemble.module.named_parameters())
        layer, place = plain.transformer.h[0].attn, "transformer.h.0.attn"
        with torch.no_grad():
            a, b = own[f"{place}.c_attn.lora_a"][i].split(3), own[f"{place}.c_attn.lora_b"][i].split(16)
            layer.c_attn.weight += torch.cat([y @ x for x, y in zip(a, b, strict=True)]).T
            layer.c_proj.weight += (own[f"{place}.c_proj.lora_b"][i] @ own[f"{place}.c_proj.lora_a"][i]).T
        expected = plain(input_ids=words).logits
        torch.testing.assert_close(ensemble(input_ids=words).logits[i], expected, rtol=1e-4, atol=1e-5)
        frozen = pb.freeze(ensemble, {"input_ids": words})(input_ids=words)
        torch.testing.assert_close(frozen.logits[i], expected, rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------- batch_ensemble of a higher rank


@pytest.mark.parametrize("build", [mlp, cnn])
def test_a_higher_rank_starts_as_batch_ensemble(build):
    model = build().eval()
    x = X if build is mlp else torch.randn(3, 3, 8, 8)
    one, three = (pb.batch_ensemble(model, 2, rank=r, generator=torch.Generator().manual_seed(3)) for r in (1, 3))
    assert one.module[0].r.shape == (2, one.module[0].r.shape[-1])
    assert three.module[0].r.shape == (2, 3, one.module[0].r.shape[-1])
    torch.testing.assert_close(three(x), one(x), rtol=0, atol=0)


@pytest.mark.parametrize("training", [False, True])
def test_members_of_a_higher_rank_have_weights_times_a_matrix_of_that_rank(training):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    ensemble = pb.batch_ensemble(model, 2, rank=2).train(training)  # in training members are rows of one batch
    with torch.no_grad():
        for layer in (ensemble.module[0], ensemble.module[2]):
            layer.s.normal_()
    for i in range(2):
        plain = copy.deepcopy(model)
        with torch.no_grad():
            for layer, own in ((plain[0], ensemble.module[0]), (plain[2], ensemble.module[2])):
                layer.weight *= own.s[i].T @ own.r[i]
        torch.testing.assert_close(ensemble(X)[i], plain(X), rtol=1e-4, atol=1e-5)
    frozen = pb.freeze(ensemble.eval(), X)
    torch.testing.assert_close(frozen(X), ensemble(X), rtol=1e-4, atol=1e-5)
