"""ImageNetV2, ObjectNet and the sets of video frames, written here as they are published."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import pluribus as pb
from pluribus.data.catalogue import load

SIDE = 12
WNIDS = [f"n{i:08}" for i in range(0, 3000, 3)]


def picture(path, seed, size=(SIDE, SIDE)):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(values).save(path, format="PNG")  # what a file holds counts, not what it is called
    return values


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A set of 1,000 classes, called by numbers or by WordNet ids."""
    folder = tmp_path_factory.mktemp("base")
    x = np.random.default_rng(0).integers(0, 256, (1000, SIDE, SIDE, 3), dtype=np.uint8)
    for name, y in (("numbers", np.arange(1000)), ("wnids", np.array(WNIDS)), ("few", np.arange(1000) % 100)):
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    return folder


def read(base, folder, name, names="numbers", **options):
    return load(f"npz:{base / names}.npz", folder=folder, variants=[name], **options)


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


# ---------------------------------------------------------------- ImageNetV2


def write_v2(folder, classes=(0, 2, 10, 999)):
    for c in classes:
        for i in range(2):
            picture(folder / "imagenetv2-matched-frequency-format-val" / str(c) / f"{i}f.jpeg", 10 * c + i)


@pytest.mark.parametrize("names", ["numbers", "wnids"])
def test_folders_of_imagenet_v2_are_numbers_and_not_names_in_order(base, tmp_path, names):
    """Sorted as text, folder 10 comes before 2 and everything after it would be another class."""
    write_v2(tmp_path)
    data = read(base, tmp_path, "imagenet_v2", names)
    rows = data.variants["imagenet_v2"]
    assert {name.split("/")[0]: int(y) for name, y in zip(rows.names(), rows.y, strict=True)} == {
        "0": 0, "2": 2, "10": 10, "999": 999,
    }  # fmt: skip
    assert data.subsets["imagenet_v2"] == [0, 2, 10, 999] and rows[:][0].shape == (8, 3, SIDE, SIDE)


def test_a_part_of_imagenet_is_refused_where_classes_are_numbers(base, tmp_path):
    write_v2(tmp_path)
    with pytest.raises(ValueError, match="imagenet_v2 numbers its classes as ImageNet does.*has 100 classes"):
        read(base, tmp_path, "imagenet_v2", "few")


def test_folders_that_are_no_numbers_are_refused(base, tmp_path):
    write_v2(tmp_path, (1,))
    picture(tmp_path / "imagenetv2-matched-frequency-format-val" / "n01440764" / "x.jpeg", 0)
    with pytest.raises(ValueError, match="must be named 0 to 999.*n01440764"):
        read(base, tmp_path, "imagenet_v2")


# ---------------------------------------------------------------- ObjectNet

NAMES = [f"thing {i}, object {i}" for i in range(1000)]  # by line; the classes have another order
ORDER = {str(i): (i * 7 + 3) % 1000 for i in range(1000)}  # the line of each class
MEANS = {"Alarm clock": [5, 9], "Still Camera": [700], "Mixing / Salad Bowl": [0, 999, 33]}
FOLDERS = {"alarm_clock": "Alarm clock", "still_camera": "Still Camera", "bowl": "Mixing / Salad Bowl", "tarp": "Tarp"}


def write_objectnet(folder, **changes):
    root = folder / "objectnet-1.0"
    mappings = {
        "folder_to_objectnet_label.json": FOLDERS,
        "objectnet_to_imagenet_1k.json": {
            title: "; ".join(NAMES[ORDER[str(c)]] for c in classes) for title, classes in MEANS.items()
        },
        "pytorch_to_imagenet_2012_id.json": ORDER,
        **changes,
    }
    for name, value in mappings.items():
        write_json(root / "mappings" / name, value)
    (root / "mappings" / "imagenet_to_label_2012_v2").write_text("\n".join(NAMES) + "\n")
    for i, name in enumerate(FOLDERS):
        for j in range(2):
            picture(root / "images" / name / f"{j}.png", 10 * i + j, (SIDE + 4, SIDE + 4))
    return root


@pytest.mark.parametrize("names", ["numbers", "wnids"])
def test_classes_of_objectnet_stand_for_those_of_imagenet(base, tmp_path, names):
    write_objectnet(tmp_path)
    data = read(base, tmp_path, "objectnet", names)
    rows, key = data.variants["objectnet"], data.answer_keys["objectnet"]
    assert len(rows) == 6 and key.sets is None and any("2 images of classes that ImageNet" in n for n in data.notes)
    for name, y in zip(rows.names(), rows.y.tolist(), strict=True):
        assert sorted(MEANS[FOLDERS[name.split("/")[0]]]) == key.answers[y].nonzero().flatten().tolist()


def test_the_red_frame_of_objectnet_is_cut_off(base, tmp_path):
    root = write_objectnet(tmp_path)
    rows = read(base, tmp_path, "objectnet").variants["objectnet"]
    at = rows.names().index("bowl/0.png")
    inside = np.array(Image.open(root / "images" / "bowl" / "0.png"))[2:-2, 2:-2]
    assert torch.equal((rows[at][0] * 255).round().byte(), torch.from_numpy(inside).permute(2, 0, 1))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"objectnet_to_imagenet_1k.json": {"Alarm clock": "a sundial"}}, "it has no entry 'a sundial'"),
        ({"objectnet_to_imagenet_1k.json": ["Alarm clock"]}, "must be an object"),
        ({"pytorch_to_imagenet_2012_id.json": {**ORDER, "0": 4}}, r"it has no entry \d+"),
    ],
)
def test_mappings_that_do_not_fit_are_named(base, tmp_path, changes, said):
    write_objectnet(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"mappings.*{said}"):
        read(base, tmp_path, "objectnet")


# ---------------------------------------------------------------- ImageNet-Vid-Robust

VIDEO_CLASSES = {"0": [404], "1": [351, 352], "2": [7, 8, 900]}
SETS = {"v1/000003.JPEG": ["v1/000002.JPEG", "v1/000004.JPEG"], "v2/000010.JPEG": ["v2/000011.JPEG"], "v3/1.JPEG": []}
LABELS = {"v1": [0], "v2": [1, 2], "v3": [2]}


def frame(name):
    return f"val/{name}"


def write_videos(folder, pmsets=None, labels=None, drop=()):
    root = folder / "imagenet-vid-robust"
    sets = {frame(a): [frame(one) for one in others] for a, others in SETS.items()} if pmsets is None else pmsets
    frames = [one for anchor, others in sets.items() for one in (anchor, *others)]
    of = {one: LABELS[one.split("/")[1]] for one in frames} if labels is None else labels
    write_json(root / "metadata" / "pmsets.json", sets)
    write_json(root / "metadata" / "labels.json", of)
    vid = {key: [f"n9{int(key):07}", f"video class {key}"] for key in VIDEO_CLASSES}
    write_json(root / "misc" / "imagenet_vid_class_index.json", vid)
    write_json(root / "misc" / "imagenet_class_index.json", {str(i): [w, f"thing {i}"] for i, w in enumerate(WNIDS)})
    meant = {vid[key][0]: [WNIDS[c] for c in classes] for key, classes in VIDEO_CLASSES.items()}
    write_json(root / "misc" / "rev_wnid_map.json", meant)
    for i, one in enumerate(frames):
        if one not in drop and not one.startswith(("/", "..")):
            picture(root / one, i)
    return root


@pytest.mark.parametrize("names", ["numbers", "wnids"])
def test_frames_come_set_by_set_with_the_anchor_first(base, tmp_path, names):
    write_videos(tmp_path)
    data = read(base, tmp_path, "imagenet_vid_robust", names)
    rows, key = data.variants["imagenet_vid_robust"], data.answer_keys["imagenet_vid_robust"]
    assert rows.names() == [frame(one) for anchor, others in SETS.items() for one in (anchor, *others)]
    assert key.sets.tolist() == [0, 0, 0, 1, 1, 2]
    for name, y in zip(rows.names(), rows.y.tolist(), strict=True):
        meant = sorted(c for label in LABELS[name.split("/")[1]] for c in VIDEO_CLASSES[str(label)])
        assert key.answers[y].nonzero().flatten().tolist() == meant


def published_score(scores, sets, labels):
    """Anchor and pm-k accuracy as the authors' script has them: over their classes, each by its best class."""
    merged = {at: np.array([max(row[VIDEO_CLASSES[key]]) for key in VIDEO_CLASSES]) for at, row in scores.items()}
    right = {at: int(row.argmax()) in labels[at] for at, row in merged.items()}
    anchors = sum(right[anchor] for anchor in sets) / len(sets)
    return anchors, sum(right[a] and all(right[one] for one in others) for a, others in sets.items()) / len(sets)


@pytest.mark.parametrize("seed", range(5))
def test_stability_is_what_the_published_script_gives(base, tmp_path, seed):
    write_videos(tmp_path)
    data = read(base, tmp_path, "imagenet_vid_robust")
    rows, key = data.variants["imagenet_vid_robust"], data.answer_keys["imagenet_vid_robust"]
    logits = torch.randn(2, len(rows), 1000, generator=torch.Generator().manual_seed(seed))
    logits[:, :, [7, 351, 404]] += 2.0  # so that some are right
    prediction = pb.Classification.from_logits(logits)
    scores = dict(zip(rows.names(), prediction.mean.numpy(), strict=True))
    sets = {frame(a): [frame(one) for one in others] for a, others in SETS.items()}
    anchors, stable = published_score(scores, sets, {at: LABELS[at.split("/")[1]] for at in scores})
    found = pb.stability(pb.answered(prediction, rows.y, key.answers, among="known"), key.sets)
    assert found["anchor_accuracy"] == pytest.approx(anchors) and found["stable_accuracy"] == pytest.approx(stable)
    assert found["accuracy_drop"] == pytest.approx(anchors - stable)
    free = pb.answered(prediction, rows.y, key.answers)
    assert bool((free <= pb.answered(prediction, rows.y, key.answers, among="known")).all())


def test_a_set_that_lacks_a_frame_is_left_out_as_a_whole(base, tmp_path):
    write_videos(tmp_path, drop=[frame("v1/000004.JPEG")])
    with pytest.raises(ValueError, match="1 of 6 images cannot be read: val/v1/000004.JPEG"):
        read(base, tmp_path, "imagenet_vid_robust")
    data = read(base, tmp_path, "imagenet_vid_robust", broken="skip")
    assert data.answer_keys["imagenet_vid_robust"].sets.tolist() == [1, 1, 2]
    assert any("1 of 3 sets lack a frame" in note for note in data.notes)


def test_lists_do_not_lead_out_of_their_folder(base, tmp_path):
    (tmp_path / "secret.JPEG").write_bytes(b"secret")
    for name in ("../secret.JPEG", str(tmp_path / "secret.JPEG"), "val/../../secret.JPEG"):
        write_videos(tmp_path, pmsets={name: []}, labels={name: [0]})
        with pytest.raises(ValueError, match="frames must be inside"):
            read(base, tmp_path, "imagenet_vid_robust")


def test_a_frame_without_a_label_is_named(base, tmp_path):
    write_json(write_videos(tmp_path) / "metadata" / "labels.json", {})
    with pytest.raises(ValueError, match=r"labels\.json.*no entry 'val/v1/00000"):
        read(base, tmp_path, "imagenet_vid_robust")


# ---------------------------------------------------------------- YTBB-Robust

WORDS = ["good", "bad", "unsure", "person", "bird", "cow", "none", "car"]
JUDGED = ["similar", "dissimilar", "bad-anchor", "blur-increase", "correct"]
INDEX = {"0": "person", "1": "bird", "6": "cow", "22": "none", "23": "car"}


def annotation(key, labels, words):
    return {"key": key, "notes": "", "labels": [words.index(label) for label in labels]}


def write_ytbb(folder, **changes):
    root = folder / "ytbb-robust"
    anchors = [
        ("a_100/frame-3.jpg", ["bad"]),  # said again below: the last counts
        ("a_100/frame-3.jpg", ["good", "bird"]),
        ("b_200/frame-20.jpg", ["good"]),
        ("c_300/frame-5.jpg", ["good", "unsure"]),
        ("d_400/frame-5.jpg", ["good"]),
        ("e_500/frame-8.jpg", ["good"]),
    ]
    pairs = [
        ("a_100/frame-3.jpg", "a_100/frame-2.jpg", ["similar"]),
        ("a_100/frame-3.jpg", "a_100/frame-4.jpg", ["similar", "correct"]),
        ("a_100/frame-3.jpg", "a_100/frame-5.jpg", ["similar", "blur-increase"]),
        ("a_100/frame-3.jpg", "a_100/frame-6.jpg", ["dissimilar"]),
        ("b_200/frame-20.jpg", "b_200/frame-30.jpg", ["similar"]),
        ("b_200/frame-20.jpg", "b_200/frame-31.jpg", ["similar"]),  # eleven frames away
        ("d_400/frame-5.jpg", "d_400/frame-6.jpg", ["similar", "bad-anchor"]),
    ]
    files = {
        "anchor_labels.json": {"annotations": [annotation(*one, WORDS) for one in anchors], "labels": WORDS},
        "pmk_labels.json": {
            "annotations": [annotation(f"/data/x/{a},/data/x/{b}", said, JUDGED) for a, b, said in pairs],
            "labels": JUDGED,
        },
        "ytbb_class_index.json": INDEX,
        "rev_class_idx_map.json": {"0": [981, 982], "1": [7, 8], "23": [407, 436]},
        **changes,
    }
    for name, value in files.items():
        write_json(root / "metadata" / name, value)
    rows = "ytid,time_ms,label\na,100,0\nb,200,22\nc,300,0\nd,400,0\ne,500,6\n"  # 22 means car in this table
    (root / "metadata" / "ytbb_robustness_test_anchors_full.csv").write_text(changes.get("csv", rows))
    for i, one in enumerate({part for a, b, _ in pairs for part in (a, b)} | {a for a, _ in anchors}):
        picture(root / "ytbb_videos" / one, i)
    return root


def test_frames_of_ytbb_are_those_that_people_found_similar(base, tmp_path):
    write_ytbb(tmp_path)
    data = read(base, tmp_path, "ytbb_robust")
    rows, key = data.variants["ytbb_robust"], data.answer_keys["ytbb_robust"]
    assert list(zip(rows.names(), key.sets.tolist(), strict=True)) == [
        ("a_100/frame-3.jpg", 0),
        ("a_100/frame-2.jpg", 0),
        ("a_100/frame-4.jpg", 0),
        ("b_200/frame-20.jpg", 1),
        ("b_200/frame-30.jpg", 1),
        ("e_500/frame-8.jpg", 2),
    ]
    meant = [key.answers[y].nonzero().flatten().tolist() for y in rows.y.tolist()]
    assert meant == [[7, 8, 981, 982]] * 3 + [[407, 436]] * 2 + [[]]  # a cow is no class of ImageNet
    assert any("1 anchors show classes that ImageNet does not have" in note for note in data.notes)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"csv": "ytid,time_ms,label\na,100,person\n"}, "anchors_full.csv: .*person"),
        ({"csv": "ytid,time_ms,label\nz,1,0\n"}, "no label for 'a_100"),
        ({"rev_class_idx_map.json": {"0": [1000]}}, "1000 is not one of ImageNet's 1,000 class numbers"),
        ({"anchor_labels.json": {"annotations": [{"key": "a", "labels": [9]}], "labels": ["good"]}}, "no entry 9"),
        ({"pmk_labels.json": {"labels": []}}, 'has no "annotations"'),
    ],
)
def test_annotations_that_do_not_fit_are_named(base, tmp_path, changes, said):
    write_ytbb(tmp_path, **changes)
    with pytest.raises(ValueError, match=said):
        read(base, tmp_path, "ytbb_robust")
