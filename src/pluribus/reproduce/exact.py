"""What needs no training: the masks of Masksembles, and the formula and the equal forms of packed layers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.ensemble import Ensemble
from ..landscape.analyses.settings import mask_overlap
from ..methods import METHODS
from ..report.claims import ClaimVerdict
from ..results.judgements import FAILS, HOLDS, OPEN, plural, show_interval
from ..uncertainty.resampling import Interval
from .parts import Given, InParts, Part, Stored
from .published import decimals


def count_sets(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """How often each mean IoU comes up among all sets of N masks with M ones at M S positions; all are as likely."""
    size, ones, positions = (int(part.settings[key]) for key in ("N", "M", "positions"))
    subsets = [frozenset(one) for one in itertools.combinations(range(positions), ones)]
    pairs = {(a, b): Fraction(len(a & b), len(a | b)) for a in subsets for b in subsets}
    counts: Counter[Fraction] = Counter()
    first = subsets[0]  # positions are alike: with the first mask held, shares stay the same
    for rest in itertools.product(subsets, repeat=size - 1):
        drawn = (first, *rest)
        counts[sum((pairs[pair] for pair in itertools.combinations(drawn, 2)), Fraction())] += 1
    total, number = sum(counts.values()), size * (size - 1) // 2
    found = {float(value / number): count / total for value, count in sorted(counts.items())}
    return {"values": list(found), "shares": list(found.values())}, {}


FIGURE1 = InParts(
    "masks-figure1",
    lambda scale: [Part(f"S={s}", {"N": 4, "M": 2, "positions": 2 * s}) for s in (2, 3)],
    count_sets,
)

SCALES = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
SIZES = (2, 4, 8, 16)


def draw_sets(part: Part, data: Path | None, needed: Mapping[str, Stored]) -> Given:
    """Mean IoU and relative width of drawn masks, each with its interval, for each number of masks and scale."""
    found = mask_overlap(SIZES, SCALES, ones=int(part.settings["M"]), draws=int(part.settings["draws"]))
    rows = [{"N": size, "S": scale, **{name: found[name][i, j].tolist() for name in ("iou", "size")}}
            for i, size in enumerate(SIZES) for j, scale in enumerate(SCALES)]  # fmt: skip
    return {"rows": rows}, {}


def _plan(scale: str) -> list[Part]:
    draws, ones = {"smoke": (5, (32,)), "laptop": (40, (32, 128)), "paper": (100, (32, 128, 512))}[scale]
    return [Part(f"M={one}", {"M": one, "draws": draws}) for one in ones]


DRAWN = InParts("masks-drawn", _plan, draw_sets)


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
    joint = {"ensemble": packed(x)}
    joint |= {name: _run_grouped(packed, x, full) for name, full in (("grouped", False), ("full first", True))}
    forms |= joint
    gradients = {name: _gradients(packed, outputs, y) for name, outputs in joint.items()}
    alone = _gradients_alone(packed, x, y)
    return {
        "outputs": {name: _largest(output - forms["sequential"]) for name, output in forms.items()},
        "gradients": {
            name: max(_largest(one - other) for one, other in zip(own, alone, strict=True))
            for name, own in gradients.items()
        },
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


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max())


SAME = 1e-10  # of the largest output: what rounding in float64 may leave


def check_formula(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """M [alpha C / M x alpha C' / M x s^2 / gamma], and the two cases that the paper draws from it."""
    rows = [row for part in found.values() for row in part.figures["rows"]]
    if not rows:
        return ClaimVerdict(OPEN, ["No layer was counted."])
    wrong = [row for row in rows if row[6] != row[7]]
    roots = [row for row in rows if row[3] ** 2 == row[4] and row[5] == 1]
    whole = [row for row in rows if row[3] == row[4] and row[5] == 1]
    odd = [row for row in roots if row[6] != row[8]] + [row for row in whole if row[6] != row[4] * row[8]]
    said = [f"{len(rows) - len(wrong)} of {plural(len(rows), 'layer')} have the parameters of the formula."]
    if not odd:
        said.append(
            "With alpha = sqrt(M) a packed layer has as many parameters as the single network's, with alpha = M as "
            "many as M of them."
        )
    else:
        said.append(f"The cases alpha = sqrt(M) and alpha = M do not come out in {plural(len(odd), 'layer')}.")
    table = [[*(f"{value:g}" for value in row[:6]), f"{row[7]:,.0f}", f"{row[6]:,}"] for row in rows]
    header = ["inputs", "outputs", "kernel", "alpha", "M", "gamma", "formula", "counted"]
    return ClaimVerdict(FAILS if wrong or odd else HOLDS, said, header, table)


def check_forms(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """Whether the forms give the same outputs, and the same gradients as members that train alone."""
    if not found:
        return ClaimVerdict(OPEN, ["No form was run."])
    rows, worst = [], 0.0
    for name, part in found.items():
        for form, apart in part.figures["outputs"].items():
            gradient = part.figures["gradients"].get(form, 0.0)
            relative = max(apart, gradient) / part.figures["scale"]
            worst = max(worst, relative) if math.isfinite(relative) else math.inf
            rows.append([name, form, f"{apart:.1e}", f"{gradient:.1e}"])
    same = worst <= SAME
    word = "the same" if same else "not the same"
    said = [
        f"The forms are {word}: outputs and gradients differ by at most {worst:.1e} of the largest output (float64)."
    ]
    header = ["ensemble", "form", "difference of outputs", "difference of gradients"]
    return ClaimVerdict(HOLDS if same else FAILS, said, header, rows)


def check_figure1(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """Whether the printed IoUs can come up, and whether masks overlap less with the larger scale."""
    rows, possible, means = [], [], []
    for name, text in published["iou"].items():
        part = found.get(name.rpartition(" ")[2])
        if part is None:
            return ClaimVerdict(OPEN, [f"The sets of {name} were not counted."])
        values, shares = np.array(part.figures["values"]), np.array(part.figures["shares"])
        scale = 10 ** decimals(text)
        fits = np.isclose(np.round(values * scale), float(text) * scale) | np.isclose(
            np.floor(values * scale + 1e-9), float(text) * scale
        )
        share, mean = float(shares[fits].sum()), float(values @ shares)
        possible.append(share > 0)
        means.append(mean)
        rows.append([name, text, f"{mean:.4f}", f"{100 * share:.1f} %"])
    falls = all(first > second for first, second in zip(means, means[1:], strict=False))
    said = [
        ("Both printed values come up among the sets that the algorithm can draw" if all(possible) else
         "Not all printed values come up among the sets that the algorithm can draw")
        + f"; the expected IoU is {' and '.join(f'{mean:.3f}' for mean in means)}, where 1/(2S - 1) says "
        "0.333 and 0.200: with two ones in a mask the approximation is low."
    ]  # fmt: skip
    header = ["masks", "the paper's example", "expected, exactly", "sets with the printed value"]
    return ClaimVerdict(HOLDS if all(possible) and falls else FAILS, said, header, rows)


def check_drawn(figure: str) -> Any:
    """The check of overlap ("iou") or width ("size") of drawn masks against the paper's closed form."""

    def check(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
        rows, errors, noise = [], [], []
        for name, part in found.items():
            for row in part.figures["rows"]:
                ours, formula = Interval(*row[figure]), FORMULAS[figure](row["N"], row["S"])
                errors.append(abs(ours.value - formula) / formula)
                noise.append((ours.high - ours.low) / 2 / formula if ours.known else math.inf)
                rows.append([name, str(row["N"]), f"{row['S']:g}", f"{formula:.3f}", show_interval(ours)])
        header = ["ones", "masks N", "scale S", "the formula", "drawn, mean with its interval"]
        if not rows or max(noise) > CLOSE:
            return ClaimVerdict(
                OPEN, ["Too few sets were drawn: an interval is wider than the tolerance."], header, rows
            )
        close = max(errors) <= CLOSE
        said = [
            f"The drawn masks are {'within' if close else 'up to'} {100 * (CLOSE if close else max(errors)):.0f} % of "
            f"{FORMULA_TEXTS[figure]} for every N, M and S; the largest difference is {100 * max(errors):.1f} %."
        ]
        return ClaimVerdict(HOLDS if close else FAILS, said, header, rows)

    return check


CLOSE = 0.15  # relative: "the agreement is excellent", and what smallness of M leaves

FORMULAS = {
    "iou": lambda members, scale: 1 / (2 * scale - 1),
    "size": lambda members, scale: scale * (1 - (1 - 1 / scale) ** members),
}

FORMULA_TEXTS = {"iou": "1/(2S - 1)", "size": "S (1 - (1 - 1/S)^N)"}
