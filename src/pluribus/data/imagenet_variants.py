"""Other test sets of ImageNet's classes: ImageNetV2, ObjectNet, ImageNet-Vid-Robust and YTBB-Robust (MIMO, Table 4).

ObjectNet and the two sets of videos have classes of their own, each of which stands for some of ImageNet's; a label is
right if it is one of those. Of a video's frames, those around an anchor that people found similar to it are one set.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .._common.untrusted import LONGEST_JSON, check_shape, open_file, read_json
from .dataset import Shape, Split, labelled_split
from .image_folders import ImageFiles, build_parts, choose_shape, list_images, resize_and_crop, take_readable
from .source import ImageParts, Request, missing_error, reading

BORDER = 2  # pixels: ObjectNet's images have a red frame, which must not be shown to a network
REACH = 10  # frames on either side of an anchor

PROBLEMS = frozenset(
    "dissimilar|problematic|incorrect|dont know|deformation|background-change|occlusion-increased|blur-increase|"
    "bad-anchor".split("|")
)


# ---------------------------------------------------------------- readers that DATA names


def read_imagenet_v2(request: Request, path: Path) -> ImageParts:
    """ImageNetV2 as published: a folder for each class, named by the class's number among ImageNet's 1,000."""
    notes = list[str]()
    found = list_images(path, notes)
    strange = sorted({label for _, label in found if not (label.isascii() and label.isdigit() and int(label) < 1000)})
    if strange:
        raise ValueError(
            f"{request.spec}: the folders in {path} must be named 0 to 999, the numbers of the classes, but there is "
            f"{strange[0]!r}."
        )
    return replace(build_parts(request, path, {"test": found}, notes), numbered=True)


def read_objectnet(request: Request, path: Path) -> ImageParts:
    """ObjectNet as published: folders of classes in images/, and in mappings/ which of ImageNet's each stands for."""
    answers = _objectnet_answers(request, path / "mappings")
    images = path / "images"
    if not images.is_dir():
        raise missing_error(request, ["images"], path)
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
    meant = [answers[name] for name in kinds]
    return _answered_parts(request, images, found, number, meant, notes, resize=_inside_frame)


def read_vid_robust(request: Request, path: Path) -> ImageParts:
    """ImageNet-Vid-Robust as published: frames in val/, sets and labels in metadata/, classes in misc/."""
    sets = _read(request, path, "metadata/pmsets.json", {str: [str]})
    labels = _read(request, path, "metadata/labels.json", {str: [int]})
    answers, wnids = _vid_classes(request, path / "misc")
    named = [at for anchor, others in sets.items() for at in (anchor, *others)]
    with reading(path / "metadata/labels.json"):
        kinds = {at: frozenset(labels[at]) for at in named}
    return _video_parts(request, path, sets, kinds, answers, wnids)


def read_ytbb_robust(request: Request, path: Path) -> ImageParts:
    """YTBB-Robust as published: frames in ytbb_videos/, and what people said of anchors and of frames around them.

    An anchor counts if it was found good; a frame, if it was found similar and without a problem. Frames have the
    labels of their anchor: the one that Youtube-BB gives, and those that people added.
    """
    notes_at = next((path / name for name in ("metadata", ".") if (path / name / "anchor_labels.json").is_file()), path)
    classes = _read(request, notes_at, "ytbb_class_index.json", {str: str})
    found = _read(request, notes_at, "rev_class_idx_map.json", {str: [int]})
    with reading(notes_at):
        answers = {int(key): numbers for key, numbers in found.items()}
        index = {name: int(number) for number, name in classes.items()}
    sets, labels = _ytbb_frames(request, notes_at, index)
    root = next((path / name for name in ("ytbb_videos", "frames") if (path / name).is_dir()), path)
    return _video_parts(request, root, sets, labels, answers, {})


# ---------------------------------------------------------------- ObjectNet


def _inside_frame(image: Any, shape: Shape) -> Tensor:
    if min(image.size) <= 2 * BORDER:
        raise ValueError(f"nothing of its {image.width}x{image.height} pixels is left inside a border of {BORDER}")
    return resize_and_crop(image.crop((BORDER, BORDER, image.width - BORDER, image.height - BORDER)), shape)


def _objectnet_answers(request: Request, folder: Path) -> dict[str, list[int]]:
    """For each folder of images, the numbers of ImageNet's classes that it stands for."""
    titles = _read(request, folder, "folder_to_objectnet_label.json", {str: str})
    meanings = _read(request, folder, "objectnet_to_imagenet_1k.json", {str: str})
    order = _read(request, folder, "pytorch_to_imagenet_2012_id.json", {str: int})
    names = _text(request, folder, "imagenet_to_label_2012_v2").splitlines()
    with reading(folder):  # a name or a number that is not there is a KeyError
        place = {line: int(number) for number, line in order.items()}
        number = {name.strip(): place[line] for line, name in enumerate(names)}
        of_title = {title: name for name, title in titles.items()}
        return {of_title[title]: [number[name] for name in meant.split("; ")] for title, meant in meanings.items()}


# ---------------------------------------------------------------- videos

Sets = Mapping[str, Sequence[str]]  # the path of an anchor -> those of the frames that are similar to it


def _video_parts(
    request: Request,
    root: Path,
    sets: Sets,
    labels: Mapping[str, frozenset[int]],
    answers: Mapping[int, Sequence[int]],
    wnids: Mapping[int, str],
) -> ImageParts:
    """Rows set by set, the anchor first; a frame that is in two sets is in both."""
    kinds = sorted({labels[at] for anchor, others in sets.items() for at in (anchor, *others)}, key=sorted)
    of = {kind: str(i) for i, kind in enumerate(kinds)}
    found, numbers = list[tuple[str, str]](), list[int]()
    for i, (anchor, others) in enumerate(sets.items()):
        for at in (anchor, *others):
            found.append((_inside(request, root, at), of[labels[at]]))
            numbers.append(i)
    if not found:
        raise ValueError(f"{request.spec}: no complete set of frames is left in {root}.")
    meant = {kind: sorted({number for label in kind for number in answers.get(label, ())}) for kind in kinds}
    notes = list[str]()
    if never := sum(not meant[labels[anchor]] for anchor in sets):
        notes.append(f"{request.spec}: {never} anchors show classes that ImageNet does not have, and are never right.")
    number = {str(i): i for i in range(len(kinds))}
    parts = _answered_parts(request, root, found, number, list(meant.values()), notes, sets=numbers)
    parts.wnids = dict(wnids)
    return parts


def _inside(request: Request, root: Path, name: str) -> str:
    """The path of a frame that a list names; a list may not lead out of its folder."""
    if os.path.isabs(name) or ".." in Path(name).parts or "\0" in name:
        raise ValueError(f"{request.spec}: frames must be inside {root}, but one is {name!r}.")
    return str(root / name)


def _vid_classes(request: Request, misc: Path) -> tuple[dict[int, list[int]], dict[int, str]]:
    """The classes of ImageNet that each of the 30 classes of videos stands for, and the WordNet id of each."""
    videos = _read(request, misc, "imagenet_vid_class_index.json", {str: [str]})
    images = _read(request, misc, "imagenet_class_index.json", {str: [str]})
    meant = _read(request, misc, "rev_wnid_map.json", {str: [str]})
    with reading(misc):
        number = {names[0]: int(key) for key, names in images.items()}
        answers = {int(key): [number[wnid] for wnid in meant.get(names[0], ())] for key, names in videos.items()}
    return answers, {place: wnid for wnid, place in number.items()}


def _ytbb_frames(
    request: Request, folder: Path, index: Mapping[str, int]
) -> tuple[dict[str, list[str]], dict[str, frozenset[int]]]:
    first = _first_labels(request, folder)
    anchors = _annotations(request, folder, "anchor_labels.json")
    pairs = _annotations(request, folder, "pmk_labels.json")
    split = {key: tuple(_key(part) for part in key.split(",")) for key in pairs}  # an anchor and a frame
    bad = {split[key][0] for key, said in pairs.items() if "bad-anchor" in said}
    similar = {split[key] for key, said in pairs.items() if "similar" in said and not said & PROBLEMS}
    frames, labels = dict[str, list[str]](), dict[str, frozenset[int]]()
    for path, said in anchors.items():
        anchor = _key(path)
        if anchor in bad or "good" not in said or said & {"bad", "unsure"}:
            continue
        if not (found := re.fullmatch(r"([^/]+)/frame-([0-9]{1,9})\..*", anchor)) or found[1] not in first:
            raise ValueError(f"{folder / ANCHORS}: it has no label for {anchor!r}, as for video_12000/frame-360.jpg.")
        video, number = found[1], int(found[2])
        around = [f"{video}/frame-{number + i}.jpg" for i in range(-REACH, REACH + 1) if i]
        kind = frozenset({first[video], *(index[name] for name in said if name in index)})
        frames[anchor] = [at for at in around if (anchor, at) in similar]
        labels |= dict.fromkeys((anchor, *frames[anchor]), kind)
    return frames, labels


ANCHORS = "ytbb_robustness_test_anchors_full.csv"


def _first_labels(request: Request, folder: Path) -> dict[str, int]:
    """The label that Youtube-BB gives each anchor's video; the numbers of "none" and "car" are exchanged there."""
    rows = csv.DictReader(io.StringIO(_text(request, folder, ANCHORS)))
    exchanged = {22: 23, 23: 22}
    with reading(folder / ANCHORS):
        return {f"{row['ytid']}_{row['time_ms']}": exchanged.get(int(row["label"]), int(row["label"])) for row in rows}


def _annotations(request: Request, folder: Path, name: str) -> dict[str, set[str]]:
    """What was said of each key; of several entries the last counts."""
    found = _read(request, folder, name, {"annotations": [{"key": str, "labels": [int]}], "labels": [str]})
    with reading(folder / name):
        words = dict(enumerate(found["labels"]))
        return {row["key"]: {words[n] for n in row["labels"]} for row in found["annotations"]}


def _key(path: str) -> str:
    """The folder and the name of a frame: "video_time/frame-12.jpg"."""
    return "/".join(path.strip().split("/")[-2:])


# ---------------------------------------------------------------- what they have in common


def _answered_parts(
    request: Request,
    root: Path,
    found: Sequence[tuple[str, str]],
    number: Mapping[str, int],
    answers: list[list[int]],
    notes: list[str],
    *,
    resize: Callable[[Any, Shape], Tensor] | None = None,
    sets: list[int] | None = None,
) -> ImageParts:
    """Rows whose targets are numbers into `answers`."""
    if wrong := [place for places in answers for place in places if not 0 <= place < 1000]:
        raise ValueError(f"{request.spec}: {wrong[0]} is not one of ImageNet's 1,000 class numbers.")
    shape = request.shape or choose_shape(request, [at for at, _ in found], notes)
    inputs = ImageFiles([at for at, _ in found], shape, root, request.unpack_limit, resize)
    rows = labelled_split(inputs, [number[label] for _, label in found])
    rows = take_readable(request, rows, notes)
    if sets is not None:
        rows, sets = _whole_sets(request, rows, sets, notes)
    return ImageParts(test=rows, classes=tuple(number), answers=answers, sets=sets, notes=notes, numbered=True)


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


def _read(request: Request, folder: Path, name: str, shape: Any) -> Any:
    path = folder / name
    if not path.exists():
        raise missing_error(request, [name], folder)
    with reading(path):
        found = read_json(path)
        check_shape(found, shape)
    return found


def _text(request: Request, folder: Path, name: str) -> str:
    path = folder / name
    if not path.exists():
        raise missing_error(request, [name], folder)
    with reading(path), open_file(path) as file:
        return file.read(LONGEST_JSON).decode()
