"""Models that nobody prepared: a trajectory, subspaces, a plane and a tunnel of each."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from zoo import CLASSES, Recurrent, UNet, bert, images, timm_model, tokens

import pluribus as pb
from pluribus import landscape as ls
from pluribus._common.trees import as_batch, logits_of, map_tensors

FAST = {"an LSTM": (Recurrent, tokens), "a U-Net": (UNet, images(16))}
SLOW = {
    "resnet18": (timm_model("resnet18"), images(64)),
    "vit_tiny": (timm_model("vit_tiny_patch16_224"), images(224)),
    "convnext_atto": (timm_model("convnext_atto"), images(64)),
    "BERT": (bert, lambda: {"input_ids": tokens(), "attention_mask": torch.ones(2, 7, dtype=torch.long)}),
}
CASES = [pytest.param(*case, id=name) for name, case in FAST.items()] + [
    pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in SLOW.items()
]


def output(model, x):
    args, kwargs = as_batch(x)
    with torch.no_grad():
        return logits_of(model.eval()(*args, **kwargs)).movedim(1, -1).flatten(0, -2)


@pytest.mark.filterwarnings("ignore:deep. this model does not run under vmap")  # BERT looks at its mask: by the loop
@pytest.mark.parametrize(("build", "example"), CASES)
def test_the_laboratory_works_on_a_model_that_nobody_prepared(build, example, tmp_path):
    model = build()
    x = map_tensors(example(), lambda t: torch.cat([t, t.flip(0).roll(1, -1)]))  # four rows
    rows = output(model, x).shape[0]
    y = torch.arange(rows) % CLASSES if rows == 4 else torch.arange(rows).reshape(4, 16, 16) % CLASSES
    one, two = ls.trajectories(model, (x, y), (x, y), runs=2, epochs=2, batch_size=2, lr=1e-3, every=2, seed=1)
    for run in (one, two):
        assert run.steps == [2, 4] and run.outputs.shape == (2, rows, CLASSES)
        assert torch.allclose(run.outputs[-1], output(run.solution, x).softmax(-1), atol=1e-4)
    assert abs(ls.cosine(one.solution, two.solution)[0, 0]) < 0.99
    assert ls.disagreement([one, two]).shape == (4, 4)

    samples = ls.random_subspace(one, 2, distance=0.01, data=(x, y))
    assert samples.predict(x).label.numel() == rows
    between = ls.diagonal_gaussian(one, 1, data=(x, y))
    pb.save(between, tmp_path / "between.safetensors")
    assert torch.equal(pb.load(tmp_path / "between.safetensors", model).predict(x).members, between.predict(x).members)

    plane = ls.plane(one, two)
    for run, point in zip((one, two), plane.points, strict=True):
        assert torch.allclose(output(plane.at(*point), x), output(run.solution, x), atol=1e-2)
    extent = (tuple(plane.points[:, 0][[0, 1]]), tuple(plane.points[:, 1][[0, 1]]))
    surface = ls.surface(plane, (x, y), grid=2, extent=extent, refresh=False)
    loss = nn.functional.cross_entropy(output(one.solution, x), y.reshape(-1)).item()
    assert surface.loss[0, 0] == pytest.approx(loss, rel=1e-3) and surface.agreement[0, 0, 0] >= 0.75

    path = ls.tunnel(one, two, (x, y), points=1, steps=2, batch_size=4)
    found = ls.along(path, (x, y), points=3)
    assert np.isfinite(found.loss).all() and found.agreement.shape == (2, 3)


class Complex(nn.Module):
    """Complex weights, a whole number and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.cfloat))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("shift", torch.randn(3), persistent=False)

    def forward(self, x):
        return (x.to(torch.cfloat) @ self.weight).abs() + self.shift


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))


def normed():
    parts = nn.utils.parametrizations
    return nn.Sequential(parts.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), parts.weight_norm(nn.Linear(8, 3)))


ODD = [Complex, Tied, normed, lambda: nn.Linear(6, 3).double(), lambda: nn.Linear(6, 3).bfloat16()]


@pytest.mark.parametrize("build", ODD, ids=["complex", "tied", "parametrized", "double", "bfloat16"])
def test_unusual_tensors_travel(build, tmp_path):
    torch.manual_seed(1)
    models, x = [build().eval(), build().eval()], torch.randn(20, 6)
    kind = next(models[0].parameters()).dtype
    x = x if kind.is_complex else x.to(kind)
    plane = ls.plane(*models)
    for model, point in zip(models, plane.points, strict=True):
        assert torch.allclose(
            plane.at(*point)(x).float(), model(x).float(), atol=2e-2 if kind == torch.bfloat16 else 1e-4
        )
    made = ls.random_subspace(models[1], 2, distance=0.1)
    prediction = made.predict(x).members
    for i in range(2):
        assert torch.allclose(made.member(i)(x).float().softmax(-1), prediction[i].float(), atol=2e-2)
        assert not torch.allclose(made.member(i)(x), models[1](x), atol=1e-4)
    run = ls.Trajectory.of(models, build(), x)
    run.save(tmp_path / "run.safetensors")
    again = ls.Trajectory.load(tmp_path / "run.safetensors", build())
    assert torch.equal(again.outputs, run.outputs)
    assert torch.allclose(again[0](x).float(), models[0](x).float(), atol=2e-2 if kind == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("name", pb.METHODS)
def test_members_of_any_method_are_networks(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    x = torch.randn(30, 6)
    options = {"size": 2, "example": x, "branch": "5"}
    method = pb.METHODS[name]
    known = inspect.signature(method).parameters
    ensemble = method(model, **{key: value for key, value in options.items() if key in known})
    torch.manual_seed(5)
    labels = ensemble.predict(x).members.argmax(-1)
    torch.manual_seed(5)
    expected = [[(a != b).double().mean().item() for b in labels] for a in labels]
    assert ls.disagreement(ensemble, data=x) == pytest.approx(np.array(expected))
    try:
        members = [ensemble.member(i) for i in range(ensemble.size)]
    except TypeError:
        with pytest.raises(TypeError, match="not a module of its own"):
            ls.cosine(ensemble)
        return
    assert ls.cosine(ensemble) == pytest.approx(ls.cosine(members))
