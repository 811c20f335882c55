"""Good folders of every kind that commands read, as the commands write them."""

import contextlib
import io
import sys
from pathlib import Path

import torch

TRAINING = ["--data", "iris", "--model", "mlp", "--width", "0.05", "--epochs", "2", "--batch-size", "64"]

ITEM = "packed/table1-cost"

NEW = "new.csv"

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "the", "was", "very", "not"]


def make_folders(top: Path) -> None:
    """A trained folder "sent", one that was stopped, checkpoints "networks", a "study", "claims" and "bert"."""
    top.mkdir()
    (top / NEW).write_text(
        "sepal length (cm),sepal width (cm),petal length (cm),petal width (cm)\n5,3,1,0.2\n6,3,5,2\n"
    )
    with contextlib.chdir(top), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        command("train", *TRAINING, "--size", "2", "--method", "deep", "--out", "sent")
        command("compare", *TRAINING, "--methods", "single", "--seeds", "2", "--out", "study", "--yes")
        command("reproduce", ITEM, "--out", "claims")
        stop_training("train", *TRAINING, "--out", "stopped")
    make_networks(top / "networks")
    make_bert(top)


def command(*words: str) -> None:
    """A command that must succeed."""
    from pluribus.cli.app import app

    before, sys.argv = sys.argv, ["pluribus", *words]
    try:
        app(list(words), standalone_mode=False)
    finally:
        sys.argv = before


def stop_training(*words: str) -> None:
    """The command of a training, stopped after its first epoch."""
    from pluribus.training.lightning_module import LastCheckpoint

    usual = LastCheckpoint.on_train_epoch_end

    def write_and_stop(self, trainer, pl_module):
        usual(self, trainer, pl_module)
        raise InterruptedError

    LastCheckpoint.on_train_epoch_end = write_and_stop
    try:
        with contextlib.suppress(InterruptedError):
            command(*words)
    finally:
        LastCheckpoint.on_train_epoch_end = usual


def make_networks(folder: Path) -> None:
    """Two checkpoints of one architecture."""
    from pluribus.models.by_name import ModelSpec

    folder.mkdir()
    for i, name in enumerate(("one.pt", "two.pt")):
        torch.manual_seed(i)
        torch.save(ModelSpec("mlp", (4,), 3, width=0.05).build().state_dict(), folder / name)


def make_tokenizer(most: int):
    """A tokenizer of transformers that knows `WORDS`, for a model that takes so many tokens."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=most, **names)


def make_bert(top: Path) -> None:
    """A tiny text classifier of transformers with its tokenizer, "bert", and a table of texts."""
    import transformers

    make_tokenizer(8).save_pretrained(top / "bert")
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(top / "bert")
    rows = [f'"the film {i % 7} was {"very " * (i % 3)}{"good" if i % 2 else "bad"}",{i % 2}\n' for i in range(80)]
    (top / "reviews.csv").write_text("review,label\n" + "".join(rows))


if __name__ == "__main__":
    make_folders(Path(sys.argv[1]))
