"""The checkpoints of a training run: the weights and predictions of one network along its way, kept and stored."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._common.atomic import check_place
from .._common.signed_files import check_digest, read_checkpoint_file, read_safetensors, write_safetensors
from .._common.untrusted import check_shape, is_plain_tensor, parse_json
from ..core.ensemble import TASKS
from ..methods.building import check_model
from ..surgery.copying import duplicate, state
from ..surgery.selecting import quote_names
from .common.examples import Examples, answers, choose_task, is_classifying
from .common.networks import Buffers, Layout, Networks, put_, rest_of

FORMAT = 1
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


class Trajectory(Networks):
    """The checkpoints of one training run, first to last; as a holder of networks it holds the checkpoints.

    Made by `trajectory`, `trajectories`, a `Recorder`, or `Trajectory.of`. `run[i]` is checkpoint i as a module.

    Shapes:
        weights: (checkpoints, parameters)
        outputs: (checkpoints, rows, classes), probabilities; in regression (checkpoints, rows, ...), values

    Args:
        model: the module with the weights at the end of training: `solution` is a copy of it
        buffers: for each checkpoint, what is no parameter, such as running statistics
        steps: training steps at which the checkpoints were taken
        answers: for each checkpoint, logarithms of probabilities or values on the probe; None without a probe
        targets: the labels or values of the probe, where it had any
        task: "classification", "binary", "regression" or "gaussian"
        class_dim: where the classes are in the outputs; None: last
        history: what `pb.fit` gave

    >>> checkpoints = [nn.Linear(4, 3).state_dict() for _ in range(3)]
    >>> run = Trajectory.of(checkpoints, nn.Linear(4, 3), probe=torch.randn(8, 4))
    >>> run.weights.shape, run.outputs.shape
    (torch.Size([3, 15]), torch.Size([3, 8, 3]))
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Tensor,
        buffers: Buffers,
        steps: Sequence[int],
        answers: Tensor | None = None,
        targets: Tensor | None = None,
        task: str = "classification",
        class_dim: int | None = None,
        history: Any = None,
    ):
        super().__init__(model, weights, buffers, task, class_dim)
        self.steps, self.answers, self.targets, self.history = list(steps), answers, targets, history

    @property
    def outputs(self) -> Tensor:
        """What each checkpoint says on the probe: probabilities, or values in regression."""
        if self.answers is None:
            raise ValueError("trajectory: outputs need a probe, but none was recorded. Give probe= when recording.")
        return self.answers.exp() if is_classifying(str(self.task)) else self.answers

    @property
    def solution(self) -> nn.Module:
        """The network at the end of training, in full precision and in eval mode."""
        return duplicate(self.model).eval()

    def solution_row(self) -> Networks:
        """The solution as a holder of one network."""
        tensors = dict(state(self.model))
        buffers = {name: value[None] for name, value in rest_of(self.layout, tensors).items()}
        return Networks(self.model, self.layout.vector(tensors)[None], buffers, self.task, self.class_dim)

    def __repr__(self) -> str:
        count, parameters = self.weights.shape
        rows = "no probe" if self.answers is None else f"{self.answers.shape[1]} rows of a probe"
        return f"Trajectory({count} checkpoints of {parameters:,} parameters, {str(self.weights.dtype)[6:]}, {rows})"

    # ---------------------------------------------------------------- anybody's checkpoints

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[Any],
        model: nn.Module,
        probe: Any = None,
        *,
        steps: Sequence[int] | None = None,
        task: str | None = None,
        class_dim: int | None = None,
        dtype: str = "float32",
    ) -> Trajectory:
        """The trajectory through saved checkpoints, in their order.

        Args:
            checkpoints: state_dicts, modules, or paths of safetensors files or of what `torch.save` wrote (read
                without running code); an entry "state_dict" and a prefix of all names, such as "module.", are seen
            model: a module of their architecture; it is not changed
            probe: (x, y), a data set or a loader, or x alone: where predictions are recorded
            steps: when each was saved; by default 0, 1, 2, ...
            dtype: how weights are kept: "float32", "float16", "bfloat16" or "float64"
        """
        check_model("Trajectory.of", model, nests=True)
        if not checkpoints:
            raise ValueError("Trajectory.of: there must be at least one checkpoint, but the list is empty.")
        record = Record(probe, task=task, class_dim=class_dim, dtype=dtype)
        taken = range(len(checkpoints)) if steps is None else steps
        for i, (checkpoint, step) in enumerate(zip(checkpoints, taken, strict=True)):
            module = duplicate(model)
            _load_(module, state_dict_of(checkpoint), i)
            record.add(module, step)
        return record.trajectory()

    # ---------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trajectory as one safetensors file; it is complete or not there."""
        path = Path(path)
        check_place("save", path)
        tensors = {"weights": self.weights, **{f"buffers.{n}": t for n, t in self.buffers.items()}}
        tensors |= {f"solution.{name}": tensor for name, tensor in state(self.model)}
        tensors |= {n: t for n, t in (("answers", self.answers), ("targets", self.targets)) if t is not None}
        header = {"format": FORMAT, "steps": self.steps, "task": self.task, "class_dim": self.class_dim}
        write_safetensors(path, tensors, {"pluribus_trajectory": json.dumps(header)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Trajectory:
        """The trajectory that was saved, for a module of its architecture, which is not changed."""
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"load: there is no file {str(path)!r}.")
        try:
            text, tensors = read_safetensors(path, "pluribus_trajectory")
            header = parse_json(text or "null")
            _check_trajectory(header, tensors)
        except ValueError as error:
            raise ValueError(
                f"load: {str(path)!r} holds no trajectory ({error}). Give a file that Trajectory.save wrote."
            ) from error
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        buffers, solution = (
            {name.removeprefix(key): tensor for name, tensor in tensors.items() if name.startswith(key)}
            for key in ("buffers.", "solution.")
        )
        module = duplicate(model)
        _load_(module, solution, None)
        check_digest(path, note=True)
        more = (header["steps"], tensors.get("answers"), tensors.get("targets"), header["task"], header["class_dim"])
        return cls(module, tensors["weights"], buffers, *more)


@dataclass(frozen=True)
class Course:
    """What one member of an ensemble predicted during training, even if it is not a separate network.

    Shapes:
        answers: (checkpoints, rows, classes), logarithms of probabilities; in regression (checkpoints, rows, ...)
        outputs: the same as probabilities, or values

    Args:
        answers: what it said at each step
        steps: training steps at which it was asked
        targets: the true answers, where they are known
        task: "classification" or "regression"

    >>> Course(torch.zeros(2, 8, 3).log_softmax(-1), steps=[1, 2]).outputs.shape
    torch.Size([2, 8, 3])
    """

    answers: Tensor
    steps: list[int]
    targets: Tensor | None = None
    task: str = "classification"

    @property
    def outputs(self) -> Tensor:
        """Probabilities, or values in regression."""
        return self.answers.exp() if is_classifying(self.task) else self.answers

    def __len__(self) -> int:
        return len(self.answers)


class Record:
    """What is written down of one network as it is trained, step by step.

    Args:
        keep: only the last so many
        dtype: how weights are kept
    """

    def __init__(
        self,
        probe: Any = None,
        *,
        keep: int | None = None,
        task: str | None = None,
        class_dim: int | None = None,
        dtype: str = "float32",
    ):
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {quote_names(DTYPES)}, but it is {dtype!r}.")
        self.probe = None if probe is None else Examples("probe", probe)
        self.keep, self.task, self.class_dim, self.dtype = keep, task, class_dim, DTYPES[dtype]
        self.steps: list[int] = []
        self.weights: list[Tensor] = []
        self.rests: list[Buffers] = []
        self.answers: list[Tensor] = []
        self.model: nn.Module | None = None

    def add(self, model: nn.Module, step: int) -> None:
        """Record the network as it is now; the random state, its mode and its weights stay as they are."""
        tensors, layout = dict(state(model)), Layout(model)
        vector = layout.vector(tensors)
        kept = vector.to(torch.float64 if layout.dtype == torch.float64 == self.dtype else self.dtype)
        if bool((kept.isinf() & vector.isfinite()).any()):
            raise ValueError(
                f"record: the weights go up to {vector.abs().max():.3g}, which {str(self.dtype)[6:]} cannot hold. "
                'Use dtype="bfloat16" or "float32".'
            )
        if self.probe is not None:
            with torch.random.fork_rng(devices=[]):
                self.task = choose_task("record", self.task, None, self.probe, model)
                self.answers.append(answers(model, self.probe, self.task, self.class_dim))
        self.steps.append(int(step))
        self.weights.append(kept)
        self.rests.append(rest_of(layout, tensors))
        for column in (self.steps, self.weights, self.rests, self.answers):
            del column[: max(0, len(column) - (self.keep or len(column)))]
        if self.model is None:
            self.model = duplicate(model)
        put_(self.model, layout, vector, self.rests[-1])

    def state(self) -> dict[str, Any]:
        """What was written down so far, in plain values and tensors."""
        return {"steps": self.steps, "weights": self.weights, "rests": self.rests, "answers": self.answers}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what was written down before."""
        self.steps, self.weights = list(state["steps"]), list(state["weights"])
        self.rests, self.answers = list(state["rests"]), list(state["answers"])

    def trajectory(self) -> Trajectory:
        """What was written down so far."""
        if self.model is None:
            raise ValueError("trajectory: nothing has been recorded yet. Call record(model, step), or train first.")
        buffers = {name: torch.stack([rest[name] for rest in self.rests]) for name in self.rests[0]}
        said = torch.stack(self.answers) if self.answers else None
        targets = None if self.probe is None else self.probe.targets
        return Trajectory(
            duplicate(self.model), torch.stack(self.weights), buffers, self.steps, said, targets,
            self.task or "classification", self.class_dim,
        )  # fmt: skip


def _check_trajectory(header: Any, tensors: Mapping[str, Tensor]) -> None:
    check_shape(header, {"format": int})
    if header["format"] > FORMAT:
        raise ValueError(f"its format {header['format']} is newer; update pluribus")
    check_shape(header, {"steps": [int], "task": str, "class_dim": (None, int)})
    if header["task"] not in TASKS:
        raise ValueError(f"its task must be one of {quote_names(TASKS)}, but is {header['task']!r}")
    steps, weights = len(header["steps"]), tensors.get("weights")
    if weights is None or weights.ndim != 2 or not weights.is_floating_point() or len(weights) != steps:
        raise ValueError(f"it must hold the weights of {steps} steps")
    rows = {name: t for name, t in tensors.items() if name == "answers" or name.startswith("buffers.")}
    if short := [name for name, tensor in rows.items() if not tensor.ndim or len(tensor) != steps]:
        raise ValueError(f"it must hold {quote_names(short, 3)} of {steps} steps")


def state_dict_of(checkpoint: Any) -> Mapping[str, Tensor]:
    """The tensors of a checkpoint by name; a module has buffers that are not saved, too."""
    if isinstance(checkpoint, nn.Module):
        return dict(state(checkpoint))
    if isinstance(checkpoint, (str, os.PathLike)):
        path = Path(checkpoint)
        if not path.is_file():
            raise FileNotFoundError(f"Trajectory.of: there is no file {str(path)!r}.")
        try:
            checkpoint = read_safetensors(path)[1] if path.suffix == ".safetensors" else read_checkpoint_file(path)
            check_digest(path)
        except Exception as error:  # a damaged file can fail in any way
            raise ValueError(f"Trajectory.of: {str(path)!r} is not a checkpoint that can be read ({error}).") from error
    if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("state_dict"), Mapping):
        checkpoint = checkpoint["state_dict"]
    named = isinstance(checkpoint, Mapping) and all(isinstance(name, str) for name in checkpoint)
    if not named or not any(isinstance(t, Tensor) for t in checkpoint.values()):
        raise TypeError(
            "Trajectory.of: a checkpoint must be a state_dict, an nn.Module or the path of a "
            f"file, but one is a {type(checkpoint).__name__}."
        )
    return checkpoint


def _load_(module: nn.Module, tensors: Mapping[str, Tensor], number: int | None) -> None:
    """Put the tensors into the module, if they are those of its architecture."""
    what = "the file" if number is None else f"checkpoint {number}"
    own = dict(state(module))
    prefix = prefix_of(own, tensors)
    for name, tensor in own.items():
        given = tensors.get(prefix + name)
        if given is None and name in dict(module.named_buffers()) and name not in module.state_dict():
            continue  # a buffer that is not saved
        if not isinstance(given, Tensor) or not _is_alike(given, tensor):
            found = _describe(given)
            raise ValueError(
                f"{what} must be of the model's architecture, but {name!r}, of the shape {tuple(tensor.shape)} in the "
                f"model, {found} in {what}. Give the model that was trained."
            )
    with torch.no_grad():
        for name, tensor in own.items():
            if prefix + name in tensors:
                tensor.copy_(tensors[prefix + name])


def _is_alike(given: Tensor, own: Tensor) -> bool:
    """Whether it has the same shape and kind of number: a complex one would lose half of it without a word."""
    if not is_plain_tensor(given) or given.shape != own.shape:
        return False
    return (given.is_floating_point(), given.is_complex()) == (own.is_floating_point(), own.is_complex())


def _describe(given: Any) -> str:
    if not isinstance(given, Tensor):
        return "is not there" if given is None else f"is a {type(given).__name__}"
    if not is_plain_tensor(given):
        return "is sparse, nested, quantized or without values"
    return f"has the shape {tuple(given.shape)} and holds {str(given.dtype)[6:]}"


def prefix_of(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """What stands before all names in the checkpoint: "module." of a wrapped model, "model." of a lightning one."""
    first = next(iter(own), "")
    if first in tensors:
        return ""
    found = [name.removesuffix(first) for name in tensors if name.endswith(f".{first}")]
    return next((p for p in found if all(p + name in tensors for name in own if "num_batches" not in name)), "")
