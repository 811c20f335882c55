"""Packed-Ensembles without training: the formula of section 3.2 and the equal forms of Figure 3, on real layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.ensemble import Ensemble
from ...methods import METHODS
from .stored_parts import Given, InParts, Part, Stored

LAYERS = [  # inputs, outputs, kernel, alpha, M, gamma
    *[(64, 128, 3, alpha, 4, 1) for alpha in (1, 2, 4)],
    *[(64, 128, 3, 2, 4, gamma) for gamma in (2, 4)],
    *[(96, 96, 1, alpha, 9, 1) for alpha in (3, 9)],
    (120, 60, 5, 3, 6, 2),
    (256, 512, 3, 2, 16, 2),
]


def count_layers(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Parameters of a convolution inside packed networks, beside the formula, the single network's and Deep's."""
    rows = []
    for inputs, outputs, kernel, alpha, members, gamma in LAYERS:
        model = nn.Sequential(
            nn.Conv2d(3, inputs, 1, bias=False),
            nn.Conv2d(inputs, outputs, kernel, bias=False),
            nn.Conv2d(outputs, 2, 1, bias=False),
        )
        x = torch.randn(1, 3, kernel, kernel)
        where = "1" if gamma > 1 else None
        packed = METHODS["packed"](model, members, alpha=alpha, gamma=gamma, example=x, where=where, min_channels=1)
        counted = dict(packed.module.named_parameters())["1.weight"].numel()
        formula = members * (alpha * inputs / members) * (alpha * outputs / members) * kernel**2 / gamma
        rows.append([inputs, outputs, kernel, alpha, members, gamma, counted, formula, inputs * outputs * kernel**2])
    return {"rows": rows}, {}


FORMULA = InParts(
    "packed-formula", lambda scale: [Part("layers", {"layers": [list(one) for one in LAYERS]})], count_layers
)


def compare_forms(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Outputs and gradients of one packed ensemble's forms: member by member, grouped, with a full first layer."""
    members, settings = int(part.settings["members"]), part.settings
    model = nn.Sequential(
        *(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
    ).double()
    torch.manual_seed(int(settings["seed"]))
    x = torch.randn(int(settings["rows"]), 3, 16, 16, dtype=torch.float64)
    y = torch.randint(10, (len(x),))
    packed: Ensemble = METHODS["packed"](model, members, alpha=settings["alpha"], example=x)
    forms = {"sequential": torch.stack([packed.member(i)(x) for i in range(members)])}
    gradients = {}
    forms["ensemble"] = packed(x)
    forms["grouped"] = _run_grouped(packed, x, full_first=False)
    forms["full first"] = _run_grouped(packed, x, full_first=True)
    for name, outputs in forms.items():
        if name == "sequential":
            continue
        gradients[name] = _gradients(packed, outputs, y)
    alone = _gradients_alone(packed, x, y)
    return {
        "outputs": {name: _largest(output - forms["sequential"]) for name, output in forms.items()},
        "gradients": {name: max(map(_largest, _apart(own, alone))) for name, own in gradients.items()},
        "scale": _largest(forms["sequential"]),
    }, {}


FORMS = InParts(
    "packed-forms",
    lambda scale: [
        Part(f"forms-{members}-{alpha}", {"members": members, "alpha": alpha, "rows": 8, "seed": 0})
        for members, alpha in ((3, 1), (2, 1), (4, 2))
    ],
    compare_forms,
)


def _run_grouped(packed: Ensemble, x: Tensor, full_first: bool) -> Tensor:
    """Figure 3 (b), the images stacked on channels and every layer grouped, or (c), the first layer a full one."""
    own, members = dict(packed.module.named_parameters()), packed.size
    h = x if full_first else x.repeat(1, members, 1, 1)
    for i, (name, stride) in enumerate((("0", 1), ("2", 2), ("4", 1))):
        groups = 1 if full_first and i == 0 else members
        weight, bias = own[f"{name}.weight"].flatten(0, 1), own[f"{name}.bias"].flatten()
        h = F.relu(F.conv2d(h, weight, bias, stride=stride, padding=1, groups=groups))
    h = h.mean((2, 3), keepdim=True)
    out = F.conv2d(h, own["8.weight"].flatten(0, 1)[..., None, None], own["8.bias"].flatten(), groups=members)
    return out.reshape(len(x), members, -1).transpose(0, 1)


def _gradients(packed: Ensemble, outputs: Tensor, y: Tensor) -> list[Tensor]:
    loss = sum((F.cross_entropy(output, y) for output in outputs), torch.zeros((), dtype=outputs.dtype))
    return list(torch.autograd.grad(loss, list(packed.parameters())))


def _gradients_alone(packed: Ensemble, x: Tensor, y: Tensor) -> list[Tensor]:
    """Those of each member, trained by itself, stacked."""
    found = []
    for i in range(packed.size):
        member = packed.member(i)
        parameters = [parameter.requires_grad_() for parameter in member.parameters()]
        found.append(torch.autograd.grad(F.cross_entropy(member(x), y), parameters))
    return [torch.stack(each) for each in zip(*found, strict=True)]


def _apart(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
    return [one - other for one, other in zip(first, second, strict=True)]


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max())
