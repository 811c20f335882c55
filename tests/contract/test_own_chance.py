"""Models that draw by a seed of their own, or by chance that is not torch's, against networks that are run apart."""

import copy
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from keeping import Model

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")


class Generator(Model):
    def kept(self, rows):
        return torch.randn(8, generator=torch.Generator().manual_seed(0))


class Seed(Model):
    def kept(self, rows):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return F.dropout(self.bias + torch.rand(1), 0.5, True)


@pytest.mark.parametrize("kind", [Generator, Seed])
def test_each_member_draws_by_the_models_own_seed(kind):
    models, x = [kind().eval() for _ in range(3)], torch.randn(4, 6)
    expected = torch.stack([copy.deepcopy(model)(x) for model in models])
    for run in ("vmap", "loop", "auto"):
        ensemble = pb.deep(models)
        ensemble.run = run
        torch.testing.assert_close(ensemble(x), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ensemble.predict(x).members, expected.softmax(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pb.freeze(pb.deep(models), x, choose="rule")(x), expected, rtol=1e-4, atol=1e-5)


def test_chance_that_torch_draws_is_not_frozen():
    class Draws(Model):
        def kept(self, rows):
            return torch.rand(8)

    ensemble = pb.deep([Draws().eval() for _ in range(3)])
    x = torch.randn(4, 6)
    assert not torch.equal(ensemble(x), ensemble(x))
    frozen = pb.freeze(ensemble, x, choose="rule")
    assert not torch.equal(frozen(x), frozen(x))


@pytest.mark.parametrize("draw", [np.random.rand, random.random])
def test_chance_of_numpy_and_python_is_drawn_by_each_member_and_not_frozen(draw, tmp_path):
    class Draws(Model):
        def kept(self, rows):
            drawn.append(float(draw()))
            return drawn[-1]

    drawn: list[float] = []
    models, x = [Draws().eval() for _ in range(3)], torch.randn(4, 6)
    ensemble = pb.deep(models)
    outputs = ensemble(x)
    offsets = drawn[-3:]
    assert len(set(offsets)) == 3
    for output, model, offset in zip(outputs, models, offsets, strict=True):
        torch.testing.assert_close(output, model.leave(torch.relu(model.enter(x) + offset)), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="freeze: the model draws random numbers from numpy or Python.*torch.rand"):
        pb.freeze(ensemble, x)
    with pytest.raises(ValueError, match="export: the model draws random numbers from numpy or Python"):
        pb.export(ensemble, x, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_copied_is_refused_in_words():
    class Locked(Model):
        def begin(self):
            self.lock = threading.Lock()

    with pytest.raises(TypeError, match="the model must be copied.*a lock"):
        pb.deep(Locked(), 2)
