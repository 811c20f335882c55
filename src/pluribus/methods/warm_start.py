"""Ensembles that start near a trained network: the strongest setting under which members keep its answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._common.trees import as_batch, logits_of, rows_of, tensors_of
from ..core.ensemble import Ensemble
from ..surgery.calling import check_example, evaluation_mode
from ..surgery.copying import duplicate
from ..surgery.initial_laws import Laws, has_seen_data

KEPT = 0.95  # of the network's answers, in the mean over members
BATCHES = 10  # that a normalisation layer saw: more than a look at shapes needs
SHARES = (1.0, 0.6, 0.4, 0.2, 0.1, 0.04, 0.01, 0.004)  # of the strongest setting, in turn

Strength = TypeVar("Strength")


def is_batch(trained: Any) -> bool:
    """Whether `trained=` is a batch to start near on: neither None (nobody said) nor False (the weights are fresh)."""
    return trained is not None and trained is not False


def start_near(
    method: str,
    model: nn.Module,
    trained: Any,
    strengths: Iterable[Strength],
    make: Callable[[Strength], Ensemble],
    generator: torch.Generator | None = None,
) -> Ensemble:
    """The ensemble of the first strength whose members keep 95 % of the network's answers on `trained`.

    A few forward passes of each find it; `explain()` says what was kept. Where none does, it is an error that says how
    much the best one keeps. Strengths that cannot be made, such as masks that would be all ones, are passed over.

    Args:
        trained: inputs like those that the model was trained on, as one call of it takes them
        strengths: settings, the strongest first
    """
    _check_inputs(method, model, trained)
    before, most = generator.get_state() if generator is not None else None, 0.0
    for i, strength in enumerate(strengths):
        if generator is not None and before is not None:
            generator.set_state(before)  # each is drawn as if it were the only one
        try:
            made = make(strength)
        except ValueError:
            if i == 0:
                raise
            continue
        kept, differ = _compare_answers(made, model, trained)
        if kept >= KEPT and (made.size == 1 or differ):
            made.notes.append(f"starts near the trained network: members keep {100 * kept:.1f} % of its answers")
            return made
        most = max(most, kept if kept < KEPT else 0.0)  # members that are all the same are no ensemble
    raise ValueError(
        f"{method}: members must keep {100 * KEPT:.0f} % of the network's answers on the {_count(trained)} rows of "
        f"trained=, but in every setting tried they keep {100 * most:.1f} % at most, or are all alike. Choose other "
        "layers with where=, use pb.lora, which starts as the network itself, or give trained=False to train from here."
    )


def warn_if_trained(method: str, model: nn.Module, trained: Any, loss: str) -> None:
    """Warn that a conversion loses most of what the network seems to have learnt, unless `trained` is False."""
    seen = (name for name, module in model.named_modules() if has_seen_data(module, BATCHES))
    if trained is None and (name := next(seen, None)) is not None:
        warnings.warn(
            f"{method}: this network seems to be pretrained (its layer {name!r} has seen data), and {loss}, so most of "
            "what it knew may be lost. Give trained=x, a batch of inputs like those that it was trained on, to start "
            "near it, or trained=False to train from here.",
            stacklevel=3,
        )


def find_training(model: nn.Module, laws: Laws) -> str:
    """What says that the model is trained, in words; nothing where nothing does."""
    seen = next((name for name, module in model.named_modules() if has_seen_data(module, BATCHES)), None)
    if seen is not None:
        return f"the model seems to be trained: its layer {seen!r} has seen data"
    moved = next((name for name in laws.guessed if laws.values[name].ndim == 1), None)  # nobody draws biases otherwise
    return "" if moved is None else f"the model seems to be trained: its layers do not draw {moved!r} like this"


@torch.no_grad()
def _compare_answers(ensemble: Ensemble, model: nn.Module, x: Any) -> tuple[float, bool]:
    """The share of the model's answers that members give too, in eval mode, and whether members differ at all.

    Answers are labels where a row has several outputs in one dimension; elsewhere it is 1 - (squared difference /
    variance of the model's outputs), at least 0. Members differ where it is more than rounding.
    """
    args, kwargs = as_batch(x)
    with torch.random.fork_rng(devices=[]):
        network = duplicate(model)
        with evaluation_mode(network):
            base = logits_of(network(*args, **kwargs))
        ensemble.look_once((args, kwargs))  # dropout that it finds stays active
        with evaluation_mode(ensemble):
            members = logits_of(ensemble(*args, **kwargs))
    found, given = tensors_of(members)[0], tensors_of(base)[0]
    differ = bool((found - found[:1]).abs().max() > 1e-3 * found.std())
    if given.ndim == 2 and given.shape[1] > 1:
        return (found.argmax(-1) == given.argmax(-1)).float().mean().item(), differ
    return max(0.0, 1 - (((found - given) ** 2).mean() / given.var().clamp_min(1e-12)).item()), differ


def last_layers(names: Sequence[str]) -> list[list[str]]:
    """All layers, their last half, the last half of that, and so on to the last one.

    >>> last_layers(["a", "b", "c"])
    [['a', 'b', 'c'], ['c']]
    """
    counts, count = [], len(names)
    while count:
        counts.append(count)
        count //= 2
    return [list(names[-count:]) for count in counts]


def weaker(places: Sequence[Any], strengths: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Fewer and fewer places at the full strength, then the last of them at less and less.

    >>> weaker(["all", "last"], [1.0, 0.5, 0.1])
    [('all', 1.0), ('last', 1.0), ('last', 0.5), ('last', 0.1)]
    """
    return [(place, strengths[0]) for place in places] + [(places[-1], strength) for strength in strengths[1:]]


def _check_inputs(method: str, model: nn.Module, trained: Any) -> None:
    """Refuse inputs that the model does not take, or that tell nothing about it."""
    if not any(isinstance(t, Tensor) for t in tensors_of(as_batch(trained))) or _count(trained) < 2:
        raise ValueError(
            f"{method}: trained= takes a batch of inputs like those that the model was trained on, at least two rows, "
            f"but it is {trained if not isinstance(trained, Tensor) else tuple(trained.shape)!r}."
        )
    check_example(method, model, trained)


def _count(trained: Any) -> int:
    return rows_of(as_batch(trained))
