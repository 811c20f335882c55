"""The private parts of PyTorch for sizes that are symbols. Import it late: it loads sympy, which takes long."""

from torch import _check as check
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.sym_node import SymNode, magic_methods, method_to_operator, sizes_strides_methods
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = [
    "ShapeEnv",
    "SymNode",
    "check",
    "enable_python_dispatcher",
    "magic_methods",
    "method_to_operator",
    "sizes_strides_methods",
]
