"""Layers for your own networks, in the form that the papers describe.

Packed layers hold their members side by side in the channels; masked layers and those of BatchEnsemble take members as
rows of one batch. All are plain modules. `pb.packed`, `pb.masksembles` and `pb.batch_ensemble` convert a whole model.
"""

from .packed_layers import PackedConv1d, PackedConv2d, PackedConv3d, PackedLinear, split_channels
from .row_layers import (
    BatchConv1d,
    BatchConv2d,
    BatchConv3d,
    BatchLinear,
    MaskedConv1d,
    MaskedConv2d,
    MaskedConv3d,
    MaskedLinear,
    repeat_rows,
    split_rows,
)

__all__ = [
    "BatchConv1d", "BatchConv2d", "BatchConv3d", "BatchLinear", "MaskedConv1d", "MaskedConv2d", "MaskedConv3d",
    "MaskedLinear", "PackedConv1d", "PackedConv2d", "PackedConv3d", "PackedLinear", "repeat_rows", "split_rows",
    "split_channels",
]  # fmt: skip
