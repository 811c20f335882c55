"""Any model: every method on 35 networks that nobody wrote for Pluribus, converted, trained a step, taken apart."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import needed
from torch import Tensor, nn
from zoo import CLASSES, ZOO

import pluribus as pb
from pluribus._common.trees import as_batch, logits_of, tile
from pluribus.core.feeds import SHARE, TILE
from pluribus.surgery.copying import state

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")

QUICK = ("bert", "lstm", "transformer_encoder", "unet", "tied")
MODELS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ZOO]
METHODS = [method for method in pb.METHODS if method != "single"]


def converted(method: str, name: str) -> tuple[pb.Ensemble, Any]:
    case = ZOO[name]
    model, example = case.build(), case.example()
    before = {n: t.clone() for n, t in state(model)}
    options = {**needed(method, example, case.branch), **({"rate": 0.2} if method == "mc_dropout" else {})}
    ensemble = pb.METHODS[method](model, 4 if method == "packed" else 2, **options)
    assert all(torch.equal(t, before[n]) for n, t in state(model))  # the model given is unchanged
    if method == "packed":  # with alpha = 2 a member has about a quarter of the parameters
        share = sum(p.numel() for p in ensemble.parameters()) / 4 / sum(p.numel() for p in model.parameters())
        assert 0.2 < share < 0.65  # tables of words and positions keep their rows; small nets have large heads
    return ensemble, example


def mean_cross_entropy(output: Any, target: Tensor) -> Tensor:
    heads = output if isinstance(output, tuple) else (output,)  # LeViT gives two in training
    return sum(F.cross_entropy(head, target) for head in heads) / len(heads)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_a_network_becomes_an_ensemble(method, name):
    torch.manual_seed(0)
    if method == "lora" and not any(isinstance(part, nn.Linear) for part in ZOO[name].build().modules()):
        with pytest.raises(ValueError, match="lora: the model has no linear layer"):
            converted(method, name)
        return
    try:
        ensemble, example = converted(method, name)
    except ValueError as error:
        said = ("heads must be linear layers", "needs a layer before its heads", "are tied")  # it is for dense layers
        assert method == "tabm" and any(words in str(error) for words in said)
        return
    args, kwargs = as_batch(example)
    with torch.no_grad():
        outputs = logits_of(ensemble.eval()(*args, **kwargs))
        assert outputs.shape[:2] == (ensemble.size, 2)
        assert outputs.isfinite().all()
        if method not in ("mimo", "mc_dropout"):
            other = {"vmap": "loop", "loop": "vmap"}[ensemble.run]
            if not (other == "vmap" and name == "lstm"):
                ensemble.run = other
                torch.testing.assert_close(logits_of(ensemble(*args, **kwargs)), outputs, rtol=1e-3, atol=1e-3)
            member = logits_of(ensemble.member(1)(*args, **kwargs))
            torch.testing.assert_close(member, outputs[1], rtol=1e-3, atol=1e-3)
        if ensemble.feed in (SHARE, TILE):  # as rows of one batch: what a training pass does
            index = torch.arange(2).repeat_interleave(2)
            rows = logits_of(ensemble.runner.run_rows(tile((args, kwargs), 2, 2), index)).unflatten(0, (2, 2))
            torch.testing.assert_close(rows, outputs, rtol=1e-3, atol=1e-3)
    target = torch.randint(CLASSES, (2, *outputs.shape[3:]))
    loss = ensemble.train().loss(example, target, mean_cross_entropy)
    loss.backward()
    gradients = [p.grad for p in ensemble.parameters() if p.grad is not None]
    assert gradients
    assert loss.isfinite()
