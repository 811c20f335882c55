"""Texts and folders of transformers on the command line: a tiny classifier, from its folder to answers."""

import json

import numpy as np
import pytest
import torch
from commands import run
from good_folders import make_bert

import pluribus as pb
from pluribus.data.catalogue import encoded, load
from pluribus.models.by_name import build_network

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    make_bert(tmp_path)
    return tmp_path


def test_texts_become_the_tokens_of_the_models_tokenizer(folder):
    data = load(f"text:{folder / 'reviews.csv'}", target="label", tokenizer=folder / "bert")
    assert data.classes == ("0", "1") and data.shape == (8,)
    assert data.notes[-1].endswith("texts have more than 8 tokens and are cut.")
    rows = encoded(data.encoding, {"review": ["the film", "good"]})[:][0]
    assert rows.tolist() == [[2, 7, 6, 3, 0, 0, 0, 0], [2, 4, 3, 0, 0, 0, 0, 0]]


def test_the_network_of_a_folder_sees_what_transformers_gives_it(folder):
    network = build_network(f"hf:{folder / 'bert'}", (8,), 2).eval()
    tokens = torch.tensor([[2, 7, 6, 3], [2, 4, 3, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    expected = network.network(input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(network(tokens), expected)
    weights = transformers.BertModel.from_pretrained(folder / "bert").embeddings.word_embeddings.weight
    assert torch.equal(network.network.bert.embeddings.word_embeddings.weight, weights)


def test_texts_are_trained_on_and_predicted(folder, capsys):
    given = ("--data", f"text:{folder / 'reviews.csv'}", "--target", "label", "--model", f"hf:{folder / 'bert'}")
    run(
        "train", "--out", folder / "out", *given, "--method", "deep", "--size", 2, "--epochs", 1, "--lr", 0.01, "--json"
    )
    assert 0 <= json.loads(capsys.readouterr().out)["test"]["accuracy"] <= 1
    (folder / "new.csv").write_text('review\n"the film was good"\n"bad"\n')
    run("predict", folder / "out", folder / "new.csv", "--format", "jsonl")
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["label"] in ("0", "1") for answer in answers] == [True, True]
    assert all(np.isfinite(answer["epistemic"]) for answer in answers)
    predictor, texts = pb.open(folder / "out"), {"review": ["the film was good", "bad"]}
    run("export", folder / "out", folder / "out.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(folder / "out.onnx")
    (mean,) = session.run(["mean"], {"x": encoded(predictor.record["encoding"], texts)[:][0].numpy()})
    np.testing.assert_allclose(mean, predictor.predict(texts).mean, atol=1e-5)
    assert '"length": 8' in session.get_modelmeta().custom_metadata_map["pluribus.columns"]
    (folder / "long.csv").write_text("review\n" + "very " * 9 + "\n")
    with pytest.warns(UserWarning, match="1 of 1 texts have more than 8 tokens and are cut"):
        run("predict", folder / "out", folder / "long.csv", "--format", "jsonl")


@pytest.mark.slow
def test_methods_are_compared_on_texts(folder, capsys):
    run(
        "compare", "--data", f"text:{folder / 'reviews.csv'}", "--target", "label", "--model", f"hf:{folder / 'bert'}",
        "--methods", "single,batch_ensemble,multihead", "--size", 2, "--seeds", 1, "--epochs", 1, "--jobs", 1, "--json",
        "--out", folder / "study",
    )  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert not found["failed"] and (folder / "study" / "report.html").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"--model": "mlp"}, "need the tokenizer of a model. .*--model hf:FOLDER"),
        ({"--data": "digits"}, "takes texts, as in --data text:reviews.csv, not digits"),
        ({"--long-texts": "refuse"}, "the model takes 8 tokens, but .* texts have more: row .* has .*--long-texts cut"),
        ({"--long-texts": "drop"}, "'drop' is unknown. Choose from cut, refuse"),
        ({"--width": "0.5"}, "keeps its own width"),
        ({"--model": "hf:nowhere"}, "it has no config.json"),
    ],
)
def test_what_makes_no_sense_is_refused(folder, changes, message):
    given = {"--data": f"text:{folder / 'reviews.csv'}", "--target": "label", "--model": f"hf:{folder / 'bert'}"}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run("train", "--out", folder / "out", *(part for pair in {**given, **changes}.items() for part in pair))
    assert not (folder / "out").exists()


def test_classes_that_a_folder_has_no_outputs_for_are_refused(folder):
    config = transformers.AutoConfig.from_pretrained(folder / "bert")
    config.id2label = {0: "bad", 1: "good"}
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "bert")
    with pytest.raises(ValueError, match=r"it has outputs for 2 labels \(bad, good\), but 3 are needed"):
        build_network(f"hf:{folder / 'bert'}", (8,), 3)


def test_code_that_a_tokenizer_asks_for_is_not_run(folder):
    (folder / "bert" / "evil.py").write_text(f"import pathlib; pathlib.Path({str(folder / 'canary')!r}).touch()\n")
    settings = json.loads((folder / "bert" / "tokenizer_config.json").read_text())
    told = {**settings, "tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / "bert" / "tokenizer_config.json").write_text(json.dumps(told))
    data = load(f"text:{folder / 'reviews.csv'}", target="label", tokenizer=folder / "bert")
    assert data.shape == (8,) and not (folder / "canary").exists()
