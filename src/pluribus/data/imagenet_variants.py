"""Other test sets of ImageNet's classes: ImageNetV2, ObjectNet, ImageNet-Vid-Robust and YTBB-Robust (MIMO, Table 4).

ObjectNet and the two sets of videos have classes of their own, each of which stands for some of ImageNet's; a label is
right if it is one of those. Of a video's frames, those around an anchor that people found similar to it are one set.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.untrusted import check_shape, open_file, read_json
from .dataset import Split, labelled_split
from .image_folders import CHECKED_FIRST, ImageFiles, build_parts, choose_shape, list_images, take_readable
from .source import ImageParts, Request, damaged_error, missing_error

BORDER = 2  # pixels: ObjectNet's images have a red frame, which must not be shown to a network

REACH = 10  # frames on either side of an anchor

PROBLEMS = frozenset(
    "dissimilar|problematic|incorrect|dont know|deformation|background-change|occlusion-increased|blur-increase|"
    "bad-anchor".split("|")
)

LONGEST_TABLE = 2**26  # bytes

# ---------------------------------------------------------------- readers that DATA names


def read_imagenet_v2(request: Request, path: Path, page: str) -> ImageParts:
    """ImageNetV2 as published: a folder for each class, named by the class's number among ImageNet's 1,000."""
    notes = list[str]()
    found = list_images(path, notes)
    strange = sorted({label for _, label in found if not (label.isascii() and label.isdigit() and int(label) < 1000)})
    if strange:
        raise ValueError(
            f"{request.spec}: the folders in {path} must be named 0 to 999, the numbers of the classes, but there is "
            f"{strange[0]!r}."
        )
    read = build_parts(request, path, {"test": found})
    return ImageParts(test=read.test, classes=read.classes, numbered=True, notes=notes + read.notes)


def read_objectnet(request: Request, path: Path, page: str) -> ImageParts:
    """ObjectNet as published: folders of classes in images/, and in mappings/ which of ImageNet's each stands for."""
    answers = _objectnet_answers(request, path / "mappings", page)
    images = path / "images"
    if not images.is_dir():
        raise missing_error(request, ["images"], page, path)
    notes = list[str]()
    listed = list_images(images, notes)
    found = [(at, label) for at, label in listed if label in answers]
    if len(found) < len(listed):
        left = f"{len(listed) - len(found)} images of classes that ImageNet does not have were left out"
        notes.append(f"{request.spec}: {left}.")
    if not found:
        raise ValueError(f"{request.spec}: {images} has no images of the classes in {path / 'mappings'}.")
    kinds = sorted(answers)
    number = {name: i for i, name in enumerate(kinds)}
    return _answered_parts(request, images, found, number, [answers[name] for name in kinds], notes, border=BORDER)


def read_vid_robust(request: Request, path: Path, page: str) -> ImageParts:
    """ImageNet-Vid-Robust as published: frames in val/, sets and labels in metadata/, classes in misc/."""
    sets = _read(request, path, "metadata/pmsets.json", {str: [str]}, page)
    labels = _read(request, path, "metadata/labels.json", {str: [int]}, page)
    answers, wnids = _vid_classes(request, path, page)
    frames = [Frames(anchor, tuple(others)) for anchor, others in sets.items()]
    named = {at for one in frames for at in (one.anchor, *one.others)}
    if unlabelled := sorted(named - set(labels)):
        raise damaged_error(path / "metadata/labels.json", f"it has no label for {unlabelled[0]}")
    return _video_parts(request, path, frames, {at: frozenset(labels[at]) for at in named}, answers, wnids)


def read_ytbb_robust(request: Request, path: Path, page: str) -> ImageParts:
    """YTBB-Robust as published: frames in ytbb_videos/, and what people said of anchors and of frames around them.

    An anchor counts if it was found good; a frame, if it was found similar and without a problem. Frames have the
    labels of their anchor: the one that Youtube-BB gives, and those that people added.
    """
    notes_at = next((path / name for name in ("metadata", ".") if (path / name / "anchor_labels.json").is_file()), path)
    classes = _read(request, notes_at, "ytbb_class_index.json", {str: str}, page)
    answers = {int(key): numbers for key, numbers in _rev_class_map(request, notes_at, page).items()}
    index = {name: int(number) for number, name in classes.items() if number.isdigit()}
    frames, labels = _ytbb_frames(request, notes_at, index, page)
    root = next((path / name for name in ("ytbb_videos", "frames") if (path / name).is_dir()), path)
    return _video_parts(request, root, frames, labels, answers, {})


# ---------------------------------------------------------------- ObjectNet


def _objectnet_answers(request: Request, folder: Path, page: str) -> dict[str, list[int]]:
    """For each folder of images, the numbers of ImageNet's classes that it stands for."""
    titles = _read(request, folder, "folder_to_objectnet_label.json", {str: str}, page)
    meanings = _read(request, folder, "objectnet_to_imagenet_1k.json", {str: str}, page)
    order = _read(request, folder, "pytorch_to_imagenet_2012_id.json", {str: int}, page)
    names = _text(request, folder, "imagenet_to_label_2012_v2", page).splitlines()
    place = {line: int(number) for number, line in order.items() if number.isdigit()}
    if sorted(place) != list(range(len(names))) or sorted(place.values()) != list(range(len(names))):
        raise damaged_error(
            folder / "pytorch_to_imagenet_2012_id.json", f"it must number each of the {len(names)} lines of names once"
        )
    number = {name.strip(): place[line] for line, name in enumerate(names)}
    of_title = {title: name for name, title in titles.items()}
    found = {}
    for title, meant in meanings.items():
        unknown = [name for name in meant.split("; ") if name not in number]
        if unknown or title not in of_title:
            what = f"{unknown[0]!r} is not a class of ImageNet" if unknown else f"{title!r} has no folder"
            raise damaged_error(folder / "objectnet_to_imagenet_1k.json", what)
        found[of_title[title]] = [number[name] for name in meant.split("; ")]
    return found


# ---------------------------------------------------------------- videos


@dataclass(frozen=True)
class Frames:
    """A set of similar frames: their paths."""

    anchor: str
    others: tuple[str, ...]


def _video_parts(
    request: Request,
    root: Path,
    sets: Sequence[Frames],
    labels: Mapping[str, frozenset[int]],
    answers: Mapping[int, Sequence[int]],
    wnids: Mapping[int, str],
) -> ImageParts:
    """Rows set by set, the anchor first; a frame that is in two sets is in both."""
    kinds = sorted({labels[one.anchor] for one in sets} | {labels[at] for one in sets for at in one.others}, key=sorted)
    number = {str(i): i for i in range(len(kinds))}
    of = {kind: str(i) for i, kind in enumerate(kinds)}
    found, numbers = list[tuple[str, str]](), list[int]()
    for i, one in enumerate(sets):
        for at in (one.anchor, *one.others):
            found.append((_inside(request, root, at), of[labels[at]]))
            numbers.append(i)
    if not found:
        raise ValueError(f"{request.spec}: no complete set of frames is left in {root}.")
    meant = [sorted({number for label in kind for number in answers.get(label, ())}) for kind in kinds]
    notes = list[str]()
    if never := sum(not meant[number[of[labels[one.anchor]]]] for one in sets):
        notes.append(f"{request.spec}: {never} anchors show classes that ImageNet does not have, and are never right.")
    parts = _answered_parts(request, root, found, number, meant, notes, sets=numbers)
    parts.wnids = dict(wnids)
    return parts


def _inside(request: Request, root: Path, name: str) -> str:
    """The path of a frame that a list names; a list may not lead out of its folder."""
    if os.path.isabs(name) or ".." in Path(name).parts or "\0" in name:
        raise ValueError(f"{request.spec}: frames must be inside {root}, but one is {name!r}.")
    return str(root / name)


def _vid_classes(request: Request, path: Path, page: str) -> tuple[dict[int, list[int]], dict[int, str]]:
    """The classes of ImageNet that each of the 30 classes of videos stands for, and the WordNet id of each."""
    misc = path / "misc"
    pair = [str]
    videos = _read(request, misc, "imagenet_vid_class_index.json", {str: pair}, page)
    images = _read(request, misc, "imagenet_class_index.json", {str: pair}, page)
    meant = _read(request, misc, "rev_wnid_map.json", {str: [str]}, page)
    number = {names[0]: int(key) for key, names in images.items() if names and key.isdigit()}
    answers = {}
    for key, names in videos.items():
        wnids = meant.get(names[0] if names else "", [])
        if not key.isdigit() or any(wnid not in number for wnid in wnids):
            raise damaged_error(misc / "rev_wnid_map.json", f"the classes of {names[:1] or key} are not ImageNet's")
        answers[int(key)] = [number[wnid] for wnid in wnids]
    return answers, {place: wnid for wnid, place in number.items()}


def _rev_class_map(request: Request, folder: Path, page: str) -> dict[str, list[int]]:
    found = _read(request, folder, "rev_class_idx_map.json", {str: [int]}, page)
    if wrong := [n for key, numbers in found.items() for n in numbers if not key.isdigit() or not 0 <= n < 1000]:
        raise damaged_error(
            folder / "rev_class_idx_map.json", f"{wrong[0]} is not one of ImageNet's 1,000 class numbers"
        )
    return found


def _ytbb_frames(
    request: Request, folder: Path, index: Mapping[str, int], page: str
) -> tuple[list[Frames], dict[str, frozenset[int]]]:
    first = _first_labels(request, folder, page)
    anchors = _annotations(request, folder, "anchor_labels.json", page)
    pairs = _annotations(request, folder, "pmk_labels.json", page)
    split = {key: tuple(_key(part) for part in key.split(",")) for key in pairs}
    if odd := [key for key, parts in split.items() if len(parts) != 2]:
        raise damaged_error(folder / "pmk_labels.json", f"{odd[0]!r} must be an anchor, a comma and a frame")
    bad = {split[key][0] for key, said in pairs.items() if "bad-anchor" in said}
    similar = {split[key] for key, said in pairs.items() if "similar" in said and not said & PROBLEMS}
    frames, labels = list[Frames](), dict[str, frozenset[int]]()
    for path, said in anchors.items():
        anchor = _key(path)
        if anchor in bad or "good" not in said or said & {"bad", "unsure"}:
            continue
        video, number = _frame_number(folder, anchor)
        around = [f"{video}/frame-{number + i}.jpg" for i in range(-REACH, REACH + 1) if i]
        others = tuple(at for at in around if (anchor, at) in similar)
        if video not in first:
            raise damaged_error(folder / ANCHORS, f"it has no label for {video}")
        kind = frozenset({first[video], *(index[name] for name in said if name in index)})
        frames.append(Frames(anchor, others))
        labels |= dict.fromkeys((anchor, *others), kind)
    return frames, labels


ANCHORS = "ytbb_robustness_test_anchors_full.csv"


def _first_labels(request: Request, folder: Path, page: str) -> dict[str, int]:
    """The label that Youtube-BB gives each anchor's video; the numbers of "none" and "car" are exchanged there."""
    rows = csv.DictReader(io.StringIO(_text(request, folder, ANCHORS, page)))
    exchanged = {22: 23, 23: 22}
    try:
        return {f"{row['ytid']}_{row['time_ms']}": exchanged.get(int(row["label"]), int(row["label"])) for row in rows}
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise damaged_error(folder / ANCHORS, f"its columns must be ytid, time_ms and label: {error!r}") from None


def _annotations(request: Request, folder: Path, name: str, page: str) -> dict[str, set[str]]:
    """What was said of each key; of several entries the last counts."""
    shape = {"annotations": [{"key": str, "labels": [int]}], "labels": [str]}
    found = _read(request, folder, name, shape, page)
    words: list[str] = found["labels"]
    if wrong := [n for row in found["annotations"] for n in row["labels"] if not 0 <= n < len(words)]:
        raise damaged_error(folder / name, f"label {wrong[0]} is not one of {len(words)}")
    return {row["key"]: {words[n] for n in row["labels"]} for row in found["annotations"]}


def _key(path: str) -> str:
    """The folder and the name of a frame: "video_time/frame-12.jpg"."""
    return "/".join(path.strip().split("/")[-2:])


def _frame_number(folder: Path, key: str) -> tuple[str, int]:
    video, _, name = key.partition("/")
    number = name.removeprefix("frame-").partition(".")[0]
    if not video or not (number.isascii() and number.isdigit()):
        raise damaged_error(folder / "anchor_labels.json", f"{key!r} must look like video_12000/frame-360.jpg")
    return video, int(number)


# ---------------------------------------------------------------- what they have in common


def _answered_parts(
    request: Request,
    root: Path,
    found: Sequence[tuple[str, str]],
    number: Mapping[str, int],
    answers: list[list[int]],
    notes: list[str],
    *,
    border: int = 0,
    sets: list[int] | None = None,
) -> ImageParts:
    """Rows whose targets are numbers into `answers`."""
    shape = request.shape or choose_shape(request, [at for at, _ in found], notes)
    inputs = ImageFiles([at for at, _ in found], shape, root, request.unpack_limit, border)
    rows = labelled_split(inputs, [number[label] for _, label in found])
    if request.broken == "skip" or len(rows) <= CHECKED_FIRST:
        rows = take_readable(request, rows, notes)
    else:
        _check_present(request, inputs)
    if sets is not None:
        rows, sets = _whole_sets(request, rows, sets, notes)
    return ImageParts(test=rows, classes=tuple(number), answers=answers, sets=sets, notes=notes, numbered=True)


def _check_present(request: Request, inputs: ImageFiles) -> None:
    """Refuse a list of images of which some are not there, where it would take long to read all of them."""
    absent = [row for row, path in enumerate(inputs.paths) if not os.path.isfile(path)]
    if absent:
        raise ValueError(
            f"{request.spec}: {len(absent)} of {len(inputs)} images are not there: {inputs.name(absent[0])}, ... "
            'Get them, or leave them out with broken="skip" (command line: --broken skip).'
        )


def _whole_sets(request: Request, rows: Split, sets: Sequence[int], notes: list[str]) -> tuple[Split, list[int]]:
    """The sets of which every frame can be read: without its anchor, or with fewer frames, a set is another one."""
    read = rows.rows.tolist()
    lacking = Counter(sets) - Counter(sets[row] for row in read)
    if lacking:
        notes.append(f"{request.spec}: {len(lacking)} of {len(set(sets))} sets lack a frame and were left out.")
    kept = [i for i, row in enumerate(read) if sets[row] not in lacking]
    if not kept:
        raise ValueError(f"{request.spec}: every set has a frame that cannot be read, so none is left.")
    return rows.take(kept), [sets[read[i]] for i in kept]


def _read(request: Request, folder: Path, name: str, shape: Any, page: str) -> Any:
    path = folder / name
    if not path.exists():
        raise missing_error(request, [name], page, folder)
    try:
        found = read_json(path)
        check_shape(found, shape)
    except ValueError as error:
        raise damaged_error(path, error) from None
    return found


def _text(request: Request, folder: Path, name: str, page: str) -> str:
    path = folder / name
    if not path.exists():
        raise missing_error(request, [name], page, folder)
    with open_file(path) as file:
        content = file.read(LONGEST_TABLE + 1)
    if len(content) > LONGEST_TABLE:
        raise damaged_error(path, f"it is longer than {LONGEST_TABLE // 2**20} MB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged_error(path, error) from None
