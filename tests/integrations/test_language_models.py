"""Labels for each token, and language models: against separate networks, transformers' own loss and loops by hand."""

import copy
import itertools

import pytest
import torch
from sklearn import metrics as sk
from torch import nn

import pluribus as pb

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from pluribus.integrations.huggingface import (  # noqa: E402
    EnsembleForCausalLM,
    EnsembleForTokenClassification,
    EnsembleTrainer,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
WORDS, TAGS = 17, 4
SMALL = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
SPECIAL = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}


def tagger():
    config = transformers.BertConfig(
        **SMALL, intermediate_size=12, num_labels=TAGS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return spread(transformers.BertForTokenClassification(config))


def spread(network):
    """The network with weights so large that its answers differ from token to token."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.6)
    return network.eval()


LANGUAGE_MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS,
            n_embd=8,
            n_layer=2,
            n_head=2,
            n_positions=32,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **SPECIAL,
        )  # fmt: skip
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, intermediate_size=12, num_key_value_heads=1, **SPECIAL)
    ),
    "mistral, with a window": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SMALL, intermediate_size=12, num_key_value_heads=1, sliding_window=4, **SPECIAL)
    ),
    "bloom, without position_ids": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(
            vocab_size=WORDS, hidden_size=8, n_layer=2, n_head=2, hidden_dropout=0.0, attention_dropout=0.0, **SPECIAL
        )
    ),
}


def apart(build, size=3):
    """Networks that were made apart."""
    torch.manual_seed(0)
    return [spread(build()) for _ in range(size)]


def rows(count=8, causal=False):
    """Sequences of unlike numbers of labels, padded to the right."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(count):
        length = 3 + i % 5
        ids = torch.randint(1, WORDS, (8,), generator=generator)
        labels = ids.clone() if causal else torch.randint(TAGS, (8,), generator=generator)
        labels[length:] = -100
        if not causal:
            labels[0] = -100
        mask = (torch.arange(8) < length).long()
        made.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return made


def together(items):
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


def trainer(kind, model, folder, data, **changes):
    class InOrder(kind):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    settings = {
        "num_train_epochs": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "learning_rate": 0.05, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", **changes,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(str(folder), **settings)
    return InOrder(model, arguments, data_collator=together, train_dataset=data, eval_dataset=data)


@pytest.mark.parametrize("kind", ["tokens", "language"])
def test_members_train_as_separate_networks_do_with_transformers_own_loss(kind, tmp_path):
    build, wrap = {
        "tokens": (tagger, EnsembleForTokenClassification),
        "language": (LANGUAGE_MODELS["llama"], EnsembleForCausalLM),
    }[kind]
    networks, data = apart(build, 2), rows(causal=kind == "language")
    model = wrap(pb.deep(copy.deepcopy(networks)))
    trainer(EnsembleTrainer, model.train(), tmp_path, data).train()
    whole = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}  # BERT's loss does not count labels
    for i, network in enumerate(networks):
        start = copy.deepcopy(network.state_dict())
        trainer(transformers.Trainer, network.train(), tmp_path, data, **(whole if kind == "tokens" else {})).train()
        trained = model.ensemble.member(i).state_dict()
        assert max(float((trained[name] - t).abs().max()) for name, t in network.state_dict().items()) < 2e-5
        assert max(float((start[name] - t).abs().max()) for name, t in trained.items()) > 1e-3


def test_evaluation_is_that_of_the_mean_over_labels_that_are_not_ignored(tmp_path):
    networks, batch = apart(tagger), together(rows())
    model = EnsembleForTokenClassification(pb.deep(networks)).eval()
    labels = batch.pop("labels")
    with torch.no_grad():
        mean = torch.stack([network(**batch).logits.softmax(-1) for network in networks]).mean(0)
        output = model(**batch, labels=labels)
    judged = labels != -100
    torch.testing.assert_close(output.logits.exp(), mean)
    shares = mean[judged].double() / mean[judged].double().sum(-1, keepdim=True)
    assert float(output.loss) == pytest.approx(sk.log_loss(labels[judged], shares, labels=range(TAGS)), rel=1e-5)
    figures = trainer(EnsembleTrainer, model, tmp_path, rows(), per_device_eval_batch_size=8).evaluate()
    assert figures["eval_loss"] == pytest.approx(float(output.loss), rel=1e-5)
    prediction = model.ensemble.predict(batch)
    found = pb.evaluate(prediction, labels)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels[judged], mean[judged].argmax(-1)))
    assert found["nll"] == pytest.approx(float(output.loss), rel=1e-5)
    torch.testing.assert_close(output.epistemic, prediction.epistemic, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["tokens", "gpt2", "llama"])
def test_what_was_saved_comes_back(kind, tmp_path):
    wrap, build = (EnsembleForTokenClassification, tagger) if kind == "tokens" else (
        EnsembleForCausalLM, LANGUAGE_MODELS[kind],
    )  # fmt: skip
    model = wrap(pb.deep(apart(build, 2))).eval()
    if kind != "tokens":
        model.generation_config.max_new_tokens = 3
    model.save_pretrained(tmp_path)
    back, batch = wrap.from_pretrained(tmp_path).eval(), together(rows())
    assert torch.equal(back(**batch).member_logits, model(**batch).member_logits)
    if kind != "tokens":
        assert back.generate(batch["input_ids"][:, :3], do_sample=False).shape == (8, 6)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_training_of_language_models_is_taken_up_from_a_checkpoint(model, tmp_path):
    data, changes = rows(causal=True), {"save_strategy": "epoch"}
    whole, stopped = (EnsembleForCausalLM(pb.deep(apart(LANGUAGE_MODELS[model], 2))).train() for _ in range(2))
    trainer(EnsembleTrainer, whole, tmp_path / "whole", data, **changes).train()
    again = trainer(EnsembleTrainer, stopped, tmp_path / "again", data, **changes)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    pairs = zip(whole.state_dict().values(), stopped.state_dict().values(), strict=True)
    assert again.state.global_step == 4 and all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


# -------------------------------------------------------------------- generating


def greedy(networks, ids, mask, steps):
    """The most probable token of the mean probability, again and again, each time from the whole text."""
    with torch.no_grad():
        for _ in range(steps):
            places = (mask.cumsum(-1) - 1).clamp_min(0)
            taken = {"position_ids": places} if not isinstance(networks[0], transformers.BloomForCausalLM) else {}
            logits = [network(ids, attention_mask=mask, **taken).logits[:, -1] for network in networks]
            mean = torch.stack([one.softmax(-1) for one in logits]).mean(0)
            ids = torch.cat([ids, mean.argmax(-1, keepdim=True)], 1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    return ids


def prompts():
    """Two texts, the second of which is padded to the left."""
    ids = torch.randint(1, WORDS, (2, 5), generator=torch.Generator().manual_seed(2))
    ids[1, :2] = 0
    return ids, (ids != 0).long()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_greedy_text_is_that_of_the_mean_probability_with_and_without_caches(name):
    networks = apart(LANGUAGE_MODELS[name])
    model, (ids, mask) = EnsembleForCausalLM(pb.deep(networks)).eval(), prompts()
    expected = greedy(networks, ids, mask, 9)
    for use_cache in (True, False):
        found = model.generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False, use_cache=use_cache)
        assert torch.equal(found, expected)
    assert not torch.equal(expected, greedy(networks[:1], ids, mask, 9))  # one member says something else


@pytest.mark.parametrize("method", ["batch_ensemble", "lora", "masksembles", "treenet"])
def test_members_that_share_weights_have_caches_of_their_own(method):
    torch.manual_seed(0)
    settings = {"lora": {"rank": 2}, "treenet": {"branch": "model.layers.1|model.norm|lm_head"}}.get(method, {})
    ensemble = pb.METHODS[method](apart(LANGUAGE_MODELS["llama"], 1)[0], 3, **settings)
    with torch.no_grad():
        for name, tensor in ensemble.module.named_parameters():
            if name in ensemble.own:
                tensor.add_(0.3 * torch.randn_like(tensor))
    model, (ids, mask) = EnsembleForCausalLM(ensemble).eval(), prompts()
    expected = greedy([ensemble.member(i).eval() for i in range(3)], ids, mask, 8)
    assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False), expected)


def test_sampling_draws_from_the_mean_probability():
    networks, (ids, _) = apart(LANGUAGE_MODELS["llama"]), prompts()
    model = EnsembleForCausalLM(pb.deep(networks)).eval()
    torch.manual_seed(5)
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=True, top_k=0)
    torch.manual_seed(5)
    for _ in range(6):
        with torch.no_grad():
            mean = torch.stack([network(ids).logits[:, -1].softmax(-1) for network in networks]).mean(0)
        ids = torch.cat([ids, torch.multinomial(mean, 1)], 1)
    assert torch.equal(found, ids)


def test_beams_find_the_most_probable_text():
    networks = apart(lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**SMALL, "vocab_size": 4}, intermediate_size=12, num_key_value_heads=1, **SPECIAL)
    ))  # fmt: skip
    model, ids = EnsembleForCausalLM(pb.deep(networks)).eval(), torch.tensor([[1, 2, 3]])
    texts = torch.tensor([[1, 2, 3, *more] for more in itertools.product(range(4), repeat=3)])
    with torch.no_grad():
        mean = torch.stack([network(texts).logits.softmax(-1) for network in networks]).mean(0)
    steps = mean[:, 2:5].gather(-1, texts[:, 3:, None])[..., 0].log().sum(-1)
    for use_cache in (True, False):
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, num_beams=16, do_sample=False,
            use_cache=use_cache,
        )  # fmt: skip
        assert torch.equal(found[0], texts[steps.argmax()])


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom, without position_ids"])
def test_the_uncertainty_of_a_token_is_that_of_the_distribution_it_comes_from(name):
    networks, (ids, mask) = apart(LANGUAGE_MODELS[name]), prompts()
    found = EnsembleForCausalLM(pb.deep(networks)).token_uncertainty(ids, mask)
    assert {tensor.shape for tensor in found.values()} == {(2, 4)}
    for row, t in ((0, 1), (0, 4), (1, 3), (1, 4)):  # without padding, token by token
        text = ids[row : row + 1, 2 * row : t]
        with torch.no_grad():
            members = [torch.distributions.Categorical(logits=n(text).logits[0, -1]) for n in networks]
        mean = torch.distributions.Categorical(torch.stack([one.probs for one in members]).mean(0))
        total, aleatoric = mean.entropy(), torch.stack([one.entropy() for one in members]).mean()
        expected = {"total": total, "aleatoric": aleatoric, "epistemic": total - aleatoric}
        expected["log_probability"] = mean.log_prob(ids[row, t])
        for part, value in expected.items():
            torch.testing.assert_close(found[part][row, t - 1], value, rtol=1e-4, atol=1e-5)


def test_other_networks_and_caches_are_refused():
    with pytest.raises(TypeError, match="causal language models of transformers, but this is one of Linear"):
        EnsembleForCausalLM(pb.single(nn.Linear(2, 2)))
    with pytest.raises(TypeError, match="needs an Ensemble, but got a Linear"):
        EnsembleForCausalLM(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="this is one of Linear"):
        EnsembleForTokenClassification(pb.single(nn.Linear(2, 2)))
    (network,) = apart(LANGUAGE_MODELS["gpt2"], 1)
    model, (ids, _) = EnsembleForCausalLM(pb.single(network)).eval(), prompts()
    with pytest.raises(TypeError, match="past_key_values must be MemberCaches, but they are DynamicCache"):
        model.generate(ids, max_new_tokens=2, past_key_values=transformers.DynamicCache())
