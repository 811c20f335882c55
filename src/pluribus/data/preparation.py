"""From the rows of a source to data: checked, divided into three parts, measured on the training part.

Rows of other data are brought into the form of the data that they are to be compared with.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
    add_quantiles_,
    column_rules,
    encode_table,
    label_counts,
    label_of,
    map_values,
)
from .texts import text_rule

TEST_SHARE = 0.2

IMAGENET_CLASSES = 1000

MEASURED_FILES = 2000  # files that are read for the mean and the standard deviation of a large folder


def build_image_data(request: Request, parts: ImageParts, share: float) -> Data:
    """The images as data: divided, and brought to one shape."""
    if parts.mask_values:
        return _build_mask_data(request, parts, share)
    if request.task in ("multilabel", "segmentation"):
        raise ValueError(
            f"{request.spec}: the task {request.task} needs "
            f"{'--data masks:FOLDER' if request.task == 'segmentation' else 'a table with several targets'}, but these "
            "are images with one label each."
        )
    notes = list(parts.notes)
    given = {"train": parts.train, "validation": parts.validation, "test": parts.test}
    kept = {name: _rows_with_label(request, part, name, parts.classes, notes) for name, part in given.items() if part}
    if "train" not in kept:
        name, whole = next(iter(kept.items()))
        notes.append(f"{request.spec}: there is only a {name} part: all three parts were taken from it.")
        kept = {"train": whole}
    _check_labels(request, kept, parts.classes, notes)
    train, validation, test = _divide_images(request, kept, bool(parts.classes), share)
    train = train.take(_some_rows(request, train.y, bool(parts.classes), notes))
    shape = _image_shape(train, request.image_size)
    train, validation, test = (with_shape(part, shape) for part in (train, validation, test))
    few = isinstance(train.inputs, ImageFiles) and len(train) > MEASURED_FILES
    mean, std = moments(train.take(torch.linspace(0, len(train) - 1, MEASURED_FILES).long()) if few else train)
    data = Data(
        name=request.spec,
        task="classification" if parts.classes else "regression",
        kind="images",
        train=train,
        validation=validation,
        test=test,
        classes=parts.classes,
        outside={name: with_shape(part, shape) for name, part in parts.ood.items()},
        shifted={name: [with_shape(part, shape) for part in found] for name, found in parts.shifted.items()},
        mean=mean,
        std=std,
        notes=notes,
    )
    return _with_encoding(data if parts.classes else _standardise_targets(data), shape)


def _build_mask_data(request: Request, parts: ImageParts, share: float) -> Data:
    """Images with masks as data: divided, and measured."""
    if request.task not in (None, "segmentation"):
        raise ValueError(f"{request.spec}: masks are for segmentation, but the task is {request.task}.")
    assert parts.train is not None
    whole, notes = parts.train, list(parts.notes)
    shares = [0.0 if parts.test else TEST_SHARE, 0.0 if parts.validation else share]
    rows = divide(torch.zeros(len(whole)), shares, request.seed, stratified=False)
    test, validation, train = (whole.take(some) for some in rows)
    test, validation = parts.test or test, parts.validation or validation
    if not len(test) or not len(train):
        raise ValueError(f"{request.spec}: {len(whole)} images are too few: none is left for the test part.")
    train = train.take(_some_rows(request, torch.zeros(len(train)), False, notes))
    mean, std = moments(train.take(torch.linspace(0, len(train) - 1, min(len(train), MEASURED_FILES)).long()))
    data = Data(
        request.spec, "segmentation", "images", train, validation, test, parts.classes, mean=mean, std=std, notes=notes
    )
    assert isinstance(train.inputs, ImageFiles)
    data = _with_encoding(data, train.inputs.shape)
    return replace(data, encoding={**(data.encoding or {}), "values": parts.mask_values})


def _with_encoding(data: Data, shape: Shape) -> Data:
    encoding = {
        "kind": "images",
        "task": data.task,
        "shape": list(shape),
        "classes": list(data.classes),
        "mean": data.mean.flatten().tolist(),
        "std": data.std.flatten().tolist(),
        "target_mean": data.target_mean,
        "target_std": data.target_std,
    }
    return replace(data, encoding=encoding)


def _standardise_targets(data: Data) -> Data:
    """Targets of a regression with the mean 0 and the standard deviation 1 of the training part."""
    mean, std = float(data.train.y.double().mean()), float(data.train.y.double().std(correction=0)) or 1.0

    def standardise(part: Split) -> Split:
        return Split(part.inputs, (part.targets - mean) / std, part.rows)

    train, validation, test = standardise(data.train), standardise(data.validation), standardise(data.test)
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
    if not classes:
        return
    for name, part in parts.items():
        unseen = sorted(set(part.y.tolist()) - set(train.tolist()))
        check_seen(request, name, [classes[label] for label in unseen])
    counts = train.bincount(minlength=len(classes))
    once = [name for name, count in zip(classes, counts.tolist(), strict=True) if count == 1]
    if once and len(parts) < 3:
        notes.append(f"{request.spec}: only one example, kept for training: {list_names(once)}.")


def _divide_images(
    request: Request, parts: dict[str, Split], stratified: bool, share: float
) -> tuple[Split, Split, Split]:
    whole = parts["train"]
    shares = [0.0 if "test" in parts else TEST_SHARE, 0.0 if "validation" in parts else share]
    test, validation, train = (
        whole.take(rows) for rows in divide(whole.y, shares, request.seed, stratified=stratified)
    )
    test = parts.get("test", test)
    if len(test) == 0:
        raise ValueError(f"{request.spec}: {len(whole)} examples are too few: none is left for the test part.")
    return train, parts.get("validation", validation), test


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


def _image_shape(split: Split, image_size: int | None) -> Shape:
    inputs = split.inputs
    assert isinstance(inputs, ImageArrays | ImageFiles)
    return (inputs.shape[0], image_size, image_size) if image_size else inputs.shape


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
        task: Task = _task_of_several(request, frames.task, parts["train"][targets], notes)
    elif frames.task in ("multilabel", "segmentation"):
        needs = "several targets, as in --target a,b,c" if frames.task == "multilabel" else "--data masks:FOLDER"
        raise ValueError(f"{request.spec}: the task {frames.task} needs {needs}, but this is one column of a table.")
    else:
        task = frames.task or _task(parts["train"][targets[0]], request, notes)
        classes = _classes(request, parts, targets[0], task, notes)
    divided = _divide_table(request, parts, targets[0], classes, share)
    codes = _class_numbers(divided["train"][targets[0]], classes)
    divided["train"] = divided["train"].iloc[_some_rows(request, codes, bool(classes), notes).tolist()]
    target = targets if len(targets) > 1 else targets[0]
    encoding: dict[str, Any] = {"kind": "table", "task": task, "target": target, "classes": list(classes)}
    encoding |= _target_moments(divided["train"][target]) if task == "regression" else {}
    if task == "multilabel":
        encoding["values"] = [_two_values(parts["train"][name]) for name in targets]
        for name, part in parts.items():
            for column, values in zip(targets, encoding["values"], strict=True):
                check_seen(request, name, sorted(set(map(label_of, part[column].unique())) - set(values)))
    encoding |= {"missing": list(frames.missing)} if frames.missing else {}
    if frames.tokenizer is None:
        inputs = divided["train"].drop(columns=target)
        encoding["columns"] = column_rules(inputs, notes, scale=frames.scale)
        if request.numbers == "quantile":
            add_quantiles_(encoding["columns"], inputs)
    else:
        every = require("pandas", "reading tables", "data").concat(divided.values()).drop(columns=target)
        encoding["columns"] = [text_rule(every, frames.tokenizer, frames.long_texts, request.spec, notes)]
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
    if not frames.target:
        raise ValueError(
            f"{request.spec}: name the column to predict with target= (command line: --target). There are: {columns}."
        )
    if isinstance(frames.target, str):
        whole = frames.target in frames.train.columns or "," not in frames.target
        targets = [frames.target] if whole else [name.strip() for name in frames.target.split(",")]
    else:
        targets = list(frames.target)
    for part in (frames.train, frames.validation, frames.test):
        for target in targets if part is not None else ():
            if target not in part.columns:
                columns = list_names(list(map(str, part.columns)))
                raise ValueError(f'{request.spec}: the target "{target}" is not a column. There are: {columns}.')
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


def _task_of_several(request: Request, task: Task | None, values: Frame, notes: list[str]) -> Task:
    """Several targets are numbers ("regression"), or each is a question with two answers ("multilabel")."""
    texts = [name for name, kind in values.dtypes.items() if kind.kind not in "iufb"]
    many = [name for name in values.columns if values[name].nunique() > 2]
    task = task or ("regression" if many and not texts else "multilabel")
    wrong = texts if task == "regression" else many
    if wrong or task not in ("regression", "multilabel"):
        found = [label_of(value) for value in values[wrong[0]].unique()[:3]] if wrong else []
        said = f'"{wrong[0]}" has values such as {", ".join(found)}' if wrong else f"the task is {task}"
        raise ValueError(
            f"{request.spec}: several targets must all be numbers (regression), or all have two values (multilabel), "
            f"but {said}. Choose other targets, or one."
        )
    if task == "regression":
        notes.append(
            f"{request.spec}: metrics over {values.shape[1]} targets are in standard deviations of each target; those "
            "of each target are in its own units."
        )
    return task


def _two_values(values: Series) -> list[str]:
    """The answers to one question of a multi-label table: the first counts as no, the second as yes."""
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
    classes = tuple(map(label_of, sorted(values.unique(), key=lambda v: (isinstance(v, str), v))))
    for name, part in parts.items():
        check_seen(request, name, sorted(set(map(label_of, part[target].unique())) - set(classes)))
    counts = label_counts(values)
    once = [name for name in classes if counts[name] == 1]
    if once and len(parts) < 3:
        notes.append(f"{request.spec}: only one row, kept for training: {list_names(once)}.")
    return classes


def check_seen(request: Request, part: str, unseen: list[str]) -> None:
    """Refuse labels that training never saw."""
    if unseen:
        raise ValueError(
            f"{request.spec}: every class of the {part} part must occur in training, but {list_names(unseen)} never "
            "does. Remove these rows, or give them as out-of-distribution (OOD) data."
        )


def _divide_table(
    request: Request, parts: dict[str, Frame], target: str, classes: tuple[str, ...], share: float
) -> dict[str, Frame]:
    whole = parts["train"]
    codes = _class_numbers(whole[target], classes)
    shares = {"test": 0.0 if "test" in parts else TEST_SHARE, "validation": 0.0 if "validation" in parts else share}
    rows = divide(codes, list(shares.values()), request.seed, stratified=bool(classes))
    for name, chosen in zip((*shares, "train"), rows, strict=True):
        if name not in parts or name == "train":
            parts[name] = whole.iloc[chosen.tolist()]
    for name in ("train", "test"):
        if len(parts[name]) == 0:
            raise ValueError(f"{request.spec}: {len(whole)} rows are too few: none is left for the {name} part.")
    return parts


def _class_numbers(values: Series, classes: tuple[str, ...]) -> torch.Tensor:
    """The number of each row's class; zeros for regression."""
    if not classes:
        return torch.zeros(len(values))
    number = {name: i for i, name in enumerate(classes)}
    return torch.from_numpy(map_values(values, lambda value: number[label_of(value)], NO_CLASS))


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
        return _take_numbered_classes(data, request, rows, parts, notes)
    if isinstance(parts, ImageParts) and data.classes:
        return take_known_classes(data, request, rows, parts.classes, notes)
    if data.classes and (rows.y == NO_CLASS).all() or rows.y.is_floating_point() and rows.y.isnan().all():
        raise ValueError(f"load: {request.spec} has no targets that {data.name} knows, so it cannot be evaluated.")
    if not data.classes and data.kind == "images":
        return Split(rows.inputs, (rows.targets - data.target_mean) / data.target_std, rows.rows)
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


def _take_numbered_classes(data: Data, request: Request, rows: Split, parts: ImageParts, notes: list[str]) -> Split:
    place = place_of_numbers(data, request, parts)
    mapped = renumber(rows, [place[int(name)] for name in parts.classes])
    notes += [note for note in parts.notes if note not in notes]
    return mapped


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
    wnids, numbers = all(map(_is_wnid, names)), names == tuple(map(str, range(len(names))))
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


def _is_wnid(name: str) -> bool:
    return len(name) == 9 and name[0] == "n" and name[1:].isdigit()


def renumber(rows: Split, numbers: Sequence[int]) -> Split:
    """The same rows, with the number of each class replaced by another."""
    table = torch.tensor([*numbers, NO_CLASS])  # the last row is that of NO_CLASS itself
    return Split(rows.inputs, table[rows.targets], rows.rows)
