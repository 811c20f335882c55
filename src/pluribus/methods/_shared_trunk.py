"""A shared trunk under what each member owns: a branch of the network, or its last layer alone."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from .._common.text_tables import some_of
from ..core.ensemble import Ensemble
from ..surgery.closures import refuse_hidden
from ..surgery.copying import aliases, duplicate, state
from ..surgery.initial_laws import Laws, reinitialize
from ..surgery.selecting import exact_pattern, matches, pick, quote_names
from ._mimo import MIMO
from .building import (
    INITS,
    Init,
    check_choice,
    check_model,
    check_number,
    check_size,
    note_guesses,
    refuse_alike,
    stack,
    start_alike,
)
from .layer_choice import check_heads, heads_of
from .method_info import Candidate, Paper, PlanRequest, candidates_by_size, method_info
from .warm_start import SHARES, warn_if_trained


def make_branches(
    method: str, model: nn.Module, size: int, own: list[str], settings: dict[str, Any], notes: list[str],
    init: str, generator: torch.Generator | None, freeze_trunk: bool, noise: float, revive: bool = False,
) -> Ensemble:  # fmt: skip
    """Members that own some tensors of the model; the rest is kept, and shared.

    With `revive`, weights that are constant (zeros) are drawn by PyTorch's law at once; otherwise only where the
    members would be alike.
    """
    check_choice(method, "init", init, INITS)
    refuse_hidden(method, model, {name: tensor for name, tensor in state(model) if name in own})
    noise = check_number(method, "noise", noise, "at least 0 and finite", lambda v: 0 <= v < math.inf)
    if noise and init == "different":
        raise ValueError(f'{method}: noise={noise} is for members that start with the model\'s weights: init="same".')
    members = [_shake(model, own, noise, generator) for _ in range(size)] if noise else [model] * size
    if init == "different":
        laws = Laws(model)
        members = [reinitialize(model, generator, own, revive=revive, laws=laws) for _ in range(size)]
        if not revive and start_alike(members, own):
            members = [reinitialize(model, generator, own, revive=True, laws=laws) for _ in range(size)]
        notes = [*notes, *note_guesses(laws, own)]
    refuse_alike(method, members, own, init)
    settings = {**settings, "init": "same", "freeze_trunk": freeze_trunk}
    made = stack(method, members, own, settings=settings, notes=notes)
    if freeze_trunk:
        for name, parameter in made.module.named_parameters():
            parameter.requires_grad_(name in made.own and parameter.requires_grad)
        made.frozen_modules = frozenset(shared_parts(made.module, made.own))
        made.train(made.training)
    return made


def shared_parts(module: nn.Module, own: Collection[str]) -> list[str]:
    """Names of the largest submodules that hold no owned tensor."""
    names = {alias for name, others in aliases(module).items() if name in own for alias in others}
    owners = {name.rpartition(".")[0] for name in names}
    found: list[str] = []

    def visit(path: str, part: nn.Module) -> None:
        only_holds = type(part).forward is nn.Module.forward  # nn.ModuleList: never called
        if only_holds or any(owner == path or owner.startswith(f"{path}.") for owner in owners):
            for name, child in part.named_children():
                visit(f"{path}.{name}", child)
        else:
            found.append(path)

    for name, child in module.named_children():
        visit(name, child)
    return found


def _shake(model: nn.Module, own: Sequence[str], noise: float, generator: torch.Generator | None) -> nn.Module:
    """A copy whose own parameters are perturbed, each by `noise` times its standard deviation."""
    copy = duplicate(model)
    with torch.no_grad():
        for name, p in copy.named_parameters():
            if name in own and p.is_floating_point() and p.numel() > 1:
                p.add_(noise * p.std() * torch.randn(p.shape, generator=generator).to(p))
    return copy


def _treenet_candidates(request: PlanRequest) -> list[Candidate]:
    branches = request.options["branches"] or branch_points(request.model)
    return [candidate for branch in branches for candidate in candidates_by_size(treenet, request, branch=branch)]


@method_info(
    nests=True,
    nearer=lambda given: [{"init": "same", "noise": share} for share in SHARES],
    study_settings=lambda model, dropout: {"branch": last_part(model)},
    candidates=_treenet_candidates,
    paper=Paper(
        "Lee, Stefan and Purushwalkam, Senthil and Cogswell, Michael and Crandall, David and Batra, Dhruv",
        "Why M Heads are Better than One: Training a Diverse Ensemble of Deep Networks",
        2015,
        arxiv="1511.06314",
    ),
)
def treenet(
    model: nn.Module,
    size: int,
    branch: str,
    *,
    freeze_trunk: bool = False,
    init: Init = "different",
    noise: float = 0.0,
    trained: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """A shared trunk under each member's own branch of the network (TreeNet, Lee et al., 2015).

    The trunk's weights are kept. In training every member sees every row, the trunk runs once, and the losses
    are summed.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        size: how many members
        branch: what each member owns, such as "layer4|fc"
        freeze_trunk: keep a pretrained trunk as it is: no gradients, statistics not updated
        init: "different": the branches are drawn anew; "same": they start with the model's weights
        noise: with init="same", how far off they start, relative to the spread of each tensor
        trained: a batch of inputs says that the model's weights are trained: branches start as the model's, with the
            most noise under which members keep 95 % of the network's answers on them; False: they are not
        generator: where random numbers come from; by default torch's own generator

    >>> ensemble = treenet(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)), 4, branch="1|2")
    >>> sorted(ensemble.own), ensemble(torch.zeros(5, 4)).shape
    (['1.bias', '1.weight', '2.bias', '2.weight'], torch.Size([4, 5, 3]))
    """
    size = check_size("treenet", size)
    model = check_model("treenet", model, nests=True)
    _warn_of_fresh("treenet", model, trained, init, freeze_trunk)
    every = aliases(model)
    empty = [name for name, module in model.named_modules() if name and not any(True for _ in module.parameters())]
    pick("treenet", branch, [*sorted(set().union(*every.values())), *empty], "tensors")
    own = [name for name, names in every.items() if all(matches(branch, n) for n in names)]
    notes = [
        f"{name!r} is tied to a tensor of the trunk and stays shared"
        for name, names in every.items()
        if name not in own and any(matches(branch, n) for n in names)
    ]
    return make_branches("treenet", model, size, own, {"branch": branch}, notes, init, generator, freeze_trunk, noise)


def _warn_of_fresh(method: str, model: nn.Module, trained: Any, init: Init, freeze_trunk: bool) -> None:
    """Warn that branches are drawn anew over a trained trunk, which their first gradients tear apart."""
    if init == "different" and not freeze_trunk:
        warn_if_trained(method, model, trained, "training the redrawn parts may damage the trunk")


@method_info(
    nests=True,
    nearer=lambda given: [{"init": "same", "noise": share} for share in SHARES],
    paper=MIMO,  # its naive multihead
)
def multihead(
    model: nn.Module,
    size: int,
    *,
    where: str | None = None,
    example: Any = None,
    freeze_trunk: bool = False,
    init: Init = "different",
    noise: float = 0.0,
    trained: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """One network with a last layer for each member (naive multihead, Havasi et al., 2021).

    The weights of everything before it are kept. In training every member sees every row, and the losses are summed.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        size: how many members
        where: the last layer; by default the one that the example shows; without an example what the model's
            `get_classifier` says, or else the last layer that it defines (checked on the first batch)
        freeze_trunk: train the last layers alone
        noise: with init="same", how far off heads start, relative to the spread of each tensor
        trained: a batch of inputs says that the model's weights are trained: heads start as the model's, with the
            most noise under which members keep 95 % of the network's answers on them; False: they are not
        generator: where random numbers come from; by default torch's own generator

    >>> ensemble = multihead(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 4)
    >>> sorted(ensemble.own), ensemble(torch.zeros(5, 4)).shape
    (['2.bias', '2.weight'], torch.Size([4, 5, 3]))
    """
    size = check_size("multihead", size)
    model = check_model("multihead", model, nests=True)
    _warn_of_fresh("multihead", model, trained, init, freeze_trunk)
    heads = heads_of(model, where, example)
    own = [n for n, names in aliases(model).items() if all(name.rpartition(".")[0] in heads for name in names)]
    if not own:
        raise ValueError(
            f"multihead: the last layer, {quote_names(heads)}, is tied to the rest of the model, so no member can own "
            "it. Untie it, or choose another layer with where=."
        )
    settings = {"where": exact_pattern(heads)}
    notes = [f"heads: {quote_names(heads)}"]
    # Heads that start at zero would differ in nothing but their biases: they are revived.
    made = make_branches(
        "multihead", model, size, own, settings, notes, init, generator, freeze_trunk, noise, revive=True
    )
    made.passes = 1
    if where is None and example is None:
        made.first_look = partial(check_heads, heads=heads)
    return made


def last_part(model: nn.Module) -> str:
    """A pattern of what TreeNet's members own when nobody says: the last layer and the part with weights before it.

    Parts are the children of the model; one that holds most of the weights is opened if it is a row of more than three
    parts, or has at most one other part beside it (a wrapper, or a body with its head). The first part stays shared,
    or TreeNet would be a deep ensemble.

    >>> last_part(pb.models.resnet18())
    'layer4|fc'
    """
    found: list[str] = []
    for name, part in reversed(_parts(model, sum(p.numel() for p in model.parameters()))[1:]):
        found.insert(0, name)
        if len(found) > 1 and any(p.ndim > 1 for p in part.parameters()):
            break
    return "|".join(map(re.escape, found))


def _parts(model: nn.Module, total: int) -> list[tuple[str, nn.Module]]:
    found: list[tuple[str, nn.Module]] = []
    children = _with_weights(model)
    for name, part in children.items():
        own, inside = sum(p.numel() for p in part.parameters()), len(_with_weights(part))
        a_row = inside > 3 and isinstance(part, (nn.Sequential, nn.ModuleList))
        if own > total / 2 and (a_row or (inside and len(children) < 3)):
            found += [(f"{name}.{child}", module) for child, module in _parts(part, own)]
        else:
            found.append((name, part))
    return found


def _with_weights(model: nn.Module) -> dict[str, nn.Module]:
    return {name: part for name, part in model.named_children() if any(True for _ in part.parameters())}


def branch_points(model: nn.Module, most: int = 3) -> list[str]:
    """Patterns of what members could own, from a part of the model on to its end; the last layer alone is multihead."""
    parts = [name for name, _ in _parts(model, sum(p.numel() for p in model.parameters()))]
    starts = some_of(len(parts) - 2, most)
    return ["|".join(map(re.escape, parts[1 + start :])) for start in starts]
