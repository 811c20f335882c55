"""The methods that make an ensemble. A method is one function, (model, size, ...) -> Ensemble, and a line in `METHODS`.

No method changes the model that it is given. Patterns (`where`, `branch`) are regular expressions that match whole
parts of the dotted module names; `example` is what one call of the model takes.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.ensemble import Ensemble
from ._batch_ensemble import batch_ensemble
from ._independent import deep, single
from ._lora import lora
from ._masksembles import masksembles
from ._mc_dropout import mc_dropout
from ._mimo import mimo
from ._packed import packed
from ._shared_trunk import multihead, treenet
from ._tabm import tabm

METHODS: dict[str, Callable[..., Ensemble]] = {
    method.__name__: method
    for method in (single, deep, packed, masksembles, batch_ensemble, lora, mc_dropout, mimo, tabm, treenet, multihead)
}
