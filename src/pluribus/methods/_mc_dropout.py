"""Dropout wherever it is: modules, functions called in a forward, attention, recurrent layers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._common.torch_private import NormBase
from .._common.trees import Batch, are_close, as_batch, map_tensors, tensors_of
from ..core.ensemble import Ensemble
from ..core.feeds import ONCE
from ..core.first_look import Findings
from ..results.styles import Style
from ..surgery.attention import Attention
from ..surgery.calling import track_modules
from ..surgery.copying import duplicate
from ..surgery.direct_reads import find_bypassed
from ..surgery.dropout import RATES_AND_SWITCHES, no_dropout
from ..surgery.replacing import adapt_, expose_weights
from ..surgery.selecting import DROPOUTS, exact_pattern, quote_names
from ._independent import single
from .adapted_layers import Dropped
from .building import check_model, check_number, check_size
from .facts import Baseline, Candidate, Paper, Wish, candidates_by_size, states
from .layer_choice import heads_of, layers_of, refuse_reads
from .warm_start import SHARES, is_batch, last_layers, start_near, weaker


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


def find_dropout(ensemble: Ensemble, batch: Batch) -> Findings:
    """Find everything that drops in training, and keep it dropping in eval mode.

    Modules that are dropout stay in training mode. Where dropout is called as a function, or attention with a rate,
    the call is changed instead: the module around it may do other things in training.
    """
    inserted = [name for name, part in ensemble.module.named_modules() if isinstance(part, Dropped)]
    refuse_reads("mc_dropout", find_bypassed(ensemble.module, inserted, batch) if inserted else ())
    found, calls = droppers(ensemble.module, batch)
    if not found:
        raise ValueError(
            "mc_dropout: the model has no active dropout in training, so all members would "
            "be the same. Give rate=0.1 to insert dropout, and where= to choose the layers that it goes before."
        )
    awake = frozenset(found) - frozenset(calls)
    more = _asleep_in_eval(ensemble.module, calls, awake, batch)
    notes = [f"dropout in {len(found)} modules: {quote_names(found, 6)}"]
    if more:
        notes.append(f"in training mode for predictions too, for their dropout: {quote_names(more, 6)}")
    calls = {name: rates for name, rates in calls.items() if name not in more}
    return Findings(awake | frozenset(more), Dropping if calls else None, notes, calls)


Line = tuple[str, str, int]  # of code: file, function, number
Calls = dict[str, dict[Line, float]]  # for each module the lines that call dropout, and the rates in training


def droppers(model: nn.Module, batch: Batch) -> tuple[dict[str, float], Calls]:
    """The modules that drop something in training with their rates, and those that call dropout as a function."""
    model = duplicate(model).train()
    for module in model.modules():
        if isinstance(module, NormBase):
            module.eval()  # one row has no statistics
    calls = _note_calls(model, batch)
    found = {name: max(rates.values()) for name, rates in calls.items() if any(rates.values())}
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            found[name] = module.dropout
    own = (*DROPOUTS, Dropped, Attention)
    return found, {name: calls[name] for name in found if name in calls and not _is_kind(model, name, own)}


def _is_kind(model: nn.Module, name: str, kinds: tuple[type, ...]) -> bool:
    return isinstance(model.get_submodule(name), kinds)


def _note_calls(model: nn.Module, batch: Batch, around: TorchFunctionMode | None = None) -> Calls:
    """What drops in one pass; the model is a copy."""
    calls: Calls = {}
    path = [""]
    with torch.random.fork_rng(devices=[]), torch.no_grad(), track_modules(model, path), _Noting(path, calls):
        args, kwargs = map_tensors(batch, lambda t: t.clone())  # a model may change its input in place
        with around or nullcontext():
            model(*args, **kwargs)
    return calls


def _asleep_in_eval(model: nn.Module, calls: Calls, awake: Collection[str], batch: Batch) -> list[str]:
    """The modules that call dropout in training mode only (`if self.training: ...`), so that they must stay in it.

    Refuses one that does more in training mode than to drop.
    """
    copy = duplicate(model).eval()
    for name, rates in calls.items():
        copy.get_submodule(name).dropout_calls = rates  # type: ignore[assignment]
    for name in awake:
        copy.get_submodule(name).training = True
    seen = _note_calls(copy, batch, Dropping())
    missing = [
        name
        for name, rates in calls.items()
        if any(rate and not seen.get(name, {}).get(line) for line, rate in rates.items())
    ]
    if missing:
        before = _run_without_dropout(copy, batch)
        for name in missing:
            copy.get_submodule(name).training = True
        if not are_close(before, _run_without_dropout(copy, batch)):
            raise ValueError(
                f"mc_dropout: {quote_names(missing)} must be in training mode for dropout, but that mode changes the "
                "output even without dropout, so more than dropout would be active. Use nn.Dropout modules, or "
                "F.dropout(x, p, self.training), outside `if self.training`."
            )
    return missing


def _run_without_dropout(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The outputs, and the buffers after the pass."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), no_dropout():
        torch.manual_seed(0)
        args, kwargs = map_tensors(batch, lambda t: t.clone())
        outputs = tensors_of(model(*args, **kwargs))
    return [*outputs, *(buffer.clone() for buffer in model.buffers())]


class Dropping(TorchFunctionMode):
    """Lets every dropout that is called as a function drop as it does in training.

    The modules that call it know at which lines, and with which rates: `dropout_calls`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Dropout that drops; everything else as it is."""
        kwargs = kwargs or {}
        if func in RATES_AND_SWITCHES:
            rate, switch = RATES_AND_SWITCHES[func]
            module, line = _caller()
            wanted = getattr(module, "dropout_calls", {})
            given = rate.of(args, kwargs)
            if wanted and wanted.get(line, given):  # a line that was not met in training drops as it says
                args, kwargs = rate.replace(args, kwargs, given or wanted[line])
                args, kwargs = switch.replace(args, kwargs, True) if switch.name else (args, kwargs)
        return func(*args, **kwargs)


class _Noting(TorchFunctionMode):
    """Notes the module and the line that calls a dropout function, and its rate: 0 where it does not drop."""

    def __init__(self, path: list[str], calls: Calls):
        super().__init__()
        self.path, self.calls = path, calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RATES_AND_SWITCHES:
            rate, switch = (argument.of(args, kwargs or {}) for argument in RATES_AND_SWITCHES[func])
            rates, line = self.calls.setdefault(self.path[-1], {}), _caller()[1]
            rates[line] = max(rates.get(line, 0.0), float(rate) if switch else 0.0)
        return func(*args, **(kwargs or {}))


def _caller() -> tuple[nn.Module | None, Line]:
    """The module whose forward runs, and the line of code, outside of torch and of modes, that has called torch."""
    frame = inspect.currentframe()
    line: Line | None = None
    while frame is not None:
        code, owner = frame.f_code, frame.f_locals.get("self")
        if line is None and code.co_name != "__torch_function__" and not code.co_filename.startswith(_INSIDE):
            line = code.co_filename, code.co_qualname, frame.f_lineno
        if isinstance(owner, nn.Module):
            return owner, line or ("", "", 0)
        frame = frame.f_back
    return None, line or ("", "", 0)


_INSIDE = (str(Path(torch.__file__).parent), __file__)


def _candidates(wish: Wish) -> list[Candidate]:
    if dropout_modules(expose_weights(wish.model)):
        return candidates_by_size(mc_dropout, wish)
    rate = wish.options["rate"]
    last = "|".join(map(re.escape, heads_of(wish.model, None, wish.example)))
    return candidates_by_size(mc_dropout, wish, rate=rate) + candidates_by_size(mc_dropout, wish, rate=rate, where=last)


@states(
    study_settings=lambda model, dropout: {"rate": dropout or (None if dropout_rate(model) else 0.1)},
    candidates=_candidates,
    baselines={
        "dropout_single_pass": Baseline(
            "trained with dropout, one pass without it (MIMO, appendix B)",
            size=1,
            finish=lambda ensemble: single(ensemble.module),
        )
    },
    style=Style("#56B4E9", "P"),
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
    if is_batch(trained):
        places: list[str | None] = [where]  # the model's own dropout is where it is
        if rate is not None:
            view = expose_weights(check_model("mc_dropout", model))
            meant = layers_of("mc_dropout", view, where, example, but_first=True)
            places = [exact_pattern(names) for names in last_layers(meant)]
        strongest = rate or dropout_rate(model)
        rates = [rate, *(strongest * share for share in SHARES[1:] if strongest)]
        return start_near(
            "mc_dropout", model, trained, weaker(places, rates),
            lambda found: mc_dropout(model, size, found[1], where=found[0], example=example),
        )  # fmt: skip
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
    made = Ensemble(
        model, size, method="mc_dropout", settings=settings, feed=ONCE, notes=notes, first_look=find_dropout
    )
    if example is not None:
        made.look_once(as_batch(example))
    return made


def dropout_rate(model: nn.Module) -> float:
    """The largest rate of the model's own dropout; 0 without any."""
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    return max((part.p for part in model.modules() if isinstance(part, kinds)), default=0.0)
