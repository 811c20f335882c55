"""What a model changes of its parameters when it runs: as separate networks do, or refused."""

import copy

import pytest
import torch
from keeping import Model
from torch import nn

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")


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
