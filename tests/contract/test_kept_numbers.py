"""What a model keeps without a tensor, and what it changes of its parameters: as separate networks do, or refused."""

import array
import copy

import numpy as np
import pytest
import torch
from keeping import Model
from torch import nn

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")


def apart(kind) -> list[nn.Module]:
    """Three networks that are built apart."""
    return [kind().eval() for _ in range(3)]


class Number(Model):
    """Keeps no tensor of its weights but a number."""

    def begin(self):
        self.cache = []

    def kept(self, rows):
        if not self.cache:
            self.cache.append(float(self.make().sum()))
        return self.cache[0]


class Numbers(Number):
    def begin(self):
        self.cache = {"array": np.zeros(8, np.float32)}

    def kept(self, rows):
        if not self.cache["array"].any():
            self.cache["array"][:] = self.make().numpy()
        return torch.tensor(self.cache["array"])


class Bytes(Number):
    def begin(self):
        self.cache = array.array("d", [0.0])

    def kept(self, rows):
        self.cache[0] = self.cache[0] or float(self.make().sum())
        return self.cache[0]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", [Number, Numbers, Bytes])
def test_a_number_that_follows_from_the_weights_is_each_members_own(kind, grad):
    models, x = apart(kind), torch.randn(5, 6)
    expected = torch.stack([copy.deepcopy(model)(x) for model in models])
    ensemble = pb.deep(models)
    ensemble.run = "loop"
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            torch.testing.assert_close(ensemble(x), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ensemble.member(2)(x), expected[2], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(copy.deepcopy(ensemble)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_a_number_that_is_the_same_for_all_members_counts_on(run):
    class Counts(Model):
        def begin(self):
            self.calls, self.rows = np.zeros(1, np.int64), []

        def kept(self, rows):
            self.calls += 1
            self.rows.append(rows)
            return self.make()

    ensemble = pb.deep(apart(Counts))
    ensemble.run = run
    for rows in (5, 4, 3):
        ensemble(torch.randn(rows, 6))
    for member in ensemble.members if run == "loop" else ():  # under vmap they are the pass's, not a member's
        assert member.calls == 3
        assert member.rows == [5, 4, 3]


@pytest.mark.parametrize("method", ["masksembles", "batch_ensemble", "multihead"])
def test_a_shared_parameter_that_a_pass_changes_is_refused(method):
    class Writes(Model):
        def kept(self, rows):
            if self.on:
                with torch.no_grad():
                    self.change(self.enter.weight)
            return self.make() + self.enter.weight.sum(1).detach()

    options = {"example": torch.randn(5, 6)} if method == "masksembles" else {}
    for change in (lambda w: w.clamp_(-0.1, 0.1), lambda w: w.mul_(1.5)):
        model = Writes()
        model.change, model.on = change, True
        ensemble = pb.METHODS[method](model, 3, **options, where="leave").eval()
        with torch.no_grad(), pytest.raises(ValueError, match=rf"{method}: .*changes 'enter.weight' in place.*pb.deep"):
            ensemble(torch.ones(2, 6))


def test_a_shared_parameter_that_is_changed_in_a_later_call_only_is_refused():
    class Later(Model):
        def kept(self, rows):
            if rows > 2:
                with torch.no_grad():
                    self.enter.weight.mul_(1.5)
            return self.make()

    ensemble = pb.multihead(Later(), 3, where="leave").eval()
    ensemble.run = "loop"
    with torch.no_grad():
        ensemble(torch.ones(2, 6))
        with pytest.raises(ValueError, match=r"multihead: .*changes 'enter.weight' in place.*pb.deep"):
            ensemble(torch.ones(3, 6))


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_an_ensemble_is_copied_with_weights_that_hooks_have_computed():
    model = nn.Sequential(nn.Linear(6, 8), nn.utils.weight_norm(nn.Linear(8, 3)))
    ensemble, x = pb.multihead(model, 2), torch.randn(5, 6)
    torch.testing.assert_close(ensemble(x), copy.deepcopy(ensemble)(x))
