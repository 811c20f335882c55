"""What makes runs differ, and whether one chain finds what several runs find: networks that are trained anew."""

from __future__ import annotations

import numpy as np

from ...report.charts.landscape import strip_chart
from ...report.figure import Curve, Figure, Panel, curve_panels, finite_range, legend
from ...report.questions import Question
from ...report.svg import Axis
from ..similarity import disagreement
from ..studies.randomness import KINDS, Randomness, chain_against_runs, randomness
from .material import Material, spread

RATES = (0.25, 1.0, 4.0)  # of the rate that the runs were trained with

CYCLES = 3  # of a chain, as in the paper


def sources_of_difference(material: Material) -> Question | None:
    """How different runs become by initialisation, by shuffling, by both and by neither: Figure S4, and Table 7."""
    training, runs = material.training, material.retrained
    if training is None or runs < 2:
        return None
    rates = [factor * training.lr for factor in RATES]
    epochs = max(training.epochs // 2, 1)
    material.say(f"{runs} runs of {epochs} epochs for each of {len(KINDS)} kinds at {len(rates)} learning rates")
    found = randomness(
        training.build, material.train, material.test, runs=runs, rates=rates, outside=material.outside,
        seed=material.seed, **training.options(epochs),
    )  # fmt: skip
    styles = {label: number for number, label in enumerate(LABELS.values(), 2)}
    curves: dict[str, Curve] = {
        label: (np.array(rates), np.array([found.mean(kind, lr) for lr in rates])) for kind, label in LABELS.items()
    }
    low, high = finite_range(value for _, own in curves.values() for value in own)
    axes = Axis(rates[0], rates[-1], log=True), Axis(min(low, 0.0), high)
    panels, _ = curve_panels(
        curves, styles, ("learning rate", "disagreement of two runs"), axes,
        lambda label: f"{label}: {', '.join(f'{value:.3g}' for value in curves[label][1])}",
    )  # fmt: skip
    caption = (
        f"Share of test rows on which two runs give different labels, by what differs between them: means over the "
        f"pairs of {runs} runs of {epochs} epochs at each rate. {found.note}"
    )
    figure = Figure(
        "randomness", "What runs differ in", caption, panels, "wide", legend(curves, styles), *_table(found)
    )
    return Question("randomness", "What makes runs differ?", RANDOM_CLAIM, _judge(found, training.lr, rates), [figure])


LABELS = {"both": "initialisation and order", "initialisation": "initialisation", "batches": "order of batches",
          "neither": "nothing"}  # fmt: skip

RANDOM_CLAIM = (
    "Initialisation and the order of batches are complementary sources of difference; initialisation is the stronger "
    "one, and the order counts for more at high learning rates (Fort et al., Figure S4). For the quality of the "
    "ensemble, it hardly matters which (Laurent et al., Packed-Ensembles, Table 7)."
)


def one_chain(material: Material) -> Question | None:
    """Disagreement between the cycles of a chain of cSG-MCMC, and between independent runs: Figure S5."""
    training, chains = material.training, material.retrained
    if training is None or chains < 2:
        return None
    epochs, rows = CYCLES * max(training.epochs // 2, 1), len(material.train[1])
    material.say(f"{chains} chains of cSG-MCMC of {CYCLES} cycles in {epochs} epochs")
    found = chain_against_runs(
        training.build(), material.train, material.test, chains=chains, cycles=CYCLES, epochs=epochs,
        temperature=1 / rows, batch_size=training.batch_size, seed=material.seed,
    )  # fmt: skip
    apart = disagreement(material.solutions, data=material.test)[np.triu_indices(len(material.runs), 1)]
    groups = {"cycles of one chain": found["within"], "different chains": found["between"], "the runs": apart.tolist()}
    styles = {name: number for number, name in enumerate(groups, 2)}
    panel = Panel(strip_chart(groups, styles, "disagreement"))
    caption = (
        f"Share of test rows on which two networks give different labels: the ends of {CYCLES} cycles of one chain "
        f"(the mean of each of {chains} chains), the ends of different chains, and the runs of this page. Chains "
        f"have {epochs} epochs and temperature 1/N, as in the authors' code, which the paper used. Their "
        f"networks reach an accuracy of {spread(np.array(found['accuracy']), percent=True)}."
    )
    table = [[name, *(f"{f(own):.4f}" for f in (np.mean, np.min, np.max))] for name, own in groups.items()]
    header = ["Networks", "Mean disagreement", "Least", "Largest"]
    figure = Figure("chain", "Cycles against runs", caption, [panel], "wide", [], header, table)
    title = "Does one cyclic run find as much as several runs?"
    return Question("chain", title, CHAIN_CLAIM, _compare(*map(np.array, groups.values())), [figure])


CHAIN_CLAIM = (
    "The cycles of one run of cSG-MCMC give less diverse functions than independent initialisations do "
    "(Fort et al., Figure S5)."
)


# ---------------------------------------------------------------- helpers


def _judge(found: Randomness, lr: float, rates: list[float]) -> list[str]:
    by_kind = {kind: found.mean(kind, lr) for kind in KINDS}
    order = sorted(("initialisation", "batches"), key=lambda kind: -by_kind[kind])
    least, most = (found.mean("batches", rate) for rate in (rates[0], rates[-1]))
    said = ", ".join(f"{100 * value:.1f} % ({LABELS[kind]})" for kind, value in by_kind.items())
    answer = " more than the ".join(LABELS[kind] for kind in order).capitalize()
    lines = [
        f"{answer}: at the rate {lr:g} two runs that differ in nothing else disagree on {said} of the test rows.",
        f"From the order of batches alone, two runs disagree on {100 * least:.1f} % at the rate {rates[0]:g} and on "
        f"{100 * most:.1f} % at {rates[-1]:g}.",
    ]
    rows = {row["kind"]: row for row in found.rows if row["lr"] == lr}
    if all("nll" in row for row in rows.values()):
        told = ", ".join(f"{LABELS[kind]} {row['nll']:.3f}" for kind, row in rows.items())
        lines.append(f"NLL of the ensembles of these runs: {told}.")
    return lines


def _table(found: Randomness) -> tuple[list[str], list[list[str]]]:
    """The columns of Table 7 of Packed-Ensembles, as far as they were measured."""
    titles = {
        "disagreement": "Disagreement", "accuracy": "Accuracy", "nll": "NLL", "ece": "ECE",
        "mutual_information": "Mutual information", "aupr": "AUPR OOD", "outside": "Mutual information on OOD data",
    }  # fmt: skip
    known = {key: title for key, title in titles.items() if all(key in row for row in found.rows)}
    rows: list[list[str]] = []
    for row in found.rows:
        rows.append([LABELS[row["kind"]], f"{row['lr']:g}", *(f"{row[key]:.4f}" for key in known)])
    return ["What differs", "Learning rate", *known.values()], rows


def _compare(cycles: np.ndarray, chains: np.ndarray, runs: np.ndarray) -> list[str]:
    ways = {"No, not in any chain": cycles.max() < chains.min(), "No": cycles.mean() < chains.mean(), "Yes": True}
    answer = next(words for words, holds in ways.items() if holds)
    return [
        f"{answer}: the cycles of one chain disagree on {spread(cycles, percent=True)} of the test rows, different "
        f"chains on {spread(chains, percent=True)}.",
        f"The runs of this page disagree on {spread(runs, percent=True)}.",
    ]
