"""What Masksembles and Packed-Ensembles look at, asked about one's own network and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...report.figure import Curve, Figure, Panel, Styles, curve_panels, finite_range, legend, room_for_ticks
from ...report.questions import Question
from ...report.svg import Axis, Chart
from ..analyses.masks import dropout_transition, mask_overlap, mask_transition
from ..analyses.packing import ood_criteria, packing
from ..analyses.sparsity import layer_sparsity
from ..analyses.trained_settings import Measured
from .material import Material

SCALES = (1.1, 2.0, 3.0)
MASKS = (2, 8, 32)
ALPHAS = (1, 2, 4)
MEMBERS = 4

TITLES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "auroc msp": "AUROC, outside",
          "disagreement_by_error": "disagreement / error"}  # fmt: skip

LINES = {"deep": "independent networks", "single": "one network", "mc_dropout": "MC-Dropout"}


def sparse_layers(material: Material) -> Question | None:
    """How far each layer is from itself with a share of its weights: Packed-Ensembles, Proposition C.1 and Figure 5."""
    material.say("layers with a share of their weights")
    try:
        found = layer_sparsity(material.solutions[0], material.test, seed=material.seed)
    except ValueError as error:
        return Question("sparsity", SPARSE, SPARSE_CLAIM, [f"There is nothing to look at: {error}"])
    shown = {name: one for name, one in list(found.items())[:6]}
    styles = {name: number for number, name in enumerate(shown, 2)}
    low, high = finite_range(value for one in shown.values() for kind in COLUMNS for value in one[kind])
    panels = []
    for kind in ("measured", "bound"):
        curves: dict[str, Curve] = {name: (one["shares"], one[kind]) for name, one in shown.items()}
        pair, _ = curve_panels(
            curves, styles, ("share of weights that stay", f"{kind}, nats"),
            (Axis(0, 1), Axis(max(low, 1e-5), high, log=True)), str,
        )  # fmt: skip
        panels.append(Panel(pair[0].svg, kind.capitalize()))
    above = {name: float((one["measured"] > one["bound"]).mean()) for name, one in found.items()}
    worst = max(float((one["measured"] / one["bound"]).max()) for one in found.values())
    over = [name for name, share in above.items() if share > 0]
    answer = (
        f"Not below the bound in every layer: {', '.join(over)} exceed it, by a factor of {worst:.2g} at most; the "
        "proposition takes the inputs of a layer as independent, which they are not here."
        if over
        else f"Below the bound in all {len(found)} layers: what was measured is at most {worst:.2g} of it."
    )
    half = {name: float(np.interp(0.5, one["shares"], one["measured"])) for name, one in found.items()}
    told = ", ".join(f"{name} {value:.3g}" for name, value in half.items())
    caption = (
        "Divergence of a layer's outputs from those with a drawn share of its weights, between Gaussians with their "
        "moments, on test rows; and the bound from the mean and variance of each input. Means over the units of a "
        f"layer{f'; the first {len(shown)} of {len(found)} layers' if len(shown) < len(found) else ''}."
    )
    rows = [
        [name, *(f"{np.interp(p, one['shares'], one[kind]):.4g}" for p in (0.25, 0.5) for kind in COLUMNS)]
        for name, one in found.items()
    ]
    header = ["Layer", *(f"{kind} at p = {p:g}" for p in (0.25, 0.5) for kind in COLUMNS)]
    figure = Figure(
        "sparsity", "Layers and their sparse approximations", caption, panels, "wide", legend(shown, styles),
        header, rows,
    )  # fmt: skip
    return Question("sparsity", SPARSE, SPARSE_CLAIM, [answer, f"With half the weights, in nats: {told}."], [figure])


COLUMNS = ("measured", "divergence", "bound")

SPARSE = "How far is a layer from itself with a share of its weights?"

SPARSE_CLAIM = (
    "The divergence of a layer's outputs from those of its sparse approximation is bounded, and the bound falls fast "
    "as more weights stay (Laurent et al., Packed-Ensembles, Proposition C.1 and Figure 5)."
)


def overlapping_masks(material: Material) -> Question | None:
    """From one network to independent ones as masks overlap less: Masksembles, Figures 3, 9, 12, 13 and 14."""
    found = _measure(material, mask_transition, "masks that overlap less and less", scales=SCALES, size=MEMBERS)
    if found is None:
        return None
    names = [f"S {scale:g}" for scale in SCALES]
    figure = _transition(
        "masks", "Less and less overlap", found, names, list(SCALES), "S", ("single", "deep"),
        f"{MEMBERS} members; every mask keeps the network's widths, and layers grow.", "Masksembles",
    )  # fmt: skip
    gap = found.difference(names[-1], "deep", "nll")
    apart = [found.interval(name, "disagreement_by_error").value for name in names]
    rising = all(first < second for first, second in zip(apart, apart[1:], strict=False))
    said = [
        f"{'Yes' if rising else 'Not step by step'}: from S = {SCALES[0]:g} to {SCALES[-1]:g} disagreement over error "
        f"goes {', '.join(f'{value:.3g}' for value in apart)}; independent networks have "
        f"{found.interval('deep', 'disagreement_by_error').value:.3g}.",
        f"NLL of S = {SCALES[-1]:g} minus that of independent networks: {_told(gap)}.",
    ]
    claim = (
        "As masks overlap less, Masksembles go from the behaviour of one network to that of independent ones: more "
        "diverse, better calibrated (Durasov et al., Figures 9, 13 and 14)."
    )
    title = "What does the overlap of masks change?"
    return Question("masks", title, claim, said, [figure, _reliability(found), _overlap()])


def many_masks(material: Material) -> Question | None:
    """From independent networks to MC-Dropout as masks become many: Masksembles, Figure 5."""
    found = _measure(material, dropout_transition, "more and more masks", sizes=MASKS, scale=2.0)
    if found is None:
        return None
    names = [f"N {size}" for size in MASKS]
    figure = _transition(
        "dropout", "More and more masks", found, names, list(map(float, MASKS)), "N, masks", ("deep", "mc_dropout"),
        f"Scale 2, the network's widths; MC-Dropout has the rate 1/2, and {MASKS[0]} networks are independent.",
        "Masksembles",
    )  # fmt: skip
    gaps = [abs(found.difference(name, "mc_dropout", "nll").value) for name in names]
    near, last = gaps[-1] == min(gaps), found.difference(names[-1], "mc_dropout", "nll")
    said = [
        f"{'Yes' if near else 'Not in NLL'}: the NLL of {', '.join(map(str, MASKS))} masks is "
        f"{', '.join(f'{gap:.3g}' for gap in gaps)} from that of MC-Dropout.",
        f"NLL of {MASKS[-1]} masks minus that of MC-Dropout: {_told(last)}.",
    ]
    claim = "As masks become many, Masksembles approach MC-Dropout (Durasov et al., Figure 5)."
    return Question("dropout", "Do many masks become dropout?", claim, said, [figure])


def packed_settings(material: Material) -> Question | None:
    """Packed-Ensembles for several alpha, and criteria for outside data: Figures 6 and 7, Tables 5 and 6."""
    found = _measure(material, packing, "packed networks", alphas=ALPHAS, sizes=(MEMBERS,))
    if found is None:
        return None
    names = [f"alpha {alpha:g}, gamma 1, M {MEMBERS}" for alpha in ALPHAS]
    figures = [
        _transition(
            "packing",
            "Wider and wider members",
            found,
            names,
            list(map(float, ALPHAS)),
            "alpha",
            ("single", "deep"),
            f"{MEMBERS} members, gamma 1.",
            "Packed-Ensembles",
        )  # fmt: skip
    ]
    best = max(ALPHAS, key=lambda alpha: found.interval(f"alpha {alpha:g}, gamma 1, M {MEMBERS}", "accuracy").value)
    said = [
        f"The accuracy is largest at alpha = {best:g}; at alpha = 2 it is "
        f"{_told(found.difference(names[1], 'deep', 'accuracy'))} from that of independent networks, and "
        f"{_told(found.difference(names[1], 'single', 'accuracy'))} from that of one.",
    ]
    if material.outside is not None:
        criteria = ood_criteria(found, "auroc")
        header = ["Setting", *(name.replace("_", " ") for name in next(iter(criteria.values())))]
        rows = [[setting, *(_told(one) for one in own.values())] for setting, own in criteria.items()]
        caption = "How well each criterion tells outside from test rows: AUROC with its interval (Table 6)."
        figures.append(Figure("criteria", "Criteria for outside data", caption, header=header, rows=rows))
        wins = {setting: max((one.value, name) for name, one in own.items())[1] for setting, own in criteria.items()}
        said.append(
            "Best criterion for outside data: "
            + "; ".join(f"{setting}: {name.replace('_', ' ')}" for setting, name in wins.items())
            + "."
        )
    claim = (
        "Packed-Ensembles with alpha = 2 match independent networks; larger alpha help little once members are wide "
        "enough (Laurent et al., Figures 6 and 7, Table 5)."
    )
    return Question("packing", "How wide must packed members be?", claim, said, figures)


# ---------------------------------------------------------------- helpers


def _measure(material: Material, measure: Any, what: str, **settings: Any) -> Measured | None:
    """What an analysis finds with the network and data of the runs, for as many seeds as are trained anew."""
    training = material.training
    if training is None or material.retrained < 2:
        return None
    epochs = max(training.epochs // 2, 1)
    material.say(f"{what}: {material.retrained} seeds of {epochs} epochs")
    how = {key: getattr(training, key) for key in ("lr", "batch_size", "optimizer", "schedule")}
    found: Measured = measure(
        training.build(), material.train, material.test, outside=material.outside, seeds=material.retrained,
        progress=material.say, epochs=epochs, **how, **settings,
    )  # fmt: skip
    return found


def _transition(
    anchor: str, title: str, found: Measured, names: Sequence[str], at: Sequence[float], axis: str,
    ends: Sequence[str], about: str, method: str,
) -> Figure:  # fmt: skip
    """A panel for each figure: settings of a method with intervals, and the methods at both ends as lines."""
    styles = {name: number for number, name in enumerate([method, *(LINES[end] for end in ends)], 2)}
    known = {name: words for name, words in TITLES.items() if name in found.figures}
    panels = [Panel(_chart(found, name, words, names, at, axis, ends, styles)) for name, words in known.items()]
    seeds = len(found.values(names[0], "nll"))
    caption = f"{about} Means over {seeds} seeds; upright lines are 95 % intervals."
    rows = [
        [str(setting), *(_told(found.interval(setting, name)) for name in known),
         f"{found.interval(setting, 'parameters').value:,.0f}"]
        for setting in found.settings
    ]  # fmt: skip
    header = ["Setting", *known.values(), "parameters"]
    return Figure(anchor, title, caption, panels, "wide", legend(styles, styles), header, rows)


def _chart(
    found: Measured, figure: str, title: str, names: Sequence[str], at: Sequence[float], axis: str,
    ends: Sequence[str], styles: Styles,
) -> str:  # fmt: skip
    rows, method = found.curve(figure, names), next(iter(styles))
    levels = {end: found.interval(end, figure) for end in ends}
    y = Axis(*finite_range([*rows.flatten().tolist(), *(v for one in levels.values() for v in one)]))
    chart = Chart(Axis(at[0], at[-1], log=at[-1] > 4, room=0.08), y, margin=(room_for_ticks(y), 14, 14, 44))
    chart.axes(axis, title)
    for end, level in levels.items():
        style, name = styles[LINES[end]], LINES[end]
        chart.line([(at[0], level.value), (at[-1], level.value)], style)
        chart.mark(at[-1], level.value, style, f"{name}: {_told(level)}", 3.5)
    chart.line(zip(at, rows[:, 0], strict=True), styles[method])
    for x, (value, low, high) in zip(at, rows, strict=True):
        chart.line([(x, low), (x, high)], styles[method], "whisker")
        chart.mark(x, value, styles[method], f"{method}, {axis} = {x:g}: {value:.4g} [{low:.4g}, {high:.4g}]")
    told = "; ".join(f"{axis} = {x:g}: {value:.4g}" for x, value in zip(at, rows[:, 0], strict=True))
    return chart.svg(f"{title} against {axis}: {told}")


def _reliability(found: Measured) -> Figure:
    """Accuracy against confidence for every setting, all seeds together (Figure 14)."""
    curves: dict[str, Curve] = {}
    for setting in found.settings:
        parts = np.array([row["reliability"] for row in found.rows if row["setting"] == setting])  # seeds, 3, bins
        confidence, accuracy, count = np.nan_to_num(parts[:, 0]), np.nan_to_num(parts[:, 1]), parts[:, 2]
        total = count.sum(0)
        kept = total >= max(1, 0.005 * total.sum())
        curves[LINES.get(setting, setting)] = (
            (confidence * count).sum(0)[kept] / total[kept], (accuracy * count).sum(0)[kept] / total[kept],
        )  # fmt: skip
    styles = {name: number for number, name in enumerate(curves, 2)}
    panels, layout = curve_panels(
        curves, styles, ("confidence", "accuracy"), (Axis(0, 1), Axis(0, 1)), lambda label: label, diagonal=True
    )
    caption = "Accuracy against confidence, all seeds together, for bins with at least half a percent of the rows."
    return Figure("calibration", "Calibration", caption, panels, layout, legend(curves, styles))


def _overlap() -> Figure:
    """Overlap of drawn masks beside the closed form (Figures 3 and 12)."""
    scales = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
    sizes = (2, 4, 8)
    found = mask_overlap(sizes, scales, ones=64, draws=5)
    curves: dict[str, Curve] = {"1 / (2 S - 1)": (np.array(scales), found["iou_paper"])}
    curves |= {f"N = {size}": (np.array(scales), found["iou"][i, :, 0]) for i, size in enumerate(sizes)}
    styles = {name: number for number, name in enumerate(curves, 2)}
    panels, _ = curve_panels(
        curves, styles, ("S", "IoU of two masks"), (Axis(1, scales[-1]), Axis(0, 1)), lambda label: label
    )
    rows = [
        [f"{scale:g}", f"{found['iou_paper'][j]:.3f}", *(f"{found['iou'][i, j, 0]:.3f}" for i in range(len(sizes)))]
        for j, scale in enumerate(scales)
    ]
    caption = "Drawn masks with 64 ones and the closed form: the overlap depends on S alone, whatever N is."
    header = ["S", *curves]
    return Figure("overlap", "Overlap of masks", caption, panels, "wide", legend(curves, styles), header, rows)


def _told(found: Any) -> str:
    return f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"
