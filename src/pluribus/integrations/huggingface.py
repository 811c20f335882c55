"""Ensembles as models of Hugging Face's kind: trained by its `Trainer`, stored and shared as its models are.

Text and token classification, and causal language models. Needs transformers: pip install '.[huggingface]'.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._common.optional import require
from .._common.signed_files import OTHERS, check_folder_digests, sign_folder
from .._common.trees import IGNORED
from ..core.ensemble import Ensemble
from ..core.rows import member_layers
from ..data.text_folders import (
    CONFIG,
    build_text_classifier,
    check_claimed_size,
    check_text_folder,
    read_config,
    read_tokenizer,
)
from ..data.texts import longest
from ..deploy.saving import load, save
from ..surgery.calling import evaluation_mode
from ..surgery.copying import state
from ..surgery.selecting import dotted_name
from ..training.criteria import cross_entropy
from ..uncertainty.outputs import compute_answers, pool

for _package in ("transformers", "accelerate", "huggingface_hub", "safetensors"):
    require(_package, "pluribus.integrations.huggingface", "huggingface")

import huggingface_hub  # noqa: E402
import transformers  # noqa: E402
from transformers.utils import ModelOutput  # noqa: E402

WEIGHTS = "ensemble.safetensors"
FILES = [*(f"*{end}" for end in OTHERS), WEIGHTS]  # of a repository: what is signed, nothing that is code


@dataclass
class EnsembleOutput(ModelOutput):
    """What an ensemble gives for a batch of texts, and its uncertainty, in nats, for each label or token.

    Shapes:
        loss: scalar; in training what the method's paper minimises, in evaluation the ensemble's own (NLL)
        logits: (batch, classes) or (batch, tokens, classes), the logarithms of the mean probabilities
        member_logits: (batch, members, classes) or (batch, members, tokens, classes)
        total, aleatoric, epistemic: (batch) or (batch, tokens)

    >>> EnsembleOutput(logits=torch.zeros(2, 3), member_logits=torch.zeros(2, 4, 3)).total.exp()
    tensor([3..., 3...])
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    member_logits: Tensor | None = None
    past_key_values: MemberCaches | None = None

    def _answer(self, name: str) -> Tensor:
        assert self.member_logits is not None, "in training, with labels, there is the loss alone"
        return compute_answers("classification", self.member_logits.transpose(0, 1), -1)[name]

    total = property(lambda self: self._answer("total"), doc="Entropy of the mean probabilities.")
    aleatoric = property(lambda self: self._answer("aleatoric"), doc="Mean entropy of the members.")
    epistemic = property(lambda self: self._answer("epistemic"), doc="What the members disagree about.")


class EnsembleModel(nn.Module, huggingface_hub.ModelHubMixin):
    """What ensembles of every kind of network have in common with transformers' models: losses, files, the Hub.

    `save_pretrained(folder)`, `from_pretrained(folder_or_repository)` and `push_to_hub(repository)` are as everywhere:
    the configuration of the network, the ensemble in one file of safetensors, and the tokenizer. Nothing that is loaded
    is executed: models with code of their own are refused.
    """

    kind: ClassVar[str]  # of network: what follows AutoModelFor
    accepts_loss_kwargs = True  # `Trainer` says how many labels all accumulated steps have
    main_input_name = "input_ids"

    def __init__(self, ensemble: Ensemble, tokenizer: Any = None):
        super().__init__()
        if not isinstance(ensemble, Ensemble):
            raise TypeError(f"needs an Ensemble, but got a {type(ensemble).__name__}. Make one with pb.single(model).")
        self.ensemble, self.tokenizer = ensemble, tokenizer
        self.config = copy.deepcopy(self._config_of(ensemble))
        # `compute_metrics` sees the logits alone
        self.config.keys_to_ignore_at_inference = ["member_logits", "past_key_values"]
        self.training = ensemble.training
        if ensemble.class_dim is None:
            ensemble.class_dim = -1

    def answer(self, inputs: dict[str, Any], labels: Tensor | None, items: Any, shift: int = 0) -> EnsembleOutput:
        """In training the loss alone; in evaluation the ensemble's answer, and its loss where there are labels.

        Args:
            items: how many labels the step has in all, if this batch is a part of it
            shift: how many tokens after a prediction its label stands
        """
        inputs = {name: value for name, value in inputs.items() if value is not None}
        if labels is not None:
            self._check_labels(labels)
            labels = labels[:, shift:] if shift else labels
        if self.training and labels is not None:
            loss = self.ensemble.loss(inputs, labels, partial(_cross_entropy, shift=shift))
            return EnsembleOutput(loss=loss if items is None else loss * (labels != IGNORED).sum() / items)
        caches = inputs.pop("past_key_values", None)
        logits = self.ensemble(**inputs).logits if caches is None else _run_cached(self.ensemble, inputs, caches)
        mean = pool("classification", logits, -1)
        nll = None if labels is None else _cross_entropy(mean, labels, shift)
        return EnsembleOutput(nll, mean, logits.transpose(0, 1), caches)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Compute activations again in backward, to keep fewer of them; options are those of transformers."""
        if self.ensemble.run != "loop":
            self.ensemble.run = "loop"  # vmap cannot run parts again
        self.ensemble.module.gradient_checkpointing_enable(**options)  # type: ignore[operator]

    def gradient_checkpointing_disable(self) -> None:
        """Keep activations again."""
        self.ensemble.module.gradient_checkpointing_disable()  # type: ignore[operator]

    def can_generate(self) -> bool:
        """Whether it continues texts."""
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
        judged = labels[labels != IGNORED]
        low, high = (int(judged.min()), int(judged.max())) if len(judged) else (0, 0)
        outputs = self._outputs()
        if low < 0 or high >= outputs:
            raise ValueError(
                f"labels must be from 0 to {outputs - 1}, the model's outputs, or {IGNORED}, which is ignored, but "
                f"there is {low if low < 0 else high}. Load the model with num_labels={max(high + 1, 2)}."
            )

    def _outputs(self) -> int:
        return self.config.num_labels

    @classmethod
    def _config_of(cls, ensemble: Ensemble) -> Any:
        """The configuration of the network, which must be of this kind."""
        config = getattr(ensemble.module, "config", None)
        if config is None or not hasattr(config, "num_labels"):
            architecture = type(ensemble.module).__name__
            raise TypeError(f"needs an ensemble of transformers text classifiers, but this is one of {architecture}.")
        if config.problem_type in ("regression", "multi_label_classification") or config.num_labels < 2:
            raise ValueError(
                "needs a model that chooses among two or more classes, but this one has "
                f"{config.num_labels} outputs and the problem type {config.problem_type!r}."
            )
        return config

    # ---------------------------------------------------------------- files and the Hub

    def _save_pretrained(self, save_directory: Path) -> None:
        config = copy.deepcopy(self.config)
        del config.keys_to_ignore_at_inference
        config.save_pretrained(save_directory)
        save(self.ensemble, save_directory / WEIGHTS, whole=True)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(save_directory)
        if self.can_generate():
            self.generation_config.save_pretrained(save_directory)  # type: ignore[operator, union-attr]
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
    def _from_pretrained(cls, *, model_id: str, device: torch.device | str = "cpu", **options: Any) -> Any:
        names = ("revision", "cache_dir", "force_download", "local_files_only", "token")
        source = {name: options.pop(name) for name in names if name in options}
        if options:
            raise TypeError(f"from_pretrained: takes only device=, but got {', '.join(options)}.")
        folder = Path(model_id)
        if not folder.is_dir():
            folder = Path(huggingface_hub.snapshot_download(model_id, allow_patterns=FILES, **source))
        if not (folder / WEIGHTS).is_file():
            raise FileNotFoundError(
                f"from_pretrained: {str(model_id)!r} holds no {WEIGHTS}, so it is not an ensemble. Load a single "
                f"network with transformers.AutoModelFor{cls.kind}, and make one from it: "
                "pb.multihead(model, 4)."
            )
        try:
            check_folder_digests(folder)
            config = read_config(folder)
            check_claimed_size(folder, config, cls.kind)
            tokenizer = read_tokenizer(folder) if (folder / "tokenizer_config.json").is_file() else None
        except (ValueError, OSError) as error:
            raise ValueError(f"from_pretrained: {str(model_id)!r} cannot be used: {str(error).rstrip('.')}.") from None
        return cls(load(folder / WEIGHTS, build_text_classifier(config, cls.kind), device), tokenizer)


class EnsembleForSequenceClassification(EnsembleModel):
    """An ensemble of text classifiers that `Trainer`, pipelines and the Hub take for a model of theirs.

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

    kind = "SequenceClassification"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Any = None,
    ) -> EnsembleOutput:
        """In training the loss alone; in evaluation the ensemble's answer, and its loss where there are labels."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.answer(
            {**given, "position_ids": position_ids, "inputs_embeds": inputs_embeds}, labels, num_items_in_batch
        )


class EnsembleForTokenClassification(EnsembleForSequenceClassification):
    """An ensemble of networks that label each token, such as names or parts of speech; labels of -100 are ignored.

    Shapes:
        input_ids, attention_mask, labels: (batch, tokens)
        logits: (batch, tokens, classes); member_logits: (batch, members, tokens, classes)

    >>> sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> network = transformers.BertForTokenClassification(transformers.BertConfig(**sizes, num_labels=3))
    >>> model = EnsembleForTokenClassification(pb.deep(network, 2)).eval()
    >>> output = model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[0, -100, 2]]))
    >>> output.logits.shape, output.epistemic.shape
    (torch.Size([1, 3, 3]), torch.Size([1, 3]))
    """

    kind = "TokenClassification"


class MemberCaches(transformers.Cache):
    """The keys and values that each member has computed so far: one cache for each."""

    is_compileable = False  # members run one after the other

    def __init__(self, members: Iterable[Any]):
        self.members, self.offloading = list(members), False

    @property
    def layers(self) -> list[Any]:  # type: ignore[override]
        """The layers of all members: what reorders, crops or repeats a cache does it to each."""
        return [layer for cache in self.members for layer in cache.layers]


class EnsembleForCausalLM(EnsembleModel, transformers.GenerationMixin):
    """An ensemble of language models that `generate` continues texts with: each token from the mean probability.

    Greedy search takes the most probable token of the mean, sampling draws from it, beams add its logarithms; every
    member keeps its own cache. `token_uncertainty` says how unsure each token of a text is.

    Shapes:
        input_ids, attention_mask, labels: (batch, tokens); labels are the tokens themselves, or -100
        logits: (batch, tokens, vocabulary); member_logits: (batch, members, tokens, vocabulary)

    Args:
        ensemble: made by any method from a causal language model of transformers
        tokenizer: stored with it, where one is given

    >>> config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    >>> model = EnsembleForCausalLM(pb.deep(transformers.GPT2LMHeadModel(config), 3)).eval()
    >>> text = model.generate(torch.tensor([[4, 5, 6]]), min_new_tokens=2, max_new_tokens=2, do_sample=False)
    >>> text.shape, model.token_uncertainty(text)["epistemic"].shape
    (torch.Size([1, 5]), torch.Size([1, 4]))
    """

    kind = "CausalLM"
    loss_type = "ForCausalLM"  # `Trainer` counts labels from the second token on
    _is_stateful = False

    def __init__(self, ensemble: Ensemble, tokenizer: Any = None):
        super().__init__(ensemble, tokenizer)
        self.generation_config: Any = copy.deepcopy(ensemble.module.generation_config)
        if ensemble.run != "loop" and not ensemble.joint:
            ensemble.run = "loop"  # a cache is an object of one member's own
        self._taken = set(inspect.signature(ensemble.module.forward).parameters)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: MemberCaches | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        labels: Tensor | None = None,
        num_items_in_batch: Any = None,
        return_dict: bool = True,
    ) -> EnsembleOutput:
        """In training the loss alone; in evaluation the ensemble's answer, and its loss where there are labels."""
        if use_cache and past_key_values is None and labels is None and not self.ensemble.joint:
            past_key_values = MemberCaches(
                transformers.DynamicCache(config=self.config) for _ in range(self.ensemble.size)
            )
        given: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        given |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds}
        given |= {"use_cache": past_key_values is not None, "logits_to_keep": logits_to_keep or None}
        taken = {name: value for name, value in given.items() if name in self._taken}
        output = self.answer(taken | {"past_key_values": past_key_values}, labels, num_items_in_batch, shift=1)
        if logits_to_keep and output.logits is not None and output.member_logits is not None:
            output.logits = output.logits[:, -logits_to_keep:]  # of members that take no such argument
            output.member_logits = output.member_logits[:, :, -logits_to_keep:]
        return output

    def token_uncertainty(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        """How sure the ensemble was of each token but the first, given those before it, in nats: (batch, tokens - 1).

        "log_probability" of the token itself; "total" = "aleatoric" + "epistemic" of the whole distribution that it
        is taken from. For what `generate` has added, take the last columns.

        Args:
            attention_mask: 0 for padding, to the left or to the right
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        places = (mask.long().cumsum(-1) - 1).clamp_min(0)
        with evaluation_mode(self):
            output = self(input_ids, attention_mask=mask, position_ids=places)
            log_p = output.logits[:, :-1].gather(-1, input_ids[:, 1:, None])[..., 0]
            parts = {name: getattr(output, name)[:, :-1] for name in ("total", "aleatoric", "epistemic")}
        return {"log_probability": log_p, **parts}

    def can_generate(self) -> bool:
        """Yes: token by token, from the mean probability."""
        return True

    @classmethod
    def is_remote_code(cls) -> bool:
        """No code of a repository's own is ever run."""
        return False

    def get_experts_implementation(self) -> dict[str, str]:
        """As the members have it: `generate` changes nothing about it."""
        return {}

    def _outputs(self) -> int:
        return self.config.get_text_config(decoder=True).vocab_size

    @classmethod
    def _config_of(cls, ensemble: Ensemble) -> Any:
        model, config = ensemble.module, getattr(ensemble.module, "config", None)
        if config is None or not isinstance(model, transformers.GenerationMixin) or config.is_encoder_decoder:
            raise TypeError(
                "needs an ensemble of causal language models of transformers, but this is one of "
                f"{type(model).__name__}."
            )
        return config

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict[str, Any], *details: Any
    ) -> None:
        """A cache for each member, of the kind that the generation's settings ask for."""
        if self.ensemble.joint:
            generation_config.use_cache = False  # one pass for all: there is nothing of a member's own to keep
        given = model_kwargs.get("past_key_values")
        if given is not None and not isinstance(given, MemberCaches):
            raise TypeError(f"generate: past_key_values must be MemberCaches, but they are {type(given).__name__}.")
        kept: list[dict[str, Any]] = [dict(model_kwargs) for _ in range(self.ensemble.size)]
        for one in kept:
            super()._prepare_cache_for_generation(generation_config, one, *details)  # type: ignore[misc]
        if given is None and kept[0].get("past_key_values") is not None:
            model_kwargs["past_key_values"] = MemberCaches(one["past_key_values"] for one in kept)

    @classmethod
    def _from_pretrained(cls, **options: Any) -> Any:
        model = super()._from_pretrained(**options)
        folder = Path(options["model_id"])
        if (folder / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        return model


def _run_cached(ensemble: Ensemble, inputs: dict[str, Any], caches: MemberCaches) -> Tensor:
    """Every member's logits, (members, batch, tokens, classes), each with its own cache."""
    ensemble.look_once(((), {**inputs, "use_cache": False}))
    outputs = [
        member(**inputs, past_key_values=cache) for member, cache in zip(ensemble.members, caches.members, strict=True)
    ]
    return torch.stack([output.logits for output in outputs])


def _cross_entropy(logits: Tensor, labels: Tensor, shift: int = 0) -> Tensor:
    """The mean over labels other than -100; those of language models are already shifted to the tokens before them."""
    logits = logits[:, :-shift] if shift else logits
    return cross_entropy(logits, labels, class_dim=-1 if logits.ndim > 2 else None)


class EnsembleTrainer(transformers.Trainer):
    """`transformers.Trainer`, with no weight decay on BatchEnsemble's biases b, as on any, nor on its r and s.

    Its checkpoints take weights that are tied, as those of many language models are.

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

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        tensors = state_dict if state_dict is not None or self.model is None else self.model.state_dict()
        first = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
        apart = {name: t if first[t.data_ptr()] == name else t.clone() for name, t in tensors.items()}
        super()._save(output_dir, apart)  # safetensors takes no tensors that share their memory


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


def _vectors(prefix: str, ensemble: Ensemble) -> list[str]:
    """The members' own vectors, which `transformers` cannot tell by their names: what scales, and biases."""
    biases = [dotted_name(name, "b") for name in member_layers(ensemble.module)]
    return [".".join(filter(None, [prefix, "module", name])) for name in (*ensemble.fast, *biases)]
