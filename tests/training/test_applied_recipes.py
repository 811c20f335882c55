"""A recipe means the whole recipe, augmentation included, wherever one is taken."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import pluribus as pb
from pluribus import landscape as ls
from pluribus.data.dataset import NormalisedSplit
from pluribus.study.run import compute
from pluribus.study.settings import Run
from pluribus.training.augmentation import Augment
from pluribus.training.fitting import quiet_lightning

WHOLE = {"epochs": 2, "batch_size": 8, "augment": {"flip": True, "crop": 1}}


@pytest.fixture
def seen(monkeypatch):
    """Every batch that an augmentation was given."""
    batches, call = [], Augment.__call__

    def noted(self, x, y):
        batches.append((x, y))
        return call(self, x, y)

    monkeypatch.setattr(Augment, "__call__", noted)
    return batches


def network(side: int = 8, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (side - 2) ** 2, classes))


def images(rows: int = 24):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, 1, 8, 8, generator=generator), torch.arange(rows) % 3


@pytest.mark.parametrize("method", [pb.single, lambda m: pb.deep(m, 2), lambda m: pb.mimo(m, 2, example=images()[0])])
def test_fit_augments_every_batch_as_its_recipe_says(seen, method):
    pb.fit(method(network()), images(), images(), recipe=WHOLE)
    assert sum(len(x) for x, _ in seen) == 2 * 24  # training rows alone, once an epoch


def test_members_see_what_the_augmentation_gives(monkeypatch):
    """Against a definition written apart: with flips alone, each row is the image or its mirror image."""
    trained, loss, (x, y) = [], pb.Ensemble.loss, images()
    monkeypatch.setattr(pb.Ensemble, "loss", lambda self, x, *rest: trained.append(x) or loss(self, x, *rest))
    pb.fit(pb.single(network()), (x, y), recipe={**WHOLE, "augment": "hflip"})
    rows = torch.cat(trained)
    known, mirrored = ({tuple(one.flatten().tolist()) for one in kind} for kind in (x, x.flip(-1)))
    found = [tuple(one.flatten().tolist()) for one in rows]
    assert all(one in known | mirrored for one in found)
    assert sum(one in known for one in found) > 4 and sum(one in mirrored for one in found) > 4


@pytest.mark.parametrize("batches", ["same", "different"])
def test_trajectories_augment_as_their_recipe_says(seen, batches):
    ls.trajectories(network(), images(), runs=2, recipe=WHOLE, batches=batches)
    assert sum(len(x) for x, _ in seen) == 2 * 2 * 24


def test_studies_augment_images_as_they_are_and_normalise_after(seen):
    run = Run(data="sklearn_digits", model="mlp", method="single", training=WHOLE)
    compute(run)
    rows = torch.cat([x for x, _ in seen])
    assert len(rows) == 2 * len(pb.data.load("sklearn_digits").train)
    assert float(rows.min()) == 0 and float(rows.max()) == 1


def test_the_users_own_lightning_trainer_augments_too(seen):
    import lightning.pytorch as pl

    module = pb.lightning_module(pb.single(network()), pb.Recipe(**WHOLE))
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False, accelerator="cpu")  # fmt: skip
    with quiet_lightning():
        trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*images()), 12))
    assert len(seen) == 2


def test_a_function_or_false_takes_the_place_of_the_recipes_augmentation(seen):
    own = []
    pb.fit(pb.single(network()), images(), recipe=WHOLE, augment=lambda x, y: own.append(len(x)) or (x, y))
    pb.fit(pb.single(network()), images(), recipe=WHOLE, augment=False)
    assert not seen and sum(own) == 48


def test_rows_that_no_recipe_can_augment_are_refused_before_training():
    table, y = torch.randn(12, 4), torch.arange(12) % 3
    model = pb.single(nn.Linear(4, 3))
    before = model.module.weight.clone()
    with pytest.raises(ValueError, match=r"augments images.*but x is \(12, 4\).*augment=False"):
        pb.fit(model, (table, y), recipe=WHOLE)
    iris = pb.data.load("iris")
    with pytest.raises(ValueError, match="iris is a table"):
        pb.fit(model, NormalisedSplit(iris.train, iris), recipe=WHOLE)
    assert torch.equal(model.module.weight, before)


# ---------------------------------------------------------------- what A3 needs


def test_decay_of_kernels_alone_leaves_scales_and_biases():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    ensemble = pb.deep(model, 2)
    module = pb.lightning_module(ensemble, pb.Recipe(weight_decay=0.1, decays="kernels"))
    decayed = {id(p) for group in module.groups if group["weight_decay"] for p in group["params"]}
    names = {name for name, p in ensemble.module.named_parameters() if id(p) in decayed}
    assert names == {"0.weight", "3.weight"}
    assert sum(len(group["params"]) for group in module.groups) == 6
    from pluribus.training.lightning_module import weight_penalty

    expected = sum(float(p.detach().square().sum()) for n, p in ensemble.module.named_parameters() if n in names)
    assert float(weight_penalty(ensemble, 0.0, 1.0, "kernels").detach()) == pytest.approx(expected, rel=1e-6)


def test_multilabel_bce_equals_that_of_timm():
    from timm.loss import BinaryCrossEntropy

    from pluribus.training.criteria import CRITERIA

    torch.manual_seed(0)
    output, target = torch.randn(6, 5), torch.rand(6, 5).softmax(1)
    theirs = BinaryCrossEntropy(smoothing=0.0, target_threshold=0.2)
    torch.testing.assert_close(CRITERIA["multilabel_bce"](output, target), theirs(output, target))
    hard = torch.arange(6) % 5
    torch.testing.assert_close(
        CRITERIA["multilabel_bce"](output, hard),
        F.binary_cross_entropy_with_logits(output, F.one_hot(hard, 5).float()),
    )


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """A folder of images whose colour tells where a pixel is: red is its column, green its row."""
    root = tmp_path_factory.mktemp("images")
    across, down = np.meshgrid(np.arange(60), np.arange(40))
    picture = np.stack([across * 4, down * 6, 0 * down], -1).astype(np.uint8)
    for label in ("a", "b"):
        (root / label).mkdir()
        for i in range(30):
            Image.fromarray(picture).save(root / label / f"{i}.png")
    return root


def test_random_crops_are_read_from_the_whole_image(gradients):
    data = pb.data.load(f"folder:{gradients}", image_size=16)
    augment = Augment(resized_crop={"size": 12, "scale": [0.25, 1.0]})
    torch.manual_seed(0)
    x = augment.read_crops(data.train)[list(range(40))][0]
    assert x.shape == (40, 3, 12, 12) and augment.resized_crop is None
    left, right = x[:, 0, 6, 0] * 255 / 4, x[:, 0, 6, -1] * 255 / 4
    assert float(left.min()) < 8 and float(right.max()) > 52  # columns that the centre, 10 to 50, does not have
    top, bottom = x[:, 1, 0, 6] * 255 / 6, x[:, 1, -1, 6] * 255 / 6
    area = (right - left + 5) * (bottom - top + 3) / (60 * 40)  # half a pixel of the small image is lost on each side
    assert 0.2 < float(area.min()) and float(area.max()) > 0.6 and len(area.round(decimals=2).unique()) > 10


def test_a_recipe_trains_on_crops_of_one_size_and_predicts_on_images_of_another(gradients):
    data = pb.data.load(f"folder:{gradients}", image_size=16)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    shapes = []
    model.register_forward_pre_hook(lambda _, args: shapes.append((model.training, tuple(args[0].shape[-2:]))))
    plan = {"epochs": 1, "batch_size": 8, "augment": {"flip": True, "resized_crop": {"size": 12}}}
    ensemble = pb.single(model)
    ensemble.module.register_forward_pre_hook(
        lambda module, args: shapes.append((module.training, tuple(args[0].shape[-2:])))
    )
    train, validation = (NormalisedSplit(part, data) for part in (data.train, data.validation))
    pb.fit(ensemble, train, validation, recipe=plan)
    assert {size for training, size in shapes if training} == {(12, 12)}
    assert {size for training, size in shapes if not training} == {(16, 16)}
