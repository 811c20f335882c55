"""An ensemble as one file that needs neither Python nor Pluribus: ONNX, or PyTorch's own exported program."""

from __future__ import annotations

import inspect
import io
import json
import logging
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from .._common.atomic import check_place
from .._common.optional import require
from .._common.torch_private import pytree
from .._common.trees import Batch, as_batch, logits_of, rows_of, tensors_of
from ..core.ensemble import Ensemble
from ..surgery.calling import call, refuse_chance_outside_torch, refuse_sparse
from ..surgery.copying import duplicate, state
from ..surgery.selecting import quote_names
from ..uncertainty.outputs import AnswerModule, answer_names
from .cascade_graph import cascade_names, compose
from .export_graph import first_words, plain_of, resize, trace_program
from .fixed_dropout import Fixed, Redrawn, find_draws
from .stages import Cascade

FORMATS = {".onnx": "onnx", ".pt2": "torch"}

REPEATS = 24  # runs of each side that a random network is judged by

LIMIT = 2**31 - 2**24  # bytes that a protobuf file can hold, with room for the graph


@dataclass(frozen=True)
class Export:
    """The result of `pb.export`: the file, and how it was checked.

    Args:
        path: the file
        format: "onnx" or "torch", an exported program
        inputs: the names of the file's inputs
        outputs: the names of its outputs
        batch: "dynamic", or the number of rows that the file takes
        draws: "none", "fixed" (stored) or "random" (drawn at each run)
        difference: the largest difference from PyTorch that was seen, relative to 1 or the output's largest value
        tolerance: the difference that was allowed
        checked: the batch sizes on which it was compared
        bytes: the file's size

    >>> written = pb.export(pb.deep(nn.Linear(4, 3), 2), torch.randn(5, 4), "two.pt2")
    >>> written.format, written.batch, 5 in written.checked, written.difference < written.tolerance
    ('torch', 'dynamic', True, True)
    """

    path: Path
    format: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch: str | int
    draws: str
    difference: float | None
    tolerance: float
    checked: tuple[int, ...]
    bytes: int

    def explain(self) -> str:
        """The file, what goes in and comes out, and how far it was from PyTorch, as text."""
        kinds = {"onnx": "ONNX", "torch": "a PyTorch exported program"}
        chance = {
            "none": "nothing is random",
            "fixed": "dropout was drawn once and stored: every row and every run uses the same draws",
            "random": "dropout is drawn again in each run",
        }
        checked = "was not run"
        if self.difference is not None:
            seen = f"differs from PyTorch by {self.difference:.1e} at most (allowed: {self.tolerance:g})"
            if self.draws == "random":
                seen = f"agrees with PyTorch in its mean over {REPEATS} runs"
            checked = f"{seen}, with batches of {', '.join(map(str, self.checked))}"
        return (
            f"{self.path}: {kinds[self.format]}, {self.bytes / 1e6:.2f} MB\n"
            f"  takes {', '.join(self.inputs)}; batch: {self.batch}\n"
            f"  gives {', '.join(self.outputs)}\n"
            f"  {chance[self.draws]}\n"
            f"  {checked}"
        )

    def record(self) -> dict[str, Any]:
        """The same in plain JSON types."""
        return json.loads(json.dumps({**asdict(self), "path": str(self.path)}))


def export(
    ensemble: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    draws: str = "fixed",
    dynamic: bool = True,
    check: bool = True,
    tolerance: float = 1e-4,
    generator: torch.Generator | None = None,
) -> Export:
    """Write the ensemble with its uncertainties to one file, and check that the file gives the same outputs.

    The file gives mean, label, confidence, total, aleatoric and epistemic (regression: mean, total, aleatoric and
    epistemic), as `predict` does, for any number of rows. It is run on the example, on one row and on a larger
    batch, with ONNX Runtime or PyTorch, and moved to its place only when it agrees. What no member owns is computed
    once. The ensemble stays as it is.

    Shapes:
        mean: (batch, classes)
        label, confidence, total, aleatoric, epistemic: (batch)

    Args:
        ensemble: an Ensemble, or what `pb.freeze` gives; or a `Cascade`: its file runs only the rows that go on, and
            also gives how many members answered
        example: what one call takes: a tensor, a tuple of arguments or a dict of named ones, rows first
        path: where to; the suffix says the format: ".onnx", or ".pt2" for torch.export
        draws: MC-Dropout only. "fixed": each member's dropout is drawn now, stored and the same for every row, so
            that equal inputs have equal answers; "random": the file draws at each run
        dynamic: False: the file takes batches of the example's size only
        tolerance: the largest difference allowed, relative to 1 or to the largest value of an output
        generator: where fixed draws come from; torch's global generator if None

    >>> written = export(pb.deep(nn.Linear(4, 3), 2), torch.randn(5, 4), "two.pt2")
    >>> written.outputs, written.difference < 1e-4
    (('mean', 'label', 'confidence', 'total', 'aleatoric', 'epistemic'), True)
    """
    path = Path(path)
    format = _check_arguments(ensemble, path, draws, tolerance)
    refuse_sparse("export", example)
    batch = _check_example(ensemble, example, format, dynamic)
    size = rows_of(batch)
    given = duplicate(ensemble).eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), refuse_chance_outside_torch("export"):
        outputs = call("export", given, example)  # here an ensemble looks at its first batch
    if isinstance(given, Ensemble):
        given.locate_classes(batch, logits_of(outputs))
    task, class_dim = getattr(given, "task", "classification"), getattr(given, "class_dim", None)
    plain = given if isinstance(given, Cascade) else plain_of(given)
    chance = bool(find_draws(plain, batch))
    if chance and draws == "fixed":
        given = plain = Fixed(plain, batch, generator)
    elif chance:
        plain = Redrawn(plain)
    elif draws == "random":
        raise ValueError('export: draws="random" is for MC-Dropout, but this ensemble draws nothing. Leave it out.')
    draws = draws if chance else "none"
    outputs = cascade_names(given) if isinstance(given, Cascade) else answer_names(task)
    first: Any = ensemble.stages[0] if isinstance(ensemble, Cascade) else ensemble
    inputs = _input_names(first, batch, outputs)
    members = ensemble.counts[-1] if isinstance(ensemble, Cascade) else getattr(ensemble, "size", "")
    about = {"task": task, "members": str(members), "draws": draws, **getattr(first, "about", {})}
    with torch.no_grad(), _quiet(), _beside(path) as temporary:
        if isinstance(given, Cascade):
            _write_cascade(given, resize(batch, max(size, 2)), temporary, inputs, about)
        else:
            program = trace_program(AnswerModule(plain, task, class_dim).eval(), batch, dynamic)
            if format == "onnx":
                _write_onnx(program, temporary, inputs, outputs, about)
            else:
                _write_program(program, temporary, about)
        sizes: tuple[int, ...] = ()
        difference = None
        if check:
            sizes = tuple(sorted({1, size, 2 * size + 1})) if dynamic else (size,)
            run = _onnx_runner(temporary, inputs, outputs) if format == "onnx" else _torch_runner(temporary)
            compare = _compare_random if draws == "random" else _compare
            expected = given.answers if isinstance(given, Cascade) else AnswerModule(given, task, class_dim).eval()
            difference = max(compare(expected, run, resize(batch, n), tolerance) for n in sizes)
        written = sum(file.stat().st_size for file in temporary.parent.iterdir())
    rows = "dynamic" if dynamic else size
    return Export(path, format, inputs, outputs, rows, draws, difference, tolerance, sizes, written)


# -------------------------------------------------------------------- what is asked for


def _check_arguments(ensemble: Any, path: Path, draws: str, tolerance: float) -> str:
    """The format, if everything asked for can be done."""
    if not isinstance(ensemble, Ensemble) and not (isinstance(ensemble, nn.Module) and hasattr(ensemble, "task")):
        inside = hasattr(ensemble, "ensemble")  # of Calibrated and Upgrade
        hint = "Give its .ensemble, and calibrate the file's answers." if inside else "Make one with pb.single(model)."
        raise TypeError(f"export: needs an Ensemble or a frozen one, but got a {type(ensemble).__name__}. {hint}")
    if any(tensor.is_meta for _, tensor in state(ensemble)):
        raise ValueError("export: the ensemble is on the meta device and has no values. Build it on the CPU.")
    if draws not in ("fixed", "random"):
        raise ValueError(f'export: draws must be "fixed" or "random", but it is {draws!r}.')
    if not tolerance > 0:
        raise ValueError(f"export: tolerance must be positive, but it is {tolerance}.")
    format = FORMATS.get(path.suffix)
    if format is None:
        raise ValueError(f'export: the suffix must be ".onnx" or ".pt2", but it is {path.suffix!r}. Rename the file.')
    if format == "onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            require(name, "export to ONNX", "export")
        if any(tensor.dtype == torch.bfloat16 for _, tensor in state(ensemble)):
            raise ValueError("export: ONNX Runtime has few operators for bfloat16. Call ensemble.float() first.")
    check_place("export", path)
    return format


def _check_example(ensemble: nn.Module, example: Any, format: str, dynamic: bool) -> Batch:
    if isinstance(ensemble, Cascade) and (format != "onnx" or not dynamic):
        raise ValueError(
            "export: a cascade is written as .onnx with a batch of any size. For another runtime, export each of "
            "cascade.stages and gather the rows that go on, as docs/deploy.md shows."
        )
    batch = as_batch(example)
    if not tensors_of(batch) or not rows_of(batch):
        raise ValueError("export: the example must hold a tensor of at least one row. Give what one call takes.")
    return batch


def _input_names(ensemble: nn.Module, batch: Batch, taken: Sequence[str]) -> tuple[str, ...]:
    """What the model's own code calls its tensors, keys of a tree after their argument's name."""
    module: Any = getattr(ensemble, "module", ensemble)
    module = module[0] if isinstance(module, nn.ModuleList) else module
    ordered = [p for p in inspect.signature(module.forward).parameters.values() if p.kind != p.VAR_KEYWORD]
    first = [p.name for p in ordered if p.kind != p.VAR_POSITIONAL]
    count = len(batch[0])
    positional = first[:count] + [f"input_{i}" if count > 1 else "input" for i in range(len(first), count)]
    names = []
    for name, tree in (*zip(positional, batch[0], strict=True), *batch[1].items()):
        for keys, leaf in pytree.tree_flatten_with_path(tree)[0]:
            if isinstance(leaf, Tensor):
                names.append("_".join([name, *(str(getattr(k, "key", getattr(k, "idx", k))) for k in keys)]))
    return tuple(f"{name}_input" if name in taken else name for name in names)


# -------------------------------------------------------------------- what is written


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A place for the file in a new folder beside it; what is there at the end is moved, or nothing is."""
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder) / path.name
        for file in sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name):  # the weights' file first
            os.replace(file, path.parent / file.name)


def _write_cascade(cascade: Cascade, batch: Batch, path: Path, inputs: Sequence[str], about: dict[str, str]) -> None:
    import onnx

    model = compose(cascade, batch, inputs, lambda program: _convert(program).model_proto)
    told = [onnx.StringStringEntryProto(key=f"pluribus.{key}", value=value) for key, value in about.items()]
    model.metadata_props.extend(told)
    onnx.save(model, path)


def _write_program(program: torch.export.ExportedProgram, path: Path, about: dict[str, str]) -> None:
    content = io.BytesIO()  # on a full disk, torch's own writing of files ends the process
    torch.export.save(program, content, extra_files={"pluribus.json": json.dumps(about)})
    path.write_bytes(content.getbuffer())


def _write_onnx(
    program: torch.export.ExportedProgram,
    path: Path,
    inputs: Sequence[str],
    outputs: Sequence[str],
    about: dict[str, str],
) -> None:
    # The optimizer may take equal random operations for one, so that all members would drop alike.
    made = _convert(program, optimize=about["draws"] != "random")
    _name_(made.model.graph, inputs, outputs)
    made.model.metadata_props.update({f"pluribus.{key}": value for key, value in about.items()})
    size = sum(tensor.numel() * tensor.element_size() for tensor in program.state_dict.values())
    made.save(str(path), external_data=size > LIMIT)


def _convert(program: torch.export.ExportedProgram, optimize: bool = True) -> Any:
    try:
        made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=optimize)
    except Exception as error:
        pattern = r"No ONNX function found for <OpOverload\(op='([^']+)'"
        missing = re.findall(pattern, "".join(traceback.format_exception(error)))
        if missing:
            raise ValueError(
                f"export: ONNX has no operator for {quote_names(list(dict.fromkeys(missing)))}, which the model uses. "
                "Write that part with other operators, or export to a .pt2 file."
            ) from error
        raise ValueError(f"export: torch.onnx cannot convert the model: {first_words(error)}.") from error
    assert made is not None
    return made


def _name_(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give inputs, outputs and the batch their names; values inside that have such a name get another."""
    ends = [*zip(graph.inputs, inputs, strict=True), *zip(graph.outputs, outputs, strict=True)]
    inside = [value for node in graph for value in node.outputs] + list(graph.initializers.values())
    for value in inside:
        if value.name in (*inputs, *outputs):
            value.name = f"{value.name}_inside"
    for value, name in ends:
        value.name = name
        if value.shape is not None and value.shape.rank() and not isinstance(value.shape[0], int):
            value.shape = type(value.shape)(["batch", *value.shape[1:]])


# -------------------------------------------------------------------- what is checked


Runner = Callable[[Batch], dict[str, Tensor]]


def _onnx_runner(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Runner:
    runtime = require("onnxruntime", "export to ONNX", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"export: ONNX Runtime cannot load the file: {first_words(error)}.") from error

    def run(batch: Batch) -> dict[str, Tensor]:
        fed = dict(zip(inputs, (tensor.cpu().numpy() for tensor in tensors_of(batch)), strict=True))
        return dict(zip(outputs, map(torch.from_numpy, session.run(list(outputs), fed)), strict=True))

    return run


def _torch_runner(path: Path) -> Runner:
    module = torch.export.load(path).module()
    return lambda batch: module(*batch[0], **batch[1])


def _run(run: Runner, batch: Batch) -> dict[str, Tensor]:
    try:
        return {name: tensor.cpu() for name, tensor in run(batch).items()}
    except Exception as error:
        raise ValueError(
            f"export: the exported network does not run on {rows_of(batch)} rows: {first_words(error)}. "
            "Where the model's code depends on the number of rows, give dynamic=False."
        ) from error


def _compare(expected: Callable[..., Any], run: Runner, batch: Batch, tolerance: float) -> float:
    """The largest difference; one above the tolerance is an error."""
    theirs = _run(run, batch)
    ours = {name: tensor.cpu() for name, tensor in expected(*batch[0], **batch[1]).items()}
    worst = 0.0
    for name, tensor in ours.items():
        if tensor.shape != theirs[name].shape:
            raise ValueError(
                f"export: {name!r} must have the shape {tuple(tensor.shape)}, but the exported network gives "
                f"{tuple(theirs[name].shape)} for {rows_of(batch)} rows. Nothing was written."
            )
        if name == "label":
            continue  # of equals either may come first: the confidence shows it
        difference = _difference(tensor, theirs[name])
        worst = max(worst, difference)
        if not difference <= tolerance:
            raise ValueError(
                f"export: the exported network must agree with PyTorch to {tolerance:g}, but {name!r} differs by "
                f"{difference:.2g} for {rows_of(batch)} rows. Nothing was written. Give tolerance= to allow more."
            )
    if "label" in ours:
        _check_labels(ours, theirs["label"], tolerance)
    return worst


def _difference(a: Tensor, b: Tensor) -> float:
    """Relative to 1 or the largest value; of values that are not finite both must have the same."""
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    finite = a[a.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    apart = torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf))
    return float(apart.max()) / scale if apart.numel() else 0.0


def _check_labels(ours: dict[str, Tensor], theirs: Tensor, tolerance: float) -> None:
    """Another label is right only where it is as probable as ours."""
    differing = theirs != ours["label"]
    if bool(differing.any()) and ours["mean"].ndim == theirs.ndim + 1:
        dim = next(d for d in range(ours["mean"].ndim) if ours["mean"].movedim(d, -1).shape[:-1] == theirs.shape)
        chosen = ours["mean"].movedim(dim, -1).gather(-1, theirs[..., None])[..., 0]
        if bool(((ours["confidence"] - chosen).abs() <= 2 * tolerance)[differing].all()):
            return
    if bool(differing.any()):
        raise ValueError(
            f"export: {int(differing.sum())} of {differing.numel()} labels differ from PyTorch's. Nothing was written."
        )


def _compare_random(expected: Callable[..., Any], run: Runner, batch: Batch, tolerance: float) -> float:
    """Whether a network that draws has PyTorch's mean, within what chance allows, and draws for each member."""
    ours = [expected(*batch[0], **batch[1]) for _ in range(REPEATS)]
    theirs = [_run(run, batch) for _ in range(REPEATS)]
    means = [torch.stack([each["mean"].cpu().double() for each in side]) for side in (ours, theirs)]
    if means[0].shape != means[1].shape:
        raise ValueError("export: the exported network's shape differs from PyTorch's. Nothing was written.")
    error = sum((m.var(0) / REPEATS for m in means), torch.zeros(())).sqrt()
    apart = (means[0].mean(0) - means[1].mean(0)).abs()
    if bool((apart > 8 * error + tolerance * max(1.0, float(means[0].abs().max()))).any()):
        raise ValueError(
            f"export: the exported network's mean over {REPEATS} runs differs from PyTorch's by {apart.max():.2g}, "
            'more than chance allows. Nothing was written. Choose draws="fixed".'
        )
    spread = [torch.stack([each["epistemic"].cpu().double() for each in side]).mean() for side in (ours, theirs)]
    if not bool(spread[0] / 3 <= spread[1] <= spread[0] * 3) or not bool(means[1].var(0).max() > 0):
        raise ValueError(
            f"export: the members of the exported network must draw independently, but their epistemic uncertainty is "
            f'{spread[1]:.2g} and PyTorch\'s is {spread[0]:.2g}. Nothing was written. Choose draws="fixed".'
        )
    return float(apart.max())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch and onnxscript say about their own insides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
