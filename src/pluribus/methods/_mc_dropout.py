"""Dropout wherever it is: modules, functions called in a forward, attention, recurrent layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._common.torch_private import NormBase
from .._common.trees import Batch, are_close, clone, tensors_of
from ..core.ensemble import Ensemble
from ..core.feeds import ONCE
from ..surgery.calling import track_modules
from ..surgery.copying import duplicate
from ..surgery.direct_reads import find_bypassed
from ..surgery.dropout import RATES_AND_SWITCHES, no_dropout
from ..surgery.replacing import adapt_, expose_weights
from ..surgery.selecting import DROPOUTS, exact_pattern, quote_names
from ._independent import single
from .adapted_layers import Dropped
from .building import check_model, check_number, check_size
from .layer_choice import heads_of, layers_of, refuse_reads
from .method_info import Baseline, Candidate, Paper, PlanRequest, candidates_by_size, method_info
from .warm_start import SHARES, last_layers, weaker


def dropout_modules(model: nn.Module) -> list[str]:
    """Modules that are dropout or have a dropout rate that they apply themselves."""
    return [name for name, m in model.named_modules() if isinstance(m, DROPOUTS) or _has_rate(m)]


def _has_rate(module: nn.Module) -> bool:
    rate = vars(module).get("dropout")
    return (
        isinstance(rate, float)
        and (rate > 0 or not isinstance(module, nn.RNNBase))
        and not dict(module.named_children()).get("dropout")
    )


def set_rate_(module: nn.Module, rate: float) -> None:
    """Let a dropout module, or one that applies dropout itself, drop at this rate."""
    if isinstance(module, DROPOUTS):
        module.p = rate
    else:
        module.dropout = rate  # type: ignore[assignment]


def find_dropout(ensemble: Ensemble, batch: Batch) -> list[str]:
    """Find everything that drops in training, and keep it in training mode: so it drops in eval mode too.

    A module that calls dropout as a function, or attention with a rate, must do nothing else in that mode.
    """
    inserted = [name for name, part in ensemble.module.named_modules() if isinstance(part, Dropped)]
    refuse_reads("mc_dropout", find_bypassed(ensemble.module, inserted, batch))
    found = droppers(ensemble.module, batch)
    if not found:
        raise ValueError(
            "mc_dropout: the model has no active dropout in training, so all members would "
            "be the same. Give rate=0.1 to insert dropout, and where= to choose the layers that it goes before."
        )
    plain, active = duplicate(ensemble.module).eval(), duplicate(ensemble.module).eval()
    for part in (active.get_submodule(name) for name in found):
        part.training = not isinstance(part, nn.RNNBase)  # whose dropout nothing turns off
    if not are_close(_run_without_dropout(plain, batch), _run_without_dropout(active, batch)):
        raise ValueError(
            f"mc_dropout: {quote_names(found, 6)} must be in training mode for dropout, but that mode changes the "
            "output even without dropout, so more than dropout would be active. Use nn.Dropout modules instead of "
            "dropout called as a function."
        )
    ensemble.active_dropout = frozenset(found)
    return [f"dropout in {len(found)} modules: {quote_names(found, 6)}"]


def droppers(model: nn.Module, batch: Batch) -> dict[str, float]:
    """The modules that drop something in training, or call a function that does, with their rates."""
    model, path = duplicate(model).train(), [""]
    for module in model.modules():
        if isinstance(module, NormBase):
            module.eval()  # one row has no statistics
    args, kwargs = clone(batch)  # a model may change its input in place
    with torch.random.fork_rng(devices=[]), torch.no_grad(), track_modules(model, path), _Noting(path) as noted:
        model(*args, **kwargs)
    found = {name: rate for name, rate in noted.rates.items() if rate}
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            found[name] = module.dropout
    return found


def _run_without_dropout(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The outputs, and the buffers after the pass."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), no_dropout():
        torch.manual_seed(0)
        args, kwargs = clone(batch)
        outputs = tensors_of(model(*args, **kwargs))
    return [*outputs, *model.buffers()]


class _Noting(TorchFunctionMode):
    """Notes the module that calls a dropout function, and its largest rate: 0 where it does not drop."""

    def __init__(self, path: list[str]):
        super().__init__()
        self.path, self.rates = path, dict[str, float]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RATES_AND_SWITCHES:
            rate, switch = (argument.of(args, kwargs or {}) for argument in RATES_AND_SWITCHES[func])
            name = self.path[-1]
            self.rates[name] = max(self.rates.get(name, 0.0), float(rate) if switch else 0.0)
        return func(*args, **(kwargs or {}))


def _candidates(request: PlanRequest) -> list[Candidate]:
    if dropout_modules(expose_weights(request.model)):
        return candidates_by_size(mc_dropout, request)
    rate = request.options["rate"]
    last = "|".join(map(re.escape, heads_of(request.model, None, request.example)))
    settings: list[dict[str, Any]] = [{"rate": rate}, {"rate": rate, "where": last}]
    return [candidate for each in settings for candidate in candidates_by_size(mc_dropout, request, **each)]


def _nearer(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fewer and fewer of the last layers, then lower and lower rates."""
    model, rate, where = given["model"], given["rate"], given["where"]
    places: list[str | None] = [where]  # the model's own dropout is where it is
    if rate is not None:
        meant = layers_of("mc_dropout", expose_weights(model), where, given["example"], but_first=True)
        places = [exact_pattern(names) for names in last_layers(meant)]
    strongest = rate or dropout_rate(model)
    for place, found in weaker(places, [rate, *(strongest * share for share in SHARES[1:] if strongest)]):
        yield {"rate": found, "where": place}


@method_info(
    nearer=_nearer,
    study_settings=lambda model, dropout: {"rate": dropout or (None if dropout_rate(model) else 0.1)},
    candidates=_candidates,
    baselines={
        "dropout_single_pass": Baseline(
            "trained with dropout, one pass without it (MIMO, appendix B)",
            size=1,
            finish=lambda ensemble: single(ensemble.module),
        )
    },
    paper=Paper(
        "Gal, Yarin and Ghahramani, Zoubin",
        "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
        2016,
        "International Conference on Machine Learning",
    ),
)
def mc_dropout(
    model: nn.Module,
    size: int,
    rate: float | None = None,
    *,
    where: str | None = None,
    trained: Any = None,
    example: Any = None,
) -> Ensemble:
    """One network, `size` draws of its dropout: members differ only in what they drop (Gal and Ghahramani, 2016).

    The model's weights are kept. Dropout stays on in eval mode: modules, dropout called as a function in a forward,
    inside attention and between the layers of an RNN. In training each row is seen once, with one draw.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        rate: None: the model's own dropout. A number: its dropout modules drop at this rate; a model without any,
            or one with `where`, gets dropout before the chosen layers
        where: the layers that get dropout before them; by default every convolution and linear layer but the first
        trained: a batch of inputs says that the model's weights are trained: of the layers meant, only so many of the
            last ones get dropout, at a lower rate if need be, that draws keep 95 % of the network's answers on them
        example: with one, dropout that is called as a function is found now, and not on the first batch

    >>> ensemble = mc_dropout(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 16, rate=0.1)
    >>> ensemble.predict(torch.randn(5, 4)).epistemic.shape
    torch.Size([5])
    """
    size = check_size("mc_dropout", size)
    if rate is not None:
        rate = check_number("mc_dropout", "rate", rate, "between 0 and 1 (such as 0.1)", lambda v: 0 < v < 1)
    if where is not None and rate is None:
        raise ValueError(f"mc_dropout: where={where!r} says where to insert dropout, so it needs rate= too.")
    model = expose_weights(check_model("mc_dropout", model))
    own_dropout = dropout_modules(model)
    notes = []
    if rate is not None and (where is not None or not own_dropout):
        names = layers_of("mc_dropout", model, where, example, but_first=True)
        for name in names:
            adapt_(model.get_submodule(name), Dropped)
            model.get_submodule(name).rate = rate  # type: ignore[assignment]
        notes.append(f"dropout {rate} before {len(names)} layers: {quote_names(names, 6)}")
        where = exact_pattern(names)
    elif rate is not None:
        for name in own_dropout:
            set_rate_(model.get_submodule(name), rate)
        notes.append(f"dropout {rate} in {len(own_dropout)} modules: {quote_names(own_dropout, 6)}")
    settings = {"rate": rate, "where": where}
    return Ensemble(
        model, size, method="mc_dropout", settings=settings, feed=ONCE, notes=notes, first_look=find_dropout,
        example=example,
    )  # fmt: skip


def dropout_rate(model: nn.Module) -> float:
    """The largest rate of the model's own dropout; 0 without any."""
    return max((part.p for part in model.modules() if isinstance(part, DROPOUTS)), default=0.0)
