"""Ensembles as models of Hugging Face's kind: trained by its `Trainer`, stored and shared as its models are.

Text classification. Needs transformers: pip install 'pluribus-ml[huggingface]'.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.optional import require
from .._common.signed_files import check_folder_digests, sign_folder
from .._common.text_folders import (
    CONFIG,
    build_text_classifier,
    check_claimed_size,
    check_text_folder,
    read_config,
    read_tokenizer,
)
from ..core.ensemble import Ensemble
from ..core.row_members import member_layers
from ..data.texts import longest
from ..deploy.saving import load, save
from ..surgery.copying import state
from ..surgery.selecting import dotted_name
from ..uncertainty.outputs import compute_answers, pool

for _package in ("transformers", "accelerate", "huggingface_hub", "safetensors"):
    require(_package, "pluribus.integrations.huggingface", "huggingface")

import huggingface_hub  # noqa: E402
import transformers  # noqa: E402
from transformers.utils import ModelOutput  # noqa: E402

WEIGHTS = "ensemble.safetensors"

FILES = ["*.json", "*.txt", "*.model", WEIGHTS]  # of a repository: nothing that could be executed


@dataclass
class EnsembleOutput(ModelOutput):
    """What an ensemble gives for a batch of texts.

    Shapes:
        loss: scalar; in training what the method's paper minimises, in evaluation the ensemble's own (NLL)
        logits: (batch, classes), the logarithms of the mean probabilities
        member_logits: (batch, members, classes)

    >>> EnsembleOutput(logits=torch.zeros(2, 3), member_logits=torch.zeros(2, 4, 3)).member_logits.shape
    torch.Size([2, 4, 3])
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    member_logits: Tensor | None = None


class EnsembleForSequenceClassification(nn.Module, huggingface_hub.ModelHubMixin):
    """An ensemble of text classifiers that `Trainer`, pipelines and the Hub take for a model of theirs.

    `save_pretrained(folder)`, `from_pretrained(folder_or_repository)` and `push_to_hub(repository)` are as everywhere:
    the configuration of the network, the ensemble in one file of safetensors, and the tokenizer. Nothing that is loaded
    is executed: models with code of their own are refused.

    Shapes:
        input_ids, attention_mask: (batch, tokens); labels: (batch)
        logits: (batch, classes); member_logits: (batch, members, classes)

    Args:
        ensemble: made by any method from a model of transformers for sequence classification
        tokenizer: stored with it, where one is given

    >>> config = transformers.BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...                                  intermediate_size=8, num_labels=3)
    >>> network = transformers.BertForSequenceClassification(config)
    >>> model = EnsembleForSequenceClassification(pb.multihead(network, 4)).eval()
    >>> output = model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([0]))
    >>> output.logits.shape, output.member_logits.shape
    (torch.Size([1, 3]), torch.Size([1, 4, 3]))
    """

    accepts_loss_kwargs = False  # the loss is a mean over rows: `Trainer` divides it among accumulated steps
    main_input_name = "input_ids"

    def __init__(self, ensemble: Ensemble, tokenizer: Any = None):
        super().__init__()
        self.ensemble, self.tokenizer = ensemble, tokenizer
        self.config = copy.deepcopy(_config_of(ensemble))
        self.config.keys_to_ignore_at_inference = ["member_logits"]  # `compute_metrics` sees the logits alone
        self.training = ensemble.training

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> EnsembleOutput:
        """In training the loss alone; in evaluation the ensemble's answer, and its loss where there are labels."""
        given = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
        }  # fmt: skip
        inputs = {name: value for name, value in given.items() if value is not None}
        if labels is not None:
            self._check_labels(labels)
        if self.training and labels is not None:
            return EnsembleOutput(loss=self.ensemble.loss(inputs, labels, F.cross_entropy))
        logits = self.ensemble(**inputs).logits
        mean = pool("classification", logits)
        loss = None if labels is None else F.nll_loss(mean, labels)
        return EnsembleOutput(loss=loss, logits=mean, member_logits=logits.transpose(0, 1))

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Compute activations again in backward, to keep fewer of them; options are those of transformers."""
        if self.ensemble.run != "loop":
            self.ensemble.run = "loop"  # vmap cannot run parts again
        self.ensemble.module.gradient_checkpointing_enable(**options)  # type: ignore[operator]

    def gradient_checkpointing_disable(self) -> None:
        """Keep activations again."""
        self.ensemble.module.gradient_checkpointing_disable()  # type: ignore[operator]

    def can_generate(self) -> bool:
        """No: it classifies."""
        return False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(tensor.device for _, tensor in state(self))

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return next(tensor.dtype for _, tensor in state(self) if tensor.is_floating_point())

    def _check_labels(self, labels: Tensor) -> None:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.config.num_labels:
            raise ValueError(
                f"labels must be from 0 to {self.config.num_labels - 1}, the model's outputs, but there is "
                f"{low if low < 0 else high}. Load the model with num_labels={max(high + 1, 2)}."
            )

    # ---------------------------------------------------------------- files and the Hub

    def _save_pretrained(self, save_directory: Path) -> None:
        config = copy.deepcopy(self.config)
        del config.keys_to_ignore_at_inference
        config.save_pretrained(save_directory)
        save(self.ensemble, save_directory / WEIGHTS, whole=True)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(save_directory)
        sign_folder(save_directory)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Any:
        """The ensemble in a folder or repository; a folder is checked before anything in it is read."""
        folder = Path(pretrained_model_name_or_path)
        try:
            if (folder / CONFIG).exists():  # the Hub's own client would wait for a pipe
                check_text_folder(folder)
            return super().from_pretrained(pretrained_model_name_or_path, **options)
        except RecursionError:
            raise ValueError(
                f"from_pretrained: {str(folder)!r} cannot be used: its JSON is nested too deeply."
            ) from None

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, revision: str | None, cache_dir: Any, force_download: bool, local_files_only: bool,
        token: Any, device: torch.device | str = "cpu", **others: Any,
    ) -> EnsembleForSequenceClassification:  # fmt: skip
        if others:
            raise TypeError(f"from_pretrained: takes only device=, but got {', '.join(others)}.")
        folder = Path(model_id)
        if not folder.is_dir():
            folder = Path(
                huggingface_hub.snapshot_download(
                    model_id,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                    allow_patterns=FILES,
                )  # fmt: skip
            )
        if not (folder / WEIGHTS).is_file():
            raise FileNotFoundError(
                f"from_pretrained: {str(model_id)!r} holds no {WEIGHTS}, so it is not an ensemble. Load a single "
                "network with transformers.AutoModelForSequenceClassification, and make one from it: "
                "pb.multihead(model, 4)."
            )
        try:
            check_folder_digests(folder)
            config = read_config(folder)
            check_claimed_size(folder, config)
            tokenizer = read_tokenizer(folder) if (folder / "tokenizer_config.json").is_file() else None
        except (ValueError, OSError) as error:
            raise ValueError(f"from_pretrained: {str(model_id)!r} cannot be used: {str(error).rstrip('.')}.") from None
        network = build_text_classifier(config)
        return cls(load(folder / WEIGHTS, network, device), tokenizer)


class EnsembleTrainer(transformers.Trainer):
    """`transformers.Trainer`, with no weight decay on BatchEnsemble's biases b, as on any, nor on its r and s.

    >>> config = transformers.BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...                                  intermediate_size=8, num_labels=3)
    >>> ensemble = pb.batch_ensemble(transformers.BertForSequenceClassification(config), 2, where="classifier")
    >>> options = transformers.TrainingArguments("trained", report_to=[])
    >>> trainer = EnsembleTrainer(EnsembleForSequenceClassification(ensemble), options)
    >>> [name for name in trainer.get_decay_parameter_names(trainer.model) if "classifier" in name]
    ['ensemble.module.classifier.weight']
    """

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """The parameters that decay."""
        ensembles = ((name, module) for name, module in model.named_modules() if isinstance(module, Ensemble))
        spared = {name for prefix, ensemble in ensembles for name in _vectors(prefix, ensemble)}
        return [name for name in super().get_decay_parameter_names(model) if name not in spared]


class UncertainTextClassificationPipeline(transformers.TextClassificationPipeline):
    """The text-classification pipeline with the ensemble's uncertainty beside each answer, in nats.

    It gives {"label", "score", "total", "aleatoric", "epistemic"} for each text; with `top_k` for each label, the
    uncertainty being that of the text. A text that is longer than the model takes is refused, unless it is called with
    `truncation=True`.

    >>> words = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "bad": 5}
    >>> tokenizer = transformers.BertTokenizer(vocab=words)
    >>> config = transformers.BertConfig(vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...                                  intermediate_size=8, num_labels=2)
    >>> model = EnsembleForSequenceClassification(pb.multihead(transformers.BertForSequenceClassification(config), 4))
    >>> pipeline = UncertainTextClassificationPipeline(model=model, tokenizer=tokenizer)
    >>> sorted(pipeline("good")[0])
    ['aleatoric', 'epistemic', 'label', 'score', 'total']
    """

    def check_model_type(self, supported_models: Any) -> None:
        """Any ensemble of text classifiers."""
        if not isinstance(self.model, EnsembleForSequenceClassification):
            raise TypeError(
                f"the pipeline takes an EnsembleForSequenceClassification, not a {type(self.model).__name__}."
            )

    def preprocess(self, inputs: Any, **tokenizer_kwargs: Any) -> Any:  # type: ignore[override]
        """The tokens of a text, refused if there are more than the model takes."""
        encoded: Any = super().preprocess(inputs, **tokenizer_kwargs)
        most, length = longest(self.model.config, self.tokenizer), encoded["input_ids"].shape[1]
        if length > most:
            raise ValueError(
                f"a text has {length} tokens, but the model takes {most}. "
                f"Cut it with truncation=True, max_length={most}."
            )
        return encoded

    def postprocess(self, model_outputs: Any, *args: Any, **options: Any) -> Any:
        """The usual answer, and the uncertainty beside it."""
        answer = super().postprocess(model_outputs, *args, **options)
        found = compute_answers("classification", model_outputs["member_logits"].transpose(0, 1))
        parts = {name: found[name].item() for name in ("total", "aleatoric", "epistemic")}
        return {**answer, **parts} if isinstance(answer, dict) else [{**one, **parts} for one in answer]


def _config_of(ensemble: Ensemble) -> Any:
    if not isinstance(ensemble, Ensemble):
        raise TypeError(f"needs an Ensemble, but got a {type(ensemble).__name__}. Make one with pb.single(model).")
    config = getattr(ensemble.module, "config", None)
    architecture = type(ensemble.module).__name__
    if config is None or not hasattr(config, "num_labels"):
        raise TypeError(f"needs an ensemble of transformers text classifiers, but this is one of {architecture}.")
    if config.problem_type in ("regression", "multi_label_classification") or config.num_labels < 2:
        raise ValueError(
            "needs a model that chooses among two or more classes, but this one has "
            f"{config.num_labels} outputs and the problem type {config.problem_type!r}."
        )
    return config


def _vectors(prefix: str, ensemble: Ensemble) -> list[str]:
    """The members' own vectors, which `transformers` cannot tell by their names: what scales, and biases."""
    biases = [dotted_name(name, "b") for name in member_layers(ensemble.module)]
    return [".".join(filter(None, [prefix, "module", name])) for name in (*ensemble.fast, *biases)]
