"""Questions with answers of their own: alignment, curves, curvature, layers, and settings of methods."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from ...report.charts.landscape import heat_map
from ...report.claims import Claim, ClaimVerdict, yes_or_no
from ...report.figure import Curve, Figure, Panel, curve_panel, finite_range, legend
from ...report.svg import Axis
from ...results.judgements import FAILS, HOLDS, OPEN, all_of, plural
from ..analyses.settings import Measured, mask_overlap, ood_criteria
from ..analyses.sparsity import layer_sparsity
from ..curvature import Spectrum, spectrum
from ..material import Material, spread
from ..paths import along, curve, line
from ..representations import cka, layer_names
from ..studies import own_data
from ..studies.sweeps import SWEEPS, measure_sweep
from ..symmetries.groups import Groups
from ..symmetries.matching import align
from ..symmetries.symmetry_search import permutations
from .drawing import answered, caption_of, curves_panel, lines_figure

STYLES = {"as trained": 2, "aligned by weights": 3, "aligned by activations": 4}


def aligned_runs(material: Material) -> Claim:
    """The straight line between the solutions of two runs, as they are and with their units in one order."""
    material.say("the order of units")
    first, second = material.solutions[:2]
    try:
        groups = permutations(first, material.train[0])
    except ValueError as error:
        return answered("alignment", [f"There is nothing to align: {error}"])
    ways = {"as trained": first, "aligned by weights": align(first, second, material.train[0], groups=groups)}
    with suppress(ValueError):  # of networks whose activations cannot be compared, such as one row at a time
        ways["aligned by activations"] = align(first, second, material.train[0], "activations", groups=groups)
    return alignment_question(ways, second, groups, material.test, material.train)


def alignment_question(
    ways: Mapping[str, nn.Module], reference: nn.Module, groups: Groups, data: Any, refresh: Any, points: int = 25
) -> Claim:
    """Loss and accuracy along the lines from several forms of one network to another, and the ridge on each."""
    found = {name: along(line(model, reference), data, points, refresh=refresh) for name, model in ways.items()}
    heights = {name: max(one.barrier, 0.0) for name, one in found.items()}
    before, *after = heights.items()
    best = min(after, key=lambda pair: pair[1])
    answer = "yes" if best[1] < 0.1 * before[1] else "partly" if best[1] < 0.5 * before[1] else "no"
    said = [
        f"{answer.capitalize()}: along the straight line the loss rises {before[1]:.3g} above its ends, and "
        + ", ".join(f"{value:.3g} once units are {name}" for name, value in after)
        + ".",
        f"{plural(len(groups), 'group')} of hidden units can be permuted, in 10^{groups.log10_orders:.0f} orders.",
    ]
    caption = caption_of("alignment", statistics=found[before[0]].statistics)
    panels = [
        curves_panel({label: (one.t, getattr(one, name)) for label, one in found.items()}, STYLES,
                     "from the first network to the second", name)
        for name in ("loss", "accuracy") if getattr(found[before[0]], name) is not None
    ]  # fmt: skip
    rows = [[name, f"{one.loss[0]:.4f}", f"{one.loss.max():.4f}", f"{heights[name]:.4f}"]
            for name, one in found.items() if one.loss is not None]  # fmt: skip
    header = ["Order of units", "Loss of the first", "Largest loss", "Ridge"]
    figure = Figure("alignment", "Along the line", caption, panels, "wide", legend(found, STYLES), header, rows)
    number = f"Rise of the loss {best[1]:.3g} once aligned, {before[1]:.3g} before"
    return answered("alignment", said, [figure], answer, number)


def trained_curves(material: Material) -> Claim:
    """Loss along curves that are trained as a whole, beside the straight line."""
    material.say("curves between two solutions")
    first, second = material.runs[:2]
    ways = {"straight line": line(first, second)}
    for kind in ("bezier", "polygon"):
        ways[f"{kind} curve"] = curve(
            first, second, material.train, kind, steps=5 * material.steps, lr=1e-3, seed=material.seed
        )
    found = {name: along(way, material.test, refresh=material.train) for name, way in ways.items()}
    heights = {name: one.barrier for name, one in found.items()}
    curves: dict[str, Curve] = {name: (one.t, np.asarray(one.loss)) for name, one in found.items()}
    best = min(list(ways)[1:], key=lambda name: heights[name])
    lower = heights[best] < 0.25 * heights["straight line"]
    told = ", ".join(f"{name} {height:.3g}" for name, height in heights.items())
    answer = [f"{'Yes' if lower else 'Not by these'}: the loss rises above its ends by: {told}."]
    caption, heads = caption_of("curve", steps=5 * material.steps), ("Path", "at {:.2f}")
    figure = lines_figure(
        "curves", "Along trained curves", caption, {"loss": curves}, "place on the path", heads, zero=True
    )
    number = f"Rise of the loss {heights[best]:.3g}, {heights['straight line']:.3g} on the straight line"
    return answered("curve", answer, [figure], "yes" if lower else "no", number)


def loss_curvature(material: Material) -> Claim:
    """The spectra of the loss's Hessian at two solutions."""
    material.say("curvature at two solutions")
    train = tuple(part[:200] for part in material.train)
    spectra: dict[str, Spectrum] = {
        name: spectrum(run, train, top=5, probes=3, steps=30, tolerance=1e-2, exact=False, seed=material.seed)
        for name, run in zip(material.names[:2], material.runs, strict=False)
    }
    low = min(float(one.nodes.min()) for one in spectra.values())
    high = max(float(one.nodes.max()) for one in spectra.values())
    points = np.linspace(low - 0.05 * (high - low), high + 0.05 * (high - low), 200)
    curves: dict[str, Curve] = {name: (points, np.maximum(one.density(points), 1e-7)) for name, one in spectra.items()}
    top = max(float(values.max()) for _, values in curves.values())
    panel = curve_panel(
        curves, material.styles, ("eigenvalue", "density"), (Axis(points[0], points[-1]), Axis(1e-7, top, log=True)),
        lambda label: f"{label}: largest eigenvalue {spectra[label].values[0]:.3g}",
    )  # fmt: skip
    found = [
        f"{name}: the largest eigenvalues are {', '.join(f'{value:.3g}' for value in one.values)}, the smallest one "
        f"found {one.lowest:.3g}; the trace is {one.trace:.4g} with a standard error of {one.trace_error:.2g}."
        for name, one in spectra.items()
    ]
    shares = [float(one.weights[np.abs(one.nodes) < 0.01 * one.values[0]].sum()) for one in spectra.values()]
    few = min(shares) > 0.9
    found.insert(
        0,
        f"{'In few' if few else 'Not only in a few'}: a share of {spread(np.array(shares))} of all directions has less "
        "than a hundredth of the largest curvature.",
    )
    caption, keys = caption_of("curvature", rows=len(train[1])), legend(spectra, material.styles)
    figure = Figure("bending", "Spectra at two solutions", caption, [panel], "wide", keys)
    return answered("curvature", found, [figure])


def layer_similarity(material: Material) -> Claim:
    """CKA between the layers of two runs."""
    material.say("layers of two solutions")
    first, second = material.solutions[:2]
    names = layer_names(first, material.test)
    across = cka(first, second, material.test, debiased=True)
    own = cka(first, data=material.test, debiased=True)
    same = np.diag(across)
    nearest = int((np.nanargmax(across, 1) == np.arange(len(names))).sum()) if np.isfinite(across).all() else 0
    ends = (min(0.0, float(np.nanmin(across))), 1.0)
    parts = [(name, [""]) for name in names] if len(names) <= 20 else [("layers", names)]
    panels = [
        Panel(heat_map(matrix, parts, "CKA", ends=ends), title)
        for matrix, title in ((across, "run 1 (rows) and run 2"), (own, "run 1 with itself"))
    ]
    found = [
        f"CKA of a layer with the same layer of the other run is {spread(same)}; for {nearest} of {len(names)} layers "
        "that is also the most similar layer.",
        f"Layer by layer: {', '.join(f'{name} {value:.2f}' for name, value in zip(names, same, strict=True))}.",
    ]
    figure = Figure("layers", "Layers of two runs", caption_of("layers"), panels)
    answer = yes_or_no([nearest == len(names), nearest > 0])
    number = f"The same layer is the most similar one for {nearest} of {len(names)} layers"
    return answered("layers", found, [figure], answer, number)


def sparse_layers(material: Material) -> Claim | None:
    """How far each layer is from itself with a share of its weights: Packed-Ensembles, Proposition C.1 and Figure 5."""
    material.say("layers with a share of their weights")
    try:
        found = layer_sparsity(material.solutions[0], material.test, seed=material.seed)
    except ValueError as error:
        return answered("sparsity", [f"There is nothing to look at: {error}"])
    shown = {name: one for name, one in list(found.items())[:6]}
    styles = {name: number for number, name in enumerate(shown, 2)}
    low, high = finite_range(value for one in shown.values() for kind in COLUMNS for value in one[kind])
    panels = []
    for kind in ("measured", "bound"):
        curves: dict[str, Curve] = {name: (one["shares"], one[kind]) for name, one in shown.items()}
        axes = Axis(0, 1), Axis(max(low, 1e-5), high, log=True)
        titles = "share of weights that stay", f"{kind}, nats"
        panels.append(curve_panel(curves, styles, titles, axes, str, heading=kind.capitalize()))
    above = {name: float((one["measured"] > one["bound"]).mean()) for name, one in found.items()}
    worst = max(float((one["measured"] / one["bound"]).max()) for one in found.values())
    over = [name for name, share in above.items() if share > 0]
    answer = (
        f"Not below the bound in every layer: {', '.join(over)} exceed it, by a factor of {worst:.2g} at most; the "
        "proposition assumes that the inputs of a layer are independent, which they are not here."
        if over
        else f"Below the bound in all {len(found)} layers: the measured divergence is at most {worst:.2g} of it."
    )
    half = {name: float(np.interp(0.5, one["shares"], one["measured"])) for name, one in found.items()}
    told = ", ".join(f"{name} {value:.3g}" for name, value in half.items())
    first = f"; the first {len(shown)} of {len(found)} layers" if len(shown) < len(found) else ""
    caption = caption_of("sparsity", which=first)
    rows = [[name, *(f"{np.interp(0.5, one['shares'], one[kind]):.4g}" for kind in COLUMNS)]
            for name, one in found.items()]  # fmt: skip
    header = ["Layer", *(f"{kind} at p = 0.5" for kind in COLUMNS)]
    figure = Figure(
        "sparsity", "Layers and their sparse approximations", caption, panels, "wide", legend(shown, styles),
        header, rows,
    )  # fmt: skip
    held = yes_or_no([name not in over for name in found])
    number = f"At most {worst:.2g} of the bound"
    said = [answer, f"With half the weights, in nats: {told}."]
    return answered("sparsity", said, [figure], held, number)


COLUMNS = ("measured", "divergence", "bound")

SINUSOIDS: dict[str, Any] = {"hidden": 100, "points": 41, "epochs": 30, "lr": 0.01}
CURVE: dict[str, Any] = {"sizes": 5, "repeats": 20, "steps": 1000}
ANSWERS = {HOLDS: "yes", FAILS: "no", OPEN: "inconclusive"}
QUESTIONS = {name: [name] for name in SWEEPS if name not in ("l1", "l2")} | {"penalties": ["l1", "l2"]}


def settings_question(name: str, material: Material) -> Claim | None:
    """The sweeps of a question, on the network and the data of the runs."""
    sweeps, found = [SWEEPS[one] for one in QUESTIONS[name]], []
    for sweep in sweeps:
        measured = measure_sweep(material, sweep)
        if measured is None:
            return None
        found.append(sweep.verdict(measured))
        further = FURTHER[name](measured) if name in FURTHER else []
    says = " ".join(
        f"{' '.join(one.says for one in sweep.claims.values()).removesuffix('.')} ({sweep.source})." for sweep in sweeps
    )
    title = sweeps[0].title if len(sweeps) == 1 else "Who suffers more from a penalty on the weights?"
    number = found[0].found[1].removesuffix(".") if len(found[0].found) > 1 else ""  # the first comparison
    rows, pictures, lines = (
        [each for one in found for each in getattr(one, kind)] for kind in ("rows", "pictures", "found")
    )
    pictures += further
    verdict = ClaimVerdict(all_of([one.judgement for one in found]), lines, found[0].header, rows, pictures, number)
    return Claim("", name, title, says, verdict=_as_answer(verdict))


def _as_answer(verdict: ClaimVerdict) -> ClaimVerdict:
    return replace(verdict, judgement=ANSWERS.get(verdict.judgement, ""))


def calibration_and_overlap(found: Measured) -> list[Figure]:
    """Accuracy against confidence for every setting (Figure 14), and the overlap of drawn masks (Figures 3 and 12)."""
    calibration: dict[str, Curve] = {}
    for setting in found.settings:
        parts = np.nan_to_num([row["reliability"] for row in found.rows if row["setting"] == setting])  # seeds, 3, bins
        total = parts[:, 2].sum(0)
        kept = total >= max(1, 0.005 * total.sum())
        confidence, accuracy = ((parts[:, i] * parts[:, 2]).sum(0)[kept] / total[kept] for i in (0, 1))
        calibration[setting] = confidence, accuracy
    scales, sizes = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0), (2, 4, 8)
    drawn = mask_overlap(sizes, scales, ones=64, draws=5)
    overlap: dict[str, Curve] = {"1 / (2 S - 1)": (np.array(scales), drawn["iou_paper"])}
    overlap |= {f"N = {size}": (np.array(scales), drawn["iou"][i, :, 0]) for i, size in enumerate(sizes)}
    told = "All seeds together, for bins with at least half a percent of the rows."
    figures = []
    for name, caption, curves, axes in (
        ("calibration", told, calibration, ("confidence", "accuracy")),
        ("overlap of masks", "Drawn masks with 64 ones, and the closed form.", overlap, ("S", "IoU of two masks")),
    ):
        styles = {label: number for number, label in enumerate(curves, 2)}
        across = Axis(0, 1) if curves is calibration else Axis(1, scales[-1])
        panel = curve_panel(curves, styles, axes, (across, Axis(0, 1)), str, diagonal=curves is calibration)
        figures.append(Figure(name.split()[0], name.capitalize(), caption, [panel], legend=legend(curves, styles)))
    return figures


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


FURTHER = {"masks": calibration_and_overlap, "packing": criteria_table}


def sinusoid_question(material: Material) -> Claim | None:
    """Masksembles, Figure 4, for as many seeds as networks are trained again."""
    given = {**SINUSOIDS, "seeds": material.retrained, "say": material.say}
    if material.retrained < 2:
        return None
    verdict = _as_answer(own_data.check_transition(*own_data.measure_sinusoids(**given)))
    return answered("sinusoids", []).answered(verdict)


def bias_question(material: Material) -> Claim | None:
    """MIMO, Figure 2: bias, variance and error on the paper's curve, as members become more."""
    if material.retrained < 2:
        return None
    material.say(f"bias and variance on a curve: {CURVE['repeats']} training sets for each of {CURVE['sizes']} sizes")
    verdict = own_data.check_bias(*own_data.measure_bias(**CURVE, say=material.say))
    return answered("bias", []).answered(_as_answer(verdict))
