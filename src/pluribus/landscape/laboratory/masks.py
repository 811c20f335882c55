"""What Masksembles look at, asked about one's own network and data: overlap, number of masks, capacity, shifts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...data.catalogue import load
from ...data.corruptions import corrupt
from ...models.small import mlp
from ...report.charts.landscape import surface_chart
from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, Panel, curve_panels, finite_range, legend
from ...report.svg import Axis, Chart
from ..analyses.masks import dropout_transition, mask_grid, mask_overlap, mask_transition
from ..analyses.trained_settings import Measured
from ..material import Material
from .transitions import LINES, interval_text, measure_anew, transition_figure

SCALES = (1.1, 2.0, 3.0)
MASKS = (2, 8, 32)
CAPACITIES = (0.5, 1.0, 2.0)
MEMBERS = 4


def overlapping_masks(material: Material) -> Claim | None:
    """From one network to independent ones as masks overlap less: Masksembles, Figures 3, 9, 12, 13 and 14."""
    found = measure_anew(material, mask_transition, "masks that overlap less and less", scales=SCALES, size=MEMBERS)
    if found is None:
        return None
    names = [f"S {scale:g}" for scale in SCALES]
    figure = transition_figure(
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
        f"NLL of S = {SCALES[-1]:g} minus that of independent networks: {interval_text(gap)}.",
    ]
    claim = (
        "As masks overlap less, Masksembles go from the behaviour of one network to that of independent ones: more "
        "diverse, better calibrated (Durasov et al., Figures 9, 13 and 14)."
    )
    title = "What does the overlap of masks change?"
    return section("masks", title, claim, said, [figure, _reliability(found), _overlap()])


def many_masks(material: Material) -> Claim | None:
    """From independent networks to MC-Dropout as masks become many: Masksembles, Figure 5."""
    found = measure_anew(material, dropout_transition, "more and more masks", sizes=MASKS, scale=2.0)
    if found is None:
        return None
    names = [f"N {size}" for size in MASKS]
    figure = transition_figure(
        "dropout", "More and more masks", found, names, list(map(float, MASKS)), "N, masks", ("deep", "mc_dropout"),
        f"Scale 2, the network's widths; MC-Dropout has the rate 1/2, and {MASKS[0]} networks are independent.",
        "Masksembles",
    )  # fmt: skip
    gaps = [abs(found.difference(name, "mc_dropout", "nll").value) for name in names]
    near, last = gaps[-1] == min(gaps), found.difference(names[-1], "mc_dropout", "nll")
    said = [
        f"{'Yes' if near else 'Not in NLL'}: the NLL of {', '.join(map(str, MASKS))} masks is "
        f"{', '.join(f'{gap:.3g}' for gap in gaps)} from that of MC-Dropout.",
        f"NLL of {MASKS[-1]} masks minus that of MC-Dropout: {interval_text(last)}.",
    ]
    claim = "With more and more masks, Masksembles approach MC-Dropout (Durasov et al., Figure 5)."
    return section("dropout", "Do many masks become dropout?", claim, said, [figure])


def doubt_beyond(material: Material) -> Claim | None:
    """Entropy in the plane of two sinusoids, from one network to independent ones: Masksembles, Figure 4."""
    if material.retrained < 2:
        return None
    material.say(f"two sinusoids: {material.retrained} seeds of {SINUSOID_EPOCHS} epochs")
    data, scales = load("sinusoids"), (*SCALES, 10.0)
    train, test = data.train[:], data.test[:]
    across, up = torch.linspace(-10, 10, 41), torch.linspace(-4, 4, 17)
    grid = torch.cartesian_prod(across, up)
    found = mask_transition(
        mlp(inputs=2, num_classes=2, hidden=(100, 100)), train, test, scales=scales, size=MEMBERS,
        outside=grid[grid[:, 0].abs() > 6], seeds=material.retrained, epochs=SINUSOID_EPOCHS, lr=0.01, batch_size=64,
        further=lambda ensemble, examples: {"entropy map": ensemble.predict(grid).total.reshape(41, 17).numpy()},
    )  # fmt: skip
    names = [f"S {scale:g}" for scale in scales]
    first = {row["setting"]: row["entropy map"] for row in reversed(found.rows)}
    marks = {f"class {label}": train[0][train[1] == label][:60].numpy() for label in (0, 1)}
    styles = {name: number for number, name in enumerate(marks, 2)}
    panels = [
        Panel(
            surface_chart(across.numpy(), up.numpy(), first[setting], "entropy", ends=(0, LOG_2), contours=False,
                          rows=marks, styles=styles, titles=("x", "y")),
            LINES.get(setting, setting),
        )
        for setting in found.settings
    ]  # fmt: skip
    gain, gap = (found.difference(names[-1], other, "outside entropy") for other in ("single", "deep"))
    entropies = ", ".join(f"{found.interval(name, 'outside entropy').value:.3g}" for name in names)
    answer = "Yes" if gain.low > 0 else "No" if gain.high < 0 else "Undecided"
    said = [
        f"{answer}: where |x| is above 6 the entropy of S = {scales[-1]:g} minus that of one network is "
        f"{interval_text(gain)} nats.",
        f"With S = {', '.join(f'{scale:g}' for scale in scales)} it is {entropies}; one network has "
        f"{found.interval('single', 'outside entropy').value:.3g}, independent networks "
        f"{found.interval('deep', 'outside entropy').value:.3g}.",
        f"S = {scales[-1]:g} minus independent networks: {interval_text(gap)}.",
    ]
    caption = (
        "Entropy of each prediction over the plane, in nats, shaded from 0 to log 2 in all panels, for the first "
        "seed; the marks are some training rows. The data are the paper's, not those of the runs: two noisy sinusoids "
        f"with x from -5 to 5, a perceptron of 100 and 100 units, {MEMBERS} members."
    )
    shown = ("accuracy", "outside entropy", "outside mutual_information")
    rows = [[LINES.get(s, s), *(interval_text(found.interval(s, name)) for name in shown)] for s in found.settings]
    header = ["Setting", "Accuracy", "Entropy beyond the data", "Mutual information there"]
    figure = Figure(
        "entropy", "Entropy in the plane", caption, panels, "wide", list(zip((2, 3), marks, strict=True)), header, rows
    )
    claim = (
        "With much overlap Masksembles behave almost like one network, and with less overlap increasingly like an "
        "ensemble: the region of high entropy beyond the data grows (Durasov et al., Figure 4)."
    )
    return section("sinusoids", "Does uncertainty beyond the data grow as masks overlap less?", claim, said, [figure])


SINUSOID_EPOCHS = 30

LOG_2 = float(np.log(2))


def span_of_behaviours(material: Material) -> Claim | None:
    """Accuracy and calibration for every overlap with every capacity: Masksembles, Figure 7."""
    scales = SCALES[1:]
    found = measure_anew(
        material, mask_grid, "masks of several capacities", scales=scales, capacities=CAPACITIES, size=MEMBERS
    )
    if found is None:
        return None
    kinds = {setting: LINES.get(setting, f"capacity {setting.split('M ')[-1]}") for setting in found.settings}
    styles = {kind: number for number, kind in enumerate(dict.fromkeys(kinds.values()), 2)}
    overlap = {row["setting"]: row.get("iou", 0.2) for row in found.rows}
    panels = [Panel(_bubbles(found, figure, title, kinds, styles, overlap)) for figure, title in SPAN.items()]
    shown = {"accuracy": "Accuracy", **SPAN}
    rows = [
        [LINES.get(s, s), *(interval_text(found.interval(s, name)) for name in shown),
         f"{found.interval(s, 'parameters').value:,.0f}"]
        for s in found.settings
    ]  # fmt: skip
    best = {figure: min(found.settings, key=lambda s: found.interval(s, figure).value) for figure in SPAN}
    masked = [setting for setting in found.settings if setting not in LINES]
    near = min(masked, key=lambda s: abs(found.interval(s, "nll").value - found.interval("deep", "nll").value))
    gap = found.difference(near, "deep", "nll")
    said = [
        "Best here: " + "; ".join(f"{title}: {LINES.get(best[figure], best[figure])}" for figure, title in SPAN.items())
        + ".",
        f"Of the masks, {near} is nearest to independent networks in NLL: {interval_text(gap)} from them, "
        f"with {found.interval(near, 'parameters').value:,.0f} parameters; they have "
        f"{found.interval('deep', 'parameters').value:,.0f}.",
    ]  # fmt: skip
    caption = (
        "Better is to the lower right. A circle is larger the more the masks overlap; capacities are the share of the "
        f"network's widths that each mask keeps. {MEMBERS} members, means over {material.retrained} seeds; vertical "
        "lines are 95 % intervals."
    )
    header = ["Setting", *shown.values(), "Parameters"]
    figure = Figure(
        "span", "Calibration against accuracy", caption, panels, "wide", legend(styles, styles), header, rows
    )
    claim = (
        "Varying overlap and capacity, Masksembles span the behaviours from one network through MC-Dropout to "
        "independent networks, and come as close to the last as the budget allows (Durasov et al., Figure 7)."
    )
    return section("span", "What range of behaviours do overlap and capacity give?", claim, said, [figure])


SPAN = {"ece": "ECE", "nll": "NLL"}


def thin_members(material: Material) -> Claim | None:
    """Calibration against the severity of corruptions, in a network that keeps its widths: Masksembles, Figure 8."""
    if material.images is None or not material.corruptions:
        return None
    shifts = {severity: [_shifted(material, name, severity) for name in material.corruptions]
              for severity in material.severities}  # fmt: skip
    found = measure_anew(
        material, mask_transition, "masks in a network that keeps its widths", scales=SCALES, size=MEMBERS,
        capacity=None, shifts=shifts,
    )  # fmt: skip
    if found is None:
        return None
    at, last = np.array([0, *material.severities]), f"at {material.severities[-1]}"
    styles = {LINES.get(setting, setting): number for number, setting in enumerate(found.settings, 2)}
    panels = [_against_severity(found, figure, title, at, styles) for figure, title in SHIFTED.items()]
    gain, gap = (found.difference(f"S {SCALES[-1]:g}", end, f"ece {last}") for end in ("single", "deep"))
    answer = "Yes" if gain.high < 0 else "No, worse" if gain.low > 0 else "Undecided"
    said = [
        f"{answer}: at severity {at[-1]} the ECE of S = {SCALES[-1]:g} minus that of one network is "
        f"{interval_text(gain)}.",
        f"The same minus that of independent networks: {interval_text(gap)}.",
    ]
    columns = {
        f"{title}, severity {level}": _column(figure, level) for figure, title in SHIFTED.items() for level in at
    }
    rows = [[LINES.get(s, s), *(interval_text(found.interval(s, name)) for name in columns.values())]
            for s in found.settings]  # fmt: skip
    what = " and ".join(name.replace("_", " ") for name in material.corruptions)
    caption = (
        f"Under {what}; severity 0 is the test data as they are. The network keeps its widths, so that members get "
        f"thinner as S grows; {MEMBERS} members, means over {material.retrained} seeds."
    )
    figure = Figure("thin", "Under a corruption", caption, panels, "wide", legend(styles, styles),
                    ["Setting", *columns], rows)  # fmt: skip
    claim = (
        "In a network that keeps its widths, less overlap improves calibration under corruptions towards that of "
        "independent networks (Durasov et al., Figure 8)."
    )
    title = "Are thinner members better calibrated under a corruption?"
    return section("thin", title, claim, said, [figure])


SHIFTED = {"ece": "ECE", "accuracy": "accuracy"}


# ---------------------------------------------------------------- helpers


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
    caption = "Drawn masks with 64 ones, and the closed form: the overlap depends only on S, whatever N is."
    header = ["S", *curves]
    return Figure("overlap", "Overlap of masks", caption, panels, "wide", legend(curves, styles), header, rows)


def _bubbles(
    found: Measured, figure: str, title: str, kinds: Mapping[str, str], styles: Mapping[str, int],
    overlap: Mapping[str, float],
) -> str:  # fmt: skip
    """Every setting by its accuracy and a figure, larger the more its masks overlap."""
    spots = {s: (found.interval(s, "accuracy"), found.interval(s, figure)) for s in found.settings}
    x = Axis(*finite_range(one[0].value for one in spots.values()), room=0.1)
    y = Axis(*finite_range(end for _, one in spots.values() for end in one))
    chart = Chart(x, y).axes("accuracy", title)
    for setting, (across, up) in spots.items():
        style, name = styles[kinds[setting]], LINES.get(setting, setting)
        chart.line([(across.value, up.low), (across.value, up.high)], style, "whisker thin")
        hint = f"{name}: accuracy {interval_text(across)}, {title} {interval_text(up)}"
        chart.circle(across.value, up.value, style, 18 * overlap[setting] ** 0.5, hint)
        chart.mark(across.value, up.value, style, hint, 3.5)
    return chart.svg("; ".join(f"{s}: accuracy {a.value:.3g}, {title} {b.value:.3g}" for s, (a, b) in spots.items()))


def _shifted(material: Material, name: str, severity: int) -> tuple[Tensor, Tensor]:
    assert material.images is not None
    x, y = material.images
    changed = corrupt(x, name, severity)
    return (changed if material.normalise is None else material.normalise(changed)), y


def _column(figure: str, severity: int) -> str:
    return f"{figure} at {severity}" if severity else figure


def _against_severity(found: Measured, figure: str, title: str, at: np.ndarray, styles: dict[str, int]) -> Panel:
    curves: dict[str, Curve] = {
        LINES.get(s, s): (at, np.array([found.interval(s, _column(figure, int(level))).value for level in at]))
        for s in found.settings
    }
    y = Axis(*finite_range(value for _, own in curves.values() for value in own))
    panels, _ = curve_panels(
        curves, styles, ("severity", title), (Axis(0, float(at[-1]), whole=True), y),
        lambda label: f"{label}: {', '.join(f'{value:.3g}' for value in curves[label][1])}",
    )  # fmt: skip
    return panels[0]
