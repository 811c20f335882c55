"""From the rows of a source to data: checked, divided into three parts, measured on the training part.

Rows of other data are brought into the form of the data that they are to be compared with.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .._common.optional import require
from .dataset import NO_CLASS, AnswerKey, Data, ImageArrays, Shape, Split, divide, moments, without_targets
from .image_folders import ImageFiles
from .source import ImageParts, Request, SourceParts, TableParts, Task, list_names
from .tables import (
    CLASSES,
    Frame,
    Series,
    add_bins_,
    add_quantiles_,
    class_numbers,
    column_rules,
    encode_table,
    label_counts,
    label_of,
)
from .texts import text_rule

NEEDS = {
    "classification": "one class for each row",
    "regression": "numbers to predict",
    "multilabel": "a table with several targets, as in --target a,b,c",
    "segmentation": "masks, as in --data masks:FOLDER",
}

TEST_SHARE = 0.2
IMAGENET_CLASSES = 1000
MEASURED_FILES = 2000  # files that are read for the mean and the standard deviation of a large folder


def build_image_data(request: Request, parts: ImageParts, share: float) -> Data:
    """The images as data: divided, and brought to one shape."""
    masks, classes, notes = bool(parts.mask_values), parts.classes, list(parts.notes)
    check_task(request, request.task, ("segmentation",) if masks else ("classification", "regression"))
    given = {"train": parts.train, "validation": parts.validation, "test": parts.test}
    kept = {name: part for name, part in given.items() if part}
    if not masks:
        kept = {name: _rows_with_label(request, part, name, classes, notes) for name, part in kept.items()}
    if "train" not in kept:
        name, whole = next(iter(kept.items()))
        notes.append(f"{request.spec}: there is only a {name} part: all three parts were taken from it.")
        kept = {"train": whole}
    if not masks:
        _check_labels(request, kept, classes, notes)
    by_class = bool(classes) and not masks
    codes = kept["train"].y if by_class else torch.zeros(len(kept["train"]))
    kept |= {name: kept["train"].take(rows) for name, rows in _divide(request, kept, codes, by_class, share).items()}
    codes = kept["train"].y if by_class else torch.zeros(len(kept["train"]))
    train = kept["train"].take(_some_rows(request, codes, by_class, notes))
    shape = train.inputs.shape  # type: ignore[attr-defined]
    shape = (shape[0], request.image_size, request.image_size) if request.image_size else shape
    train, validation, test = (with_shape(part, shape) for part in (train, kept["validation"], kept["test"]))
    many = isinstance(train.inputs, ImageFiles) and len(train) > MEASURED_FILES
    mean, std = moments(train.take(torch.linspace(0, len(train) - 1, MEASURED_FILES).long()) if many else train)
    data = Data(
        name=request.spec,
        task="segmentation" if masks else "classification" if classes else "regression",
        kind="images",
        train=train,
        validation=validation,
        test=test,
        classes=classes,
        outside={name: with_shape(part, shape) for name, part in parts.ood.items()},
        shifted={name: [with_shape(part, shape) for part in found] for name, found in parts.shifted.items()},
        mean=mean,
        std=std,
        notes=notes,
    )
    data = data if classes else _standardise_targets(data)
    encoding: dict[str, Any] = {
        "kind": "images",
        "task": data.task,
        "shape": list(shape),
        "classes": list(data.classes),
        "mean": data.mean.flatten().tolist(),
        "std": data.std.flatten().tolist(),
        "target_mean": data.target_mean,
        "target_std": data.target_std,
    }
    return replace(data, encoding=encoding | ({"values": parts.mask_values} if masks else {}))


def check_task(request: Request, task: Task | None, fitting: Sequence[Task]) -> None:
    """Refuse a task that the data do not have."""
    if task is not None and task not in fitting:
        raise ValueError(
            f"{request.spec}: the task {task} needs {NEEDS[task]}, but these data are for {' or '.join(fitting)}."
        )


def _divide(
    request: Request, parts: Mapping[str, Any], codes: torch.Tensor, stratified: bool, share: float
) -> dict[str, torch.Tensor]:
    """The training rows that make each part that is not given, and those that are left for training."""
    shares = {"test": TEST_SHARE, "validation": share}
    shares = {name: 0.0 if name in parts else wanted for name, wanted in shares.items()}
    rows = divide(codes, list(shares.values()), request.seed, stratified=stratified)
    found = {
        name: some for name, some in zip((*shares, "train"), rows, strict=True) if name not in parts or name == "train"
    }
    for name in ("train", "test"):
        if len(found.get(name, parts.get(name, codes))) == 0:
            raise ValueError(f"{request.spec}: {len(codes)} examples are too few: none is left for the {name} part.")
    return found


def _standardise_targets(data: Data) -> Data:
    """Targets of a regression with the mean 0 and the standard deviation 1 of the training part."""
    mean, std = float(data.train.y.double().mean()), float(data.train.y.double().std(correction=0)) or 1.0
    parts = (data.train, data.validation, data.test)
    train, validation, test = (part.with_targets((part.targets - mean) / std) for part in parts)
    return replace(data, train=train, validation=validation, test=test, target_mean=mean, target_std=std)


def _rows_with_label(request: Request, part: Split, name: str, classes: Sequence[str], notes: list[str]) -> Split:
    """The rows that have a target."""
    known = part.y != NO_CLASS if classes else part.y.isfinite()
    if not classes and not part.y.is_floating_point() or not known.any():
        raise ValueError(
            f"{request.spec}: the {name} part has no labels. Images need one folder per class, arrays need y_{name}; "
            "without labels they can only be out-of-distribution (OOD) data."
        )
    if not known.all():
        notes.append(f"{request.spec}: {int((~known).sum())} {name} rows have no label and were left out.")
    return part.take(known)


def _check_labels(request: Request, parts: dict[str, Split], classes: tuple[str, ...], notes: list[str]) -> None:
    train = parts["train"].y
    if train.unique().numel() < 2:
        only = classes[int(train[0])] if classes else float(train[0])
        raise ValueError(f"{request.spec}: training needs at least two classes, but there is only {only}.")
    if classes:
        for name, part in parts.items():
            check_seen(request, name, [classes[label] for label in sorted(set(part.y.tolist()) - set(train.tolist()))])
        _note_single(
            request, parts, dict(zip(classes, train.bincount(minlength=len(classes)).tolist(), strict=True)), notes
        )


def _note_single(request: Request, parts: Mapping[str, Any], counts: Mapping[str, int], notes: list[str]) -> None:
    """Say which classes have one example alone, which training keeps."""
    once = [name for name, count in counts.items() if count == 1]
    if once and len(parts) < 3:
        notes.append(f"{request.spec}: only one example, kept for training: {list_names(once)}.")


def _some_rows(request: Request, targets: torch.Tensor, stratified: bool, notes: list[str]) -> torch.Tensor:
    """As many of the training rows as were asked for, from each class alike; all by default."""
    wanted, there = request.train_rows, len(targets)
    if wanted is None or wanted == there:
        return torch.arange(there)
    if wanted > there:
        raise ValueError(f"{request.spec}: train_rows {wanted} asks for more than the {there} training rows.")
    _, chosen = divide(targets, [(there - wanted) / there], request.seed, stratified=stratified)
    notes.append(f"{request.spec}: trained on {len(chosen)} of {there} rows, as train_rows asks.")
    return chosen


def with_shape(split: Split, shape: Shape) -> Split:
    """The same rows in this shape."""
    inputs = split.inputs
    assert isinstance(inputs, ImageArrays | ImageFiles)
    return split if inputs.shape == shape else Split(inputs.with_shape(shape), split.targets, split.rows)


# ---------------------------------------------------------------- tables


def build_table_data(request: Request, frames: TableParts, share: float) -> Data:
    """The table as data: divided, and encoded as its training part says."""
    notes = list(frames.notes)
    parts = {"train": frames.train, "validation": frames.validation, "test": frames.test}
    targets = _targets(request, frames)
    parts = {
        name: _rows_with_target(request, part, targets, name, notes) for name, part in parts.items() if part is not None
    }
    if len(targets) > 1:
        classes: tuple[str, ...] = ()
        task: Task = _task_of_several(request, parts["train"][targets], notes)
    else:
        wanted = frames.task or request.task
        check_task(request, wanted, ("classification", "regression"))
        task = wanted or _task(parts["train"][targets[0]], request, notes)
        classes = _classes(request, parts, targets[0], task, notes)
    whole = parts["train"]
    codes = torch.from_numpy(class_numbers(whole[targets[0]], classes)) if classes else torch.zeros(len(whole))
    rows = _divide(request, parts, codes, bool(classes), share)
    divided = {**parts, **{name: whole.iloc[some.tolist()] for name, some in rows.items()}}
    some = _some_rows(request, codes[rows["train"]], bool(classes), notes)
    divided["train"] = divided["train"].iloc[some.tolist()]
    target = targets if len(targets) > 1 else targets[0]
    encoding: dict[str, Any] = {"kind": "table", "task": task, "target": target, "classes": list(classes)}
    encoding |= _target_moments(divided["train"][target]) if task == "regression" else {}
    if task == "multilabel":
        encoding["values"] = [_sorted_labels(parts["train"][name]) for name in targets]
        for name, part in parts.items():
            for column, values in zip(targets, encoding["values"], strict=True):
                check_seen(request, name, sorted(set(map(label_of, part[column].unique())) - set(values)))
    encoding |= {"missing": list(request.missing)} if request.missing else {}
    if not frames.texts:
        inputs = divided["train"].drop(columns=target)
        encoding["columns"] = column_rules(inputs, notes, scale=frames.scale)
        if request.numbers != "standard":
            {"quantile": add_quantiles_, "piecewise": add_bins_}[request.numbers](encoding["columns"], inputs)
    else:
        every = require("pandas", "reading tables", "data").concat(divided.values()).drop(columns=target)
        encoding["columns"] = [text_rule(every, request, notes)]
    if not encoding["columns"]:
        raise ValueError(f"{request.spec}: no column but the target is left to predict from. {' '.join(notes)}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* are cut", category=UserWarning)  # the notes say so
        train, validation, test = (encode_table(encoding, divided[name]) for name in ("train", "validation", "test"))
    return Data(
        name=request.spec,
        task=task,
        kind="table",
        train=train,
        validation=validation,
        test=test,
        classes=classes,
        targets=tuple(targets) if len(targets) > 1 else (),
        outside={name: without_targets(encode_table(encoding, frame)) for name, frame in frames.ood.items()},
        target_mean=encoding.get("target_mean", 0.0),
        target_std=encoding.get("target_std", 1.0),
        encoding=encoding,
        notes=notes,
    )


def _targets(request: Request, frames: TableParts) -> list[str]:
    """The columns to predict; a text with commas names several, unless there is one column of that name."""
    columns = list_names(list(map(str, frames.train.columns)))
    target = frames.target or request.target
    if not target:
        raise ValueError(
            f"{request.spec}: name the column to predict with target= (command line: --target). There are: {columns}."
        )
    if isinstance(target, str):
        whole = target in frames.train.columns or "," not in target
        targets = [target] if whole else [name.strip() for name in target.split(",")]
    else:
        targets = list(target)
    for part in (frames.train, frames.validation, frames.test):
        if part is not None and (absent := [name for name in targets if name not in part.columns]):
            columns = list_names(list(map(str, part.columns)))
            raise ValueError(f'{request.spec}: the target "{absent[0]}" is not a column. There are: {columns}.')
    if len(set(targets)) < len(targets):
        raise ValueError(f"{request.spec}: every target must be named once, but they are {list_names(targets)}.")
    return targets


def _rows_with_target(request: Request, frame: Frame, targets: list[str], part: str, notes: list[str]) -> Frame:
    """The rows that have all targets."""
    for target in targets:
        values = frame[target]
        known = values.notna()
        if values.dtype.kind == "f":
            known &= np.isfinite(values.fillna(0).astype(float))
        if not known.all():
            notes.append(f'{request.spec}: {(~known).sum()} {part} rows have no target "{target}" and were left out.')
        if part == "train" and values[known].nunique() < 2:
            only = f"only {values[known].iloc[0]}" if known.any() else "no value at all"
            raise ValueError(
                f'{request.spec}: a target must have at least two values, but "{target}" has {only} in {len(frame)} '
                "rows. Choose another target."
            )
        frame = frame[known]
    return frame


def _task_of_several(request: Request, values: Frame, notes: list[str]) -> Task:
    """Several targets are numbers ("regression"), or each is a question with two answers ("multilabel")."""
    texts = [name for name, kind in values.dtypes.items() if kind.kind not in "iufb"]
    many = [name for name in values.columns if values[name].nunique() > 2]
    task = request.task or ("regression" if many and not texts else "multilabel")
    check_task(request, task, ("regression", "multilabel"))
    if wrong := texts if task == "regression" else many:
        found = ", ".join(label_of(value) for value in values[wrong[0]].unique()[:3])
        raise ValueError(
            f"{request.spec}: several targets must all be numbers (regression), or all have two values (multilabel), "
            f'but "{wrong[0]}" has values such as {found}. Choose other targets, or one.'
        )
    if task == "regression":
        notes.append(
            f"{request.spec}: metrics over {values.shape[1]} targets are in standard deviations of each target; those "
            "of each target are in its own units."
        )
    return task


def _sorted_labels(values: Series) -> list[str]:
    """The labels that occur, numbers before words; of two, as a multi-label table has them, the first counts as no."""
    return [label_of(value) for value in sorted(values.unique(), key=lambda v: (isinstance(v, str), v))]


def _task(values: Series, request: Request, notes: list[str]) -> Task:
    kind = values.dtype.kind
    if kind not in "iuf":
        return "classification"
    distinct, whole = values.nunique(), kind in "iu" or bool((values == values.round()).all())
    task: Task = "classification" if whole and distinct <= CLASSES else "regression"
    if whole:
        other = "regression" if task == "classification" else "classification"
        notes.append(
            f'{request.spec}: the target "{values.name}" has {distinct} whole values, so this is {task}; '
            f'task="{other}" (command line: --task {other}) overrides that.'
        )
    return task


def _classes(request: Request, parts: dict[str, Frame], target: str, task: str, notes: list[str]) -> tuple[str, ...]:
    """Names of the classes, sorted; () for regression."""
    values = parts["train"][target]
    if task == "regression":
        if values.dtype.kind not in "iufb":
            raise ValueError(
                f'{request.spec}: a regression target must be numbers, but "{target}" has {values.iloc[0]!r}.'
            )
        return ()
    if len(values) // 2 < values.nunique() > CLASSES:
        raise ValueError(
            f'{request.spec}: "{target}" has {values.nunique()} different values in {len(values)} rows: too many for '
            "classes. Choose another target"
            + (', or task="regression" (command line: --task regression).' if values.dtype.kind in "iuf" else ".")
        )
    classes = tuple(_sorted_labels(values))
    for name, part in parts.items():
        check_seen(request, name, sorted(set(map(label_of, part[target].unique())) - set(classes)))
    counts = label_counts(values)
    _note_single(request, parts, {name: counts[name] for name in classes}, notes)
    return classes


def check_seen(request: Request, part: str, unseen: list[str]) -> None:
    """Refuse labels that training never saw."""
    if unseen:
        raise ValueError(
            f"{request.spec}: every class of the {part} part must occur in training, but {list_names(unseen)} never "
            "does. Remove these rows, or give them as out-of-distribution (OOD) data."
        )


def _target_moments(values: Any) -> dict[str, Any]:
    """Of one target, or lists of several."""
    numbers = values.to_numpy(float)
    mean, std = numbers.mean(0), numbers.std(0)
    return {"target_mean": mean.tolist(), "target_std": np.where(std > 0, std, 1.0).tolist()}


# ---------------------------------------------------------------- other data in the form of this data


def encode_rows(data: Data, request: Request, parts: SourceParts) -> Split:
    """The rows of other data, in the form of this data."""
    if (data.kind == "table") != isinstance(parts, TableParts):
        raise ValueError(f"load: {data.name} is {data.kind}, so other data must be too, but {request.spec} is not.")
    if isinstance(parts, TableParts):
        assert data.encoding is not None
        return encode_table(data.encoding, parts.rows)
    assert request.shape is not None
    return with_shape(parts.rows, request.shape)


def encode_labelled_rows(data: Data, request: Request, parts: SourceParts, notes: list[str]) -> Split:
    """The rows of other data with targets that mean what they mean in this data."""
    rows = encode_rows(data, request, parts)
    if isinstance(parts, ImageParts) and data.classes and parts.numbered:
        place = place_of_numbers(data, request, parts)
        notes += [note for note in parts.notes if note not in notes]
        return renumber(rows, [place[int(name)] for name in parts.classes])
    if isinstance(parts, ImageParts) and data.classes:
        return take_known_classes(data, request, rows, parts.classes, notes)
    if data.classes and (rows.y == NO_CLASS).all() or rows.y.is_floating_point() and rows.y.isnan().all():
        raise ValueError(f"load: {request.spec} has no targets that {data.name} knows, so it cannot be evaluated.")
    if not data.classes and data.kind == "images":
        return rows.with_targets((rows.targets - data.target_mean) / data.target_std)
    return rows


def take_known_classes(data: Data, request: Request, rows: Split, classes: tuple[str, ...], notes: list[str]) -> Split:
    """The rows of classes that the data has, numbered as there: by name, or by number where names are numbers."""
    number = {name: i for i, name in enumerate(data.classes)}
    if not set(classes) & set(number) and all(name.isdigit() for name in classes):
        number = {str(i): i for i in range(len(data.classes))}
    mapped = renumber(rows, [number.get(name, NO_CLASS) for name in classes])
    known = mapped.y != NO_CLASS
    if not known.any():
        few = ", ".join(classes[:5]) or "none"
        raise ValueError(f"load: {request.spec} has no class of {data.name}: its classes are {few} ...")
    if not known.all():
        notes.append(f"{request.spec}: {int((~known).sum())} examples of classes not in {data.name} were left out.")
    return mapped.take(known)


def encode_answers(data: Data, request: Request, parts: ImageParts, notes: list[str]) -> tuple[Split, AnswerKey]:
    """The rows of a variant with classes of its own, and what counts as right for each of those."""
    place, rows = place_of_numbers(data, request, parts), encode_rows(data, request, parts)
    assert parts.answers is not None
    answers = torch.zeros(len(parts.answers), len(data.classes), dtype=torch.bool)
    for kind, numbers in enumerate(parts.answers):
        answers[kind, [place[number] for number in numbers]] = True
    notes += [note for note in parts.notes if note not in notes]
    return rows, AnswerKey(answers, None if parts.sets is None else torch.tensor(parts.sets))


def place_of_numbers(data: Data, request: Request, parts: ImageParts) -> dict[int, int]:
    """Where each of ImageNet's 1,000 classes is among those of the data: by its WordNet id, or by its number."""
    names = data.classes
    wnids = all(re.fullmatch(r"n\d{8}", name) for name in names)
    numbers = names == tuple(map(str, range(len(names))))
    if len(names) != IMAGENET_CLASSES or not (wnids or numbers):
        few = ", ".join(names[:3])
        raise ValueError(
            f"load: {request.spec} numbers its classes as ImageNet does, from 0 to {IMAGENET_CLASSES - 1} in the order "
            f"of their WordNet ids, but {data.name} has {len(names)} classes: {few} ... Load all of ImageNet, with "
            "its classes named by those ids, such as n01440764, or by numbers."
        )
    place = {name: i for i, name in enumerate(names)}
    if wnids and (unknown := [wnid for wnid in parts.wnids.values() if wnid not in place]):
        raise ValueError(f"load: {request.spec} has the class {unknown[0]}, which {data.name} does not have.")
    return {i: place[parts.wnids[i]] if wnids and i in parts.wnids else i for i in range(IMAGENET_CLASSES)}


def renumber(rows: Split, numbers: Sequence[int]) -> Split:
    """The same rows, with the number of each class replaced by another."""
    table = torch.tensor([*numbers, NO_CLASS])  # the last row is that of NO_CLASS itself
    return rows.with_targets(table[rows.targets])
