"""Out of many networks, one: efficient ensembles from any PyTorch model, with uncertainty you can measure.

The public names are listed once, in `__init__.pyi`, where editors and type checkers read them. Each is imported on
its first use, so that `import pluribus` costs next to nothing.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
