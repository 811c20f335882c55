"""One network, and independent ones: every tensor is a member's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from ..core.ensemble import Ensemble
from ..surgery.closures import find_hidden
from ..surgery.copying import state
from ..surgery.initial_laws import Laws
from .building import Init, Source, check_model, check_size, members_of, note_guesses, stack
from .method_info import Baseline, Candidate, Paper, method_info
from .mixed import MixedEnsemble
from .model_comparison import find_difference


@method_info(
    nests=True,
    keeps=True,
    candidates=lambda request: [],  # it is what others are compared with
    baselines={
        "thin": Baseline("one network of half the width (MIMO, section 4)", width=0.5),
        "wide": Baseline("one network of twice the width (MIMO, section 4)", width=2.0),
    },
)
def single(model: nn.Module) -> Ensemble:
    """One member with the given weights: the single network as an ensemble, for use as a baseline.

    Shapes:
        output of the ensemble: (1, batch, *outputs)

    Args:
        model: the network; the ensemble has a copy of its own

    >>> single(nn.Linear(4, 3))(torch.zeros(5, 4)).shape
    torch.Size([1, 5, 3])
    """
    return stack("single", [check_model("single", model, nests=True)])


@method_info(
    nests=True,
    candidates=lambda request: [Candidate({}, size, member=request.model, capacity=1.0) for size in request.sizes],
    baselines={"thin_ensemble": Baseline("independent networks of half the width (MIMO, Tables 1 and 2)", width=0.5)},
    paper=Paper(
        "Lakshminarayanan, Balaji and Pritzel, Alexander and Blundell, Charles",
        "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
        2017,
        "Advances in Neural Information Processing Systems 30",
    ),
)
def deep(
    model: Source | Sequence[nn.Module],
    size: int | None = None,
    *,
    init: Init = "different",
    generator: torch.Generator | None = None,
) -> Ensemble:
    """Independent networks: every tensor is a member's own (Lakshminarayanan et al., 2017).

    In training every member sees every row, and the losses are summed: a joint step equals separate steps.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        model: a model, a function without arguments that builds one, or a list of trained models: alike ones
            are stacked; unlike ones, in their modes too, are run by the loop
        size: how many members; of a list, as many as it has
        init: "different": each member's tensors are drawn anew, in law like the model's (a builder is called for
            each member instead); "same": every member starts with the model's weights
        generator: where random numbers come from; by default torch's own generator

    >>> ensemble = deep(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 4)
    >>> ensemble(torch.zeros(5, 4)).shape, ensemble.member(2)(torch.zeros(5, 4)).shape
    (torch.Size([4, 5, 3]), torch.Size([5, 3]))
    >>> deep([nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))]).size  # trained ones, alike or not
    2
    """
    if isinstance(model, (list, tuple, nn.ModuleList)):
        return _of_models(list(model), size)
    size = check_size("deep", size)
    laws = (
        Laws(check_model("deep", model, nests=True)) if isinstance(model, nn.Module) and init == "different" else None
    )
    members = members_of("deep", cast(Source, model), size, init, generator, nests=True, laws=laws)
    return stack("deep", members, settings={"init": "same"}, notes=note_guesses(laws) if laws else [])


def _of_models(models: list[nn.Module], size: int | None) -> Ensemble:
    if size is not None and size != len(models):
        raise ValueError(f"deep: size must be the number of models, {len(models)}, but it is {size}. Leave it out.")
    if not models:
        raise ValueError("deep: there must be at least one model, but the list is empty.")
    for model in models:
        check_model("deep", model, nests=True)
    modes = [[part.training for part in model.modules()] for model in models]
    are_alike = not any(find_difference(models[0], model) for model in models) and all(m == modes[0] for m in modes)
    if are_alike and not any(find_hidden(model, dict(state(model))) for model in models):
        return stack("deep", models, settings={"init": "same"})
    return MixedEnsemble(models, "deep")
