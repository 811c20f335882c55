"""Why one ensemble is better than another: trajectories, similarity, subspaces, planes and paths (Fort et al., 2019).

    from pluribus import landscape as ls

The names are listed once, in `__init__.pyi`; each is imported on its first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
