"""What only a later call shows: batches without rows or their dimension, and branches that earlier inputs did not take.

The oracle is a list of networks that were copied apart before any of them ran.
"""

import pytest
import torch
import torch.nn.functional as F
from small import mlp, needed
from torch import Tensor, nn

import pluribus as pb

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")

X, Y = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1])


def made(method: str, model: nn.Module, last: str, run: str = "") -> pb.Ensemble:
    torch.manual_seed(0)
    size = () if method == "single" else (2,)
    ensemble = pb.METHODS[method](model, *size, **(needed(method, X, last) if size else {}))
    if run and method != "mimo":
        ensemble.run = run
    return ensemble


@pytest.mark.parametrize("method", pb.METHODS)
class TestABatch:
    def test_without_rows_has_no_loss_and_no_prediction(self, method):
        ensemble = made(method, mlp(), "5")
        before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
        empty, none = X[:0], Y[:0]
        with pytest.raises(ValueError, match=r"loss: a batch must have at least one row.*\(0, 6\).*Leave"):
            ensemble.loss(empty, none, F.cross_entropy)
        with pytest.raises(ValueError, match=r"loss: a batch must have at least one row.*\(., 0, 6\).*Leave"):
            per_member = (empty.expand(ensemble.size, 0, 6), none.expand(ensemble.size, 0))
            ensemble.loss(*per_member, F.cross_entropy, per_member=True)
        with pytest.raises(ValueError, match=r"predict: a batch must have at least one row.*\(0, 6\).*Leave"):
            ensemble.predict(empty)
        for name, tensor in ensemble.state_dict().items():
            assert torch.equal(tensor, before[name])

    @pytest.mark.parametrize("training", [False, True])
    def test_without_rows_gives_no_rows_or_is_refused(self, method, training):
        ensemble = made(method, mlp(), "5").train(training)
        if method == "mimo" or (training and ensemble.feed.passes_once):
            with pytest.raises(ValueError, match=rf"{method}: a batch must have at least one row.*\(0, 6\).*Leave"):
                ensemble(X[:0])
        else:
            assert ensemble(X[:0]).shape == (ensemble.size, 0, 3)

    @pytest.mark.parametrize("training", [False, True])
    def test_without_its_dimension_is_one_row_or_is_refused(self, method, training):
        ensemble = made(method, mlp(), "5").train(training)
        refused = rf"{method}: the first dimension.*\(6,\).*\(3,\).*x\[None\]"
        if method == "mimo":
            with pytest.raises(ValueError, match=refused):
                ensemble(X[0])
            with pytest.raises(ValueError, match=refused):
                ensemble.loss(X[0], Y[0], F.cross_entropy)
        elif method != "mc_dropout":
            torch.testing.assert_close(ensemble.eval()(X[0]), ensemble(X[:1])[:, 0])
            assert ensemble.train(training)(X[0]).shape == (ensemble.size, 3)

    def test_that_the_model_itself_refuses_has_the_models_error(self, method):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied|size of tensor"):
            made(method, mlp(), "5").train()(torch.zeros(3, 7))


class Late(nn.Module):
    """Writes a buffer, in place, for more than four rows only."""

    def __init__(self, write) -> None:
        super().__init__()
        self.enter, self.drop, self.leave, self.write = nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3), write
        self.register_buffer("memory", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave(self.drop(torch.relu(self.enter(x))))
        out = y + self.memory
        if len(x) > 4:
            self.write(self.memory, y.detach().mean(0))
        return out


WRITES = {
    "add": lambda buffer, y: buffer.add_(y),
    "count": lambda buffer, y: buffer.add_(1),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("method", [name for name in pb.METHODS if name not in ("mc_dropout", "mimo")])
def test_a_buffer_that_a_later_call_writes_is_each_members_own_or_refused(method, run, write):
    ensemble = made(method, Late(WRITES[write]), "leave", run).eval()
    networks = [ensemble.member(i) for i in range(ensemble.size)]
    for rows in (3, 6, 3, 6):
        x = torch.randn(rows, 6)
        before = ensemble.module.memory.clone()
        try:
            outputs = ensemble(x)
        except ValueError as error:
            assert rows == 6
            assert "changes its buffer 'memory'" in str(error)
            assert torch.equal(ensemble.module.memory, before)
            return
        torch.testing.assert_close(outputs, torch.stack([network(x) for network in networks]))
    assert write == "count" or method in ("single", "deep", "packed", "lora")  # whose members start alike
