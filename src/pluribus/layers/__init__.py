"""Layers for networks of one's own, in the form that the papers describe.

Packed layers hold their members side by side in the channels; masked layers and those of BatchEnsemble take members as
rows of one batch. All are plain modules. `pb.packed`, `pb.masksembles` and `pb.batch_ensemble` convert a whole model.
"""

from .packed_layers import PackedConv1d as PackedConv1d
from .packed_layers import PackedConv2d as PackedConv2d
from .packed_layers import PackedConv3d as PackedConv3d
from .packed_layers import PackedLinear as PackedLinear
from .packed_layers import split_channels as split_channels
from .row_layers import BatchConv1d as BatchConv1d
from .row_layers import BatchConv2d as BatchConv2d
from .row_layers import BatchConv3d as BatchConv3d
from .row_layers import BatchLinear as BatchLinear
from .row_layers import MaskedConv1d as MaskedConv1d
from .row_layers import MaskedConv2d as MaskedConv2d
from .row_layers import MaskedConv3d as MaskedConv3d
from .row_layers import MaskedLinear as MaskedLinear
from .row_layers import repeat_rows as repeat_rows
from .row_layers import split_rows as split_rows

__all__ = [
    "BatchConv1d", "BatchConv2d", "BatchConv3d", "BatchLinear", "MaskedConv1d", "MaskedConv2d", "MaskedConv3d",
    "MaskedLinear", "PackedConv1d", "PackedConv2d", "PackedConv3d", "PackedLinear", "repeat_rows", "split_rows",
    "split_channels",
]  # fmt: skip
