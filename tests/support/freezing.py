"""What tests of frozen ensembles share."""

import torch
from torch import Tensor, nn

import pluribus as pb
from pluribus.deploy.freezing.call_signature import Example
from pluribus.deploy.freezing.frozen import trace_members
from pluribus.deploy.freezing.lowering import FORMS
from pluribus.surgery.dropout import no_dropout


def alike(a: Tensor, b: Tensor, relative: float = 1e-5) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    assert float((a - b).abs().max()) <= relative * float(b.abs().max())


def frozen(ensemble: pb.Ensemble, x: Tensor, **options) -> pb.Frozen:
    return pb.freeze(ensemble, x, **{"choose": "rule", **options})


def trained(model: nn.Module) -> nn.Module:
    """Statistics and scales of normalisation that are far from those of a new layer."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.2, 3.0)
            module.weight.data.uniform_(-1.5, 1.5)
            module.bias.data.normal_()
    return model.eval()


def expected(ensemble: pb.Ensemble, x: Tensor) -> Tensor:
    with torch.no_grad(), no_dropout():
        return ensemble.eval()(x)


def written(ensemble: pb.Ensemble, x: Tensor, form: str, apart: bool = False) -> pb.Frozen:
    """The ensemble in this form, without what `freeze` does when outputs differ: try the next form."""
    networks, tree, kept, arguments = trace_members(ensemble, Example(x), apart)
    assert not kept
    return pb.Frozen(ensemble, arguments, [FORMS[form](network) for network in networks], tree)
