"""Ensembles in Hugging Face's Trainer, files, Hub and pipelines, against plain loops and what came in."""

import base64
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from good_folders import WORDS, make_tokenizer
from torch import nn

import pluribus as pb

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="accelerate is not installed")
import huggingface_hub  # noqa: E402

from pluribus._common.signed_files import sign_folder  # noqa: E402
from pluribus.integrations.huggingface import (  # noqa: E402
    EnsembleForSequenceClassification,
    EnsembleTrainer,
    UncertainTextClassificationPipeline,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def network(dropout=0.0, **changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(
        vocab_size=len(WORDS), max_position_embeddings=12, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **{"id2label": {0: "negative", 1: "positive", 2: "mixed"}, **sizes, **changes},
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def rows(count=12):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, len(WORDS), (count, 6), generator=generator)
    return [{"input_ids": tokens[i], "labels": torch.tensor(i % 3)} for i in range(count)]


def together(items):
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}


class InOrder(EnsembleTrainer):
    """Rows in the order in which they are given, so that a plain loop has the same batches."""

    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(model, folder, kind=InOrder, **changes):
    settings = {
        "num_train_epochs": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "weight_decay": 0.1,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "report_to": [], "use_cpu": True, "disable_tqdm": True,
        "save_strategy": "no", "logging_strategy": "no", "seed": 3, **changes,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(str(folder), **settings)
    metrics = {"compute_metrics": lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}}
    return kind(model, arguments, data_collator=together, train_dataset=rows(), eval_dataset=rows(), **metrics)


def plain_loop(ensemble, batches):
    """Two epochs of AdamW, with decay where transformers has it: not on biases, norms, and vectors that scale."""
    decays = lambda name: not ("bias" in name or "LayerNorm" in name or name.endswith((".r", ".s", ".b")))  # noqa: E731
    named = list(ensemble.module.named_parameters())
    groups = [{"params": [p for n, p in named if decays(n) is on], "weight_decay": 0.1 * on} for on in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    ensemble.train()
    for batch in batches * 2:
        batch = together(batch)
        labels = batch.pop("labels")
        optimizer.zero_grad()
        ensemble.loss(batch, labels, F.cross_entropy).backward()
        optimizer.step()


def distance(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("method", ["deep", "batch_ensemble", "multihead", "lora"])
def test_the_trainer_trains_as_a_plain_loop_does(method, tmp_path):
    torch.manual_seed(0)
    ensemble = pb.METHODS[method](network(), 2)
    alone = pb.METHODS[method](network(), 2)
    alone.load_state_dict(ensemble.state_dict())
    start = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    run = trainer(EnsembleForSequenceClassification(ensemble), tmp_path)
    run.train()
    torch.manual_seed(3)  # as the trainer does: which rows a member sees is drawn
    plain_loop(alone, [rows()[i : i + 4] for i in (0, 4, 8)])
    assert distance(ensemble, alone) < 1e-5
    assert max(float((start[n] - t).abs().max()) for n, t in ensemble.state_dict().items()) > 1e-3


@pytest.mark.slow
def test_accumulated_and_checkpointed_steps_are_steps_of_the_whole_batch(tmp_path):
    found = []
    for changes in (
        {},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        {"gradient_checkpointing": True},
    ):
        ensemble = pb.deep(network(), 2, generator=torch.Generator().manual_seed(0))
        trainer(EnsembleForSequenceClassification(ensemble), tmp_path, **changes).train()
        found.append(ensemble)
    assert distance(found[0], found[1]) < 1e-4 and distance(found[0], found[2]) < 1e-4


@pytest.mark.slow
def test_training_that_was_stopped_goes_on_to_the_same_weights(tmp_path):
    torch.manual_seed(0)
    whole, stopped = (pb.deep(network(0.1), 2, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    changes = {"save_strategy": "epoch", "kind": EnsembleTrainer}
    trainer(EnsembleForSequenceClassification(whole), tmp_path / "whole", **changes).train()
    again = trainer(EnsembleForSequenceClassification(stopped), tmp_path / "again", **changes)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert again.state.global_step == 6 and distance(whole, stopped) < 1e-6


def test_evaluation_is_that_of_the_mean_probability(tmp_path):
    ensemble = pb.deep(network(), 3)
    run = trainer(EnsembleForSequenceClassification(ensemble), tmp_path)
    batch = together(rows())
    labels = batch.pop("labels")
    with torch.no_grad():
        members = [ensemble.member(i).eval()(**batch).logits.softmax(-1) for i in range(3)]
    mean = torch.stack(members).mean(0)
    figures = run.evaluate()
    assert figures["eval_loss"] == pytest.approx(float(-mean[range(12), labels].log().mean()), rel=1e-5)
    assert figures["eval_accuracy"] == pytest.approx(float((mean.argmax(-1) == labels).float().mean()))
    np.testing.assert_allclose(np.exp(run.predict(rows()).predictions), mean, rtol=1e-5)


@pytest.mark.parametrize("method", ["deep", "packed", "batch_ensemble", "lora", "multihead"])
def test_what_was_saved_comes_back(method, tmp_path):
    settings = {"example": together(rows(2))["input_ids"]} if method == "packed" else {}
    model = EnsembleForSequenceClassification(pb.METHODS[method](network(), 2, **settings), make_tokenizer(12)).eval()
    model.save_pretrained(tmp_path / "saved")
    back = EnsembleForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    batch = together(rows())
    assert torch.equal(back(**batch).member_logits, model(**batch).member_logits)
    assert back.config.id2label[1] == "positive" and back.tokenizer("good film")["input_ids"] == [2, 4, 6, 3]


class Hub:
    """The Hub's calls for a new repository and a commit, as its client makes them; keeps the files."""

    def __init__(self):
        self.files, self.calls = {}, []

    def answer(self, request):
        path = request.url.path
        self.calls.append(f"{request.method} {path}")
        if path == "/api/repos/create":
            return {"url": f"{huggingface_hub.constants.ENDPOINT}/me/mine", "name": "me/mine"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path == "/api/models/me/mine/preupload/main":
            named = json.loads(request.content)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in named]}
        if path == "/api/models/me/mine/commit/main":
            for line in map(json.loads, request.content.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"commitUrl": f"{huggingface_hub.constants.ENDPOINT}/me/mine/commit/1", "commitOid": "1"}
        if path == "/api/models/me/mine/revision/main":
            return {"id": "me/mine", "sha": "0", "siblings": [], "tags": [], "downloads": 0, "private": False}
        raise AssertionError(f"the Hub was asked for {request.method} {path}")


@pytest.fixture
def hub():
    http = pytest.importorskip("httpx2", reason="huggingface_hub's client is another one")
    server = Hub()
    transport = http.MockTransport(lambda request: http.Response(200, json=server.answer(request)))
    huggingface_hub.set_client_factory(lambda: http.Client(transport=transport))
    yield server
    huggingface_hub.set_client_factory(lambda: http.Client())


def test_what_was_pushed_to_the_hub_comes_back(hub, tmp_path):
    model = EnsembleForSequenceClassification(pb.deep(network(), 2), make_tokenizer(12)).eval()
    model.push_to_hub("me/mine", token="hf_" + "a" * 34)
    assert {"config.json", "ensemble.safetensors", "README.md", "tokenizer.json"} <= set(hub.files)
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    back = EnsembleForSequenceClassification.from_pretrained(str(tmp_path)).eval()
    batch = together(rows())
    assert torch.equal(back(**batch).logits, model(**batch).logits)


def test_the_pipeline_says_how_uncertain_it_is():
    ensemble = pb.deep(network(), 3).eval()
    pipe = UncertainTextClassificationPipeline(
        model=EnsembleForSequenceClassification(ensemble).eval(), tokenizer=make_tokenizer(12)
    )
    answer = pipe(["the film was very good", "bad"])
    with torch.no_grad():
        expected = ensemble.predict({"input_ids": torch.tensor([[2, 7, 6, 8, 9, 4, 3]])})
    assert answer[0]["label"] == ["negative", "positive", "mixed"][int(expected.label)]
    for name in ("total", "aleatoric", "epistemic"):
        assert answer[0][name] == pytest.approx(float(getattr(expected, name)), abs=1e-5)
    assert answer[0]["score"] == pytest.approx(float(expected.confidence), rel=1e-5)
    assert [set(one) for one in pipe("bad", top_k=2)] == [{"label", "score", "total", "aleatoric", "epistemic"}] * 2


def test_long_texts_are_refused_or_cut_as_told():
    pipe = UncertainTextClassificationPipeline(
        model=EnsembleForSequenceClassification(pb.deep(network(), 2)).eval(), tokenizer=make_tokenizer(12)
    )
    with pytest.raises(ValueError, match="has 22 tokens, but the model takes 12. Cut it with truncation=True"):
        pipe("very " * 20)
    assert pipe("very " * 20, truncation=True, max_length=12)[0]["label"]


def test_what_is_no_ensemble_of_text_classifiers_is_refused(tmp_path):
    with pytest.raises(TypeError, match="needs an Ensemble, but got a Linear"):
        EnsembleForSequenceClassification(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="transformers text classifiers, but this is one of Linear"):
        EnsembleForSequenceClassification(pb.single(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="has 1 outputs"):
        EnsembleForSequenceClassification(pb.single(network(id2label={0: "score"})))
    network().save_pretrained(tmp_path / "single")
    with pytest.raises(FileNotFoundError, match=r"holds no ensemble.safetensors, so it is not an ensemble"):
        EnsembleForSequenceClassification.from_pretrained(tmp_path / "single")


def test_code_in_a_folder_is_never_run(tmp_path):
    EnsembleForSequenceClassification(pb.deep(network(), 2)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sign_folder(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(ValueError, match="custom code|trust_remote_code"):
        EnsembleForSequenceClassification.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()
