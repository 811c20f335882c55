"""A transformers text classifier as an ensemble, in transformers' own pipeline, with uncertainties.

You learn: `EnsembleForSequenceClassification` and `EnsembleTrainer` put any ensemble where transformers expects a
model. The texts are real and installed already: first sentences of the documentation of torch and of numpy; the
class is the library. Nothing is downloaded, so the small BERT starts from random weights; yours would come from
`AutoModelForSequenceClassification.from_pretrained(FOLDER, num_labels=2)`.
"""

import inspect
import re

import numpy
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import pluribus as pb
from pluribus.integrations.huggingface import (
    EnsembleForSequenceClassification,
    EnsembleTrainer,
    UncertainTextClassificationPipeline,
)


def main() -> None:
    transformers.set_seed(0)
    rows = [(text, i) for i, library in enumerate((numpy, torch)) for text in sentences(library)]
    texts = [rows[i] for i in torch.randperm(len(rows))]
    held_out, train = texts[:200], texts[200:]
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    made.train_from_iterator([t for t, _ in train], trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.model_max_length = 32
    config = transformers.BertConfig(
        vocab_size=made.get_vocab_size(), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, id2label={0: "numpy", 1: "torch"},
    )  # fmt: skip
    model = EnsembleForSequenceClassification(pb.deep(transformers.BertForSequenceClassification(config), 4), tokenizer)
    arguments = transformers.TrainingArguments(
        "text_classifier", num_train_epochs=4, per_device_train_batch_size=32, learning_rate=2e-3, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    encode = lambda part: [{**tokenizer(t, truncation=True), "labels": label} for t, label in part]  # noqa: E731
    pad = transformers.DataCollatorWithPadding(tokenizer)
    trainer = EnsembleTrainer(model, arguments, train_dataset=encode(train), data_collator=pad)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()

    classify = UncertainTextClassificationPipeline(model=model.eval(), tokenizer=tokenizer)
    answers = classify([text for text, _ in held_out], truncation=True, max_length=32)
    right = sum(a["label"] == ("numpy", "torch")[label] for a, (_, label) in zip(answers, held_out, strict=True))
    print(f"{len(train)} sentences to train on, {right / len(held_out):.3f} of {len(held_out)} others are right\n")
    print(f"{'sentence':50} {'label':6} {'score':>6} {'aleatoric':>10} {'epistemic':>10}")
    for text in ("Returns a new tensor with a gradient.", "Return an array of ones.", "A film about a very old dog."):
        a = classify(text)[0]
        print(f"{text:50} {a['label']:6} {a['score']:6.3f} {a['aleatoric']:10.3f} {a['epistemic']:10.3f}")


def sentences(library: object) -> list[str]:
    """The first sentences of the library's documentation, without the library's name."""
    found = (inspect.getdoc(getattr(library, name, None)) or "" for name in dir(library))
    found = {re.split(r"\n\n|\.\s", text.partition("\n\n")[2] if "(" in text[:40] else text)[0] for text in found}
    return sorted(" ".join(s.split()) for s in found if 20 < len(s) < 200)


if __name__ == "__main__":
    main()
