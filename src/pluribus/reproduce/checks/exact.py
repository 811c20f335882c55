"""Checks of what needs no training: formulas, equal forms, masks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...report.claims import ClaimVerdict
from ...results.judgements import FAILS, HOLDS, OPEN, plural, show_interval
from ...uncertainty.resampling import Interval
from ..experiments.stored_parts import Stored
from ..published import decimals

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


def check_footnote2(found: Mapping[str, Stored], published: Mapping[str, Any]) -> ClaimVerdict:
    """MIMO's parameters and operations beside the single network's."""
    if not published["counts"].keys() <= {_method(name) for name in found}:
        return ClaimVerdict(OPEN, ["Both networks must be counted."])
    ours = {_method(name): part.figures for name, part in found.items()}
    rows, agree = [], []
    for network, printed in published["counts"].items():
        counted = ours[network]["parameters"] / 1e6
        cut = math.floor(counted * 1000) / 1000
        agree.append(float(printed["parameters"]) in (cut, round(counted, 3)))
        rows.append([network, "parameters, M", printed["parameters"], f"{counted:.4f}"])
        rows.append([network, "operations, G", printed["flops"], f"{2 * ours[network]['mult_adds'] / 1e9:.3f}"])
    growth = {key: ours["mimo"][key] / ours["single"][key] - 1 for key in ("parameters", "mult_adds")}
    small = all(share < 0.001 for share in growth.values())
    said = [
        f"MIMO with three members adds {100 * growth['parameters']:.3f} % of the parameters and "
        f"{100 * growth['mult_adds']:.3f} % of the mult-adds; the paper prints 0.03 % and 0.01 %.",
        "The printed parameters agree (36.492 is cut off, not rounded)."
        if all(agree)
        else "Printed parameters differ.",
        "The printed operations are 0.7 % above twice the mult-adds of convolutions and products, perhaps because "
        "normalisation and sums are counted too. Their own difference is 0.02 %, where the text says 0.01 %.",
    ]
    return ClaimVerdict(
        HOLDS if all(agree) and small else FAILS, said, ["network", "figure", "the paper", "counted"], rows
    )


def _method(part: str) -> str:
    return part.partition("-")[0]
