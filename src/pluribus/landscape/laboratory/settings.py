"""Settings of methods on one's own network, and figures on the papers' own data, as sections of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...report.claims import Claim, ClaimVerdict
from ...report.figure import Curve, Figure, curve_panel, legend
from ...report.svg import Axis
from ...results.judgements import FAILS, HOLDS, OPEN, all_of
from ..analyses.masks import mask_overlap, ood_criteria
from ..analyses.trained_settings import Measured
from ..material import Material
from ..studies import own_data
from ..studies.sweeps import SWEEPS, measure_sweep

SINUSOIDS: dict[str, Any] = {"hidden": 100, "points": 41, "epochs": 30, "lr": 0.01}

CURVE: dict[str, Any] = {"sizes": 5, "repeats": 20, "steps": 1000}

ANSWERS = {HOLDS: "yes", FAILS: "no", OPEN: "inconclusive"}

QUESTIONS = {name: [name] for name in SWEEPS if name not in ("l1", "l2")} | {"penalties": ["l1", "l2"]}


def settings_question(name: str, material: Material) -> Claim | None:
    """The sweeps of a question, on the network and the data of the runs."""
    sweeps, rows, found = [SWEEPS[one] for one in QUESTIONS[name]], [], []
    for sweep in sweeps:
        measured = measure_sweep(material, sweep)
        if measured is None:
            return None
        rows.append(measured)
        found.append(sweep.verdict(measured))
    says = " ".join(
        f"{' '.join(one.says for one in sweep.claims.values()).removesuffix('.')} ({sweep.source})." for sweep in sweeps
    )
    title = sweeps[0].title if len(sweeps) == 1 else "Who suffers more from a penalty on the weights?"
    pictures = [picture for one in found for picture in one.pictures]
    further = FURTHER.get(name, lambda measured: [])(rows[0])
    rows_told = [row for one in found for row in one.rows]
    number = found[0].found[1].removesuffix(".") if len(found[0].found) > 1 else ""  # the first comparison
    lines = [line for one in found for line in one.found]
    verdict = ClaimVerdict(all_of([one.judgement for one in found]), lines, found[0].header, rows_told,
                           [*pictures, *further], number)  # fmt: skip
    return Claim("", name, title, says, verdict=_as_answer(verdict))


def _as_answer(verdict: ClaimVerdict) -> ClaimVerdict:
    return replace(verdict, judgement=ANSWERS.get(verdict.judgement, ""))


def reliability_and_overlap(found: Measured) -> list[Figure]:
    """Accuracy against confidence for every setting (Figure 14), and the overlap of drawn masks (Figures 3 and 12)."""
    curves: dict[str, Curve] = {}
    for setting in found.settings:
        parts = np.nan_to_num([row["reliability"] for row in found.rows if row["setting"] == setting])  # seeds, 3, bins
        total = parts[:, 2].sum(0)
        kept = total >= max(1, 0.005 * total.sum())
        confidence, accuracy = ((parts[:, i] * parts[:, 2]).sum(0)[kept] / total[kept] for i in (0, 1))
        curves[setting] = confidence, accuracy
    caption = "Accuracy against confidence, all seeds together, for bins with at least half a percent of the rows."
    scales, sizes = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0), (2, 4, 8)
    drawn = mask_overlap(sizes, scales, ones=64, draws=5)
    overlap: dict[str, Curve] = {"1 / (2 S - 1)": (np.array(scales), drawn["iou_paper"])}
    overlap |= {f"N = {size}": (np.array(scales), drawn["iou"][i, :, 0]) for i, size in enumerate(sizes)}
    return [
        _curves("calibration", "Calibration", caption, curves, ("confidence", "accuracy"), Axis(0, 1), True),
        _curves("overlap", "Overlap of masks", "Drawn masks with 64 ones, and the closed form.", overlap,
                ("S", "IoU of two masks"), Axis(1, scales[-1])),
    ]  # fmt: skip


def _curves(
    name: str,
    title: str,
    caption: str,
    curves: dict[str, Curve],
    axes: tuple[str, str],
    x: Axis,
    diagonal: bool = False,
) -> Figure:
    styles = {label: number for number, label in enumerate(curves, 2)}
    panel = curve_panel(curves, styles, axes, (x, Axis(0, 1)), str, diagonal=diagonal)
    return Figure(name, title, caption, [panel], legend=legend(curves, styles))


def criteria_table(found: Measured) -> list[Figure]:
    """How well each criterion detects outside rows (Packed-Ensembles, Table 6)."""
    if "auroc msp" not in found.figures:
        return []
    told = ood_criteria(found, "auroc")
    header = ["Setting", *(name.replace("_", " ") for name in next(iter(told.values())))]
    rows = [[setting, *(f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]" for one in own.values())]
            for setting, own in told.items()]  # fmt: skip
    caption = "How well each criterion detects out-of-distribution (OOD) rows: AUROC with its interval (Table 6)."
    return [Figure("criteria", "Criteria for OOD data", caption, header=header, rows=rows)]


FURTHER: Mapping[str, Callable[[Measured], list[Figure]]] = {
    "masks": reliability_and_overlap,
    "packing": criteria_table,
}


def sinusoid_question(material: Material) -> Claim | None:
    """Masksembles, Figure 4, for as many seeds as networks are trained again."""
    if material.retrained < 2:
        return None
    verdict = own_data.check_transition(
        *own_data.measure_sinusoids(**SINUSOIDS, seeds=material.retrained, say=material.say)
    )
    says = (
        "The entropy outside the training range rises as masks overlap less, from one network's to an ensemble's "
        "(Durasov et al., Figure 4). The data are the paper's, not those of the runs."
    )
    title = "Does uncertainty beyond the data grow as masks overlap less?"
    return Claim("", "sinusoids", title, says, verdict=_as_answer(verdict))


def bias_question(material: Material) -> Claim | None:
    """MIMO, Figure 2: bias, variance and error on the paper's curve, as members become more."""
    if material.retrained < 2:
        return None
    material.say(f"bias and variance on a curve: {CURVE['repeats']} training sets for each of {CURVE['sizes']} sizes")
    verdict = own_data.check_bias(*own_data.measure_bias(**CURVE, say=material.say))
    says = (
        "As M grows the variance falls and the bias rises, and the best M is not 1 (Havasi et al., Figure 2). The data "
        "are the paper's, not those of the runs: 64 rows of a noisy curve, a perceptron of 32 and 128 units. The noise "
        "of the test rows is part of the bias."
    )
    return Claim("", "bias", "What do more members trade off?", says, verdict=_as_answer(verdict))
