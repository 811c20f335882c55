"""Checks of experiments that are repeated with several seeds: figures with bars, told by intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...landscape.studies.findings import CLAIMS, Finding
from ...report.figure import Figure
from ..drawing import intervals_figure
from ..experiments.stored_parts import Stored
from ..verdicts import FAILS, HOLDS, OPEN, ClaimVerdict, all_of, count_judgements, equal, show_interval

WORDS = {"holds": HOLDS, "does not hold": FAILS, "open": OPEN}

Asked = tuple[str, str, float, bool | None]  # claim, what the figure is, bar; below it, above, or None: within it

Found = Mapping[str, Stored]

TITLES_OF_SUBSPACES = {
    "random": "random",
    "dropout": "dropout",
    "diagonal": "diagonal Gaussian",
    "low_rank": "low-rank Gaussian",
}

FORT: dict[str, Asked] = {
    **CLAIMS,
    **{
        f"stays_{name}": (
            f"{title} samples stay near their own run",
            "ratio of disagreement, nearest other solution / own solution", 1.0, False,
        )
        for name, title in TITLES_OF_SUBSPACES.items()
    },
    "own": (
        "networks of the second half of training are much more like their own optimum than like the other",
        "ratio of disagreement, other optimum / own optimum", 2.0, False,
    ),
    **{
        f"apart_{name}": (
            f"independent solutions have a better trade-off than {title} samples",
            "share of the attainable diversity at their accuracy, independent - samples", 0.0, False,
        )
        for name, title in TITLES_OF_SUBSPACES.items()
    },
    "shifted": (
        "ensembles are more accurate than the best subspace under corruptions", "difference of accuracy", 0.0, False,
    ),
    "random_best": (
        "random subspaces are better than dropout and diagonal ones", "NLL, the better of these - random", 0.0, False,
    ),
    "random_both": (
        "random subspaces make an ensemble better", "NLL, ensemble - ensemble of random subspaces", 0.0, False,
    ),
    "similar": (
        "the losses of two optima are similar", "their difference / height of the ridge between them", 0.25, True,
    ),
    "different": (
        "two optima are different functions", "disagreement / error", 0.5, False,
    ),
    "fit": ("a family with one parameter fits subspace samples", "share of variance explained", 0.75, False),
    "exponent": ("wrong labels flip more easily than right ones", "exponent", 1.0, True),
    "harder": (
        "on a harder problem independent solutions stand out more from the best subspace",
        "share of the attainable diversity, independent - best subspace, harder - easier problem", 0.0, False,
    ),
}  # fmt: skip

CHANCE: dict[str, Asked] = {
    "initialisation": ("initialisation adds diversity", "disagreement by it alone", 0.01, False),
    "batches": ("shuffling adds diversity", "disagreement by it alone", 0.01, False),
    "dominant": (
        "initialisation adds more than shuffling", "ratio of disagreement, initialisation / shuffling", 1.0, False,
    ),
    "higher": (
        "shuffling adds more at higher rates", "ratio of disagreement by shuffling, highest / lowest rate", 1.0, False,
    ),
    "runs": (
        "independent runs are more diverse than the cycles of a chain", "ratio of disagreement, runs / cycles", 1.0,
        False,
    ),
    **{
        f"enough_{name}": (
            f"{title} are enough for diversity", "ratio of mutual information, alone / both", 0.5, False,
        )
        for name, title in (("initialisation", "different initialisations"), ("batches", "different batches"))
    },
    **{
        f"{figure}_{name}": (f"{title} alone are neither better nor worse than both", f"loss of {figure}", bar, None)
        for name, title in (("initialisation", "different initialisations"), ("batches", "different batches"))
        for figure, bar in (("accuracy", 0.01), ("aupr", 0.01))
    },
}  # fmt: skip

MEMBERS: dict[str, Asked] = {
    "mimo_barrier": ("MIMO's subnetworks are in distinct basins", "loss above the chord between them", 0.1, False),
    "multihead_barrier": ("multihead subnetworks share one basin", "loss above the chord between them", 0.1, True),
    "disagree": (
        "MIMO's subnetworks disagree more", "ratio of disagreement, MIMO / multihead", 2.0, False,
    ),
    "sparse_accuracy": (
        "at the same sparsity, more subnetworks lose more accuracy", "loss of accuracy, largest M - M = 1", 0.0, False,
    ),
    "sparse_likelihood": (
        "at the same sparsity, more subnetworks lose more log-likelihood", "loss, largest M - M = 1", 0.0, False,
    ),
    "dropout_accuracy": (
        "with many masks accuracy is MC-Dropout's", "difference of accuracy", 0.02, None,
    ),
    "dropout_information": (
        "with many masks members differ as much as draws of MC-Dropout",
        "log ratio of mutual information", 0.5, None,
    ),
    "deep_accuracy": (
        "with masks that do not overlap accuracy is that of Deep Ensembles", "difference of accuracy", 0.02, None,
    ),
    "deep_information": (
        "with masks that do not overlap members differ as much as those of Deep Ensembles",
        "log ratio of mutual information", 0.5, None,
    ),
    "selection": (
        "selecting the ensemble's epoch is as accurate as selecting each member's", "difference of accuracy",
        0.01, None,
    ),
    "selection_nll": (
        "selecting the ensemble's epoch is as likely as selecting each member's", "NLL, ensemble - member", 0.01, None,
    ),
}  # fmt: skip


def check_seeds(
    asked: Mapping[str, Asked],
    *names: str,
    pictures: Callable[[Found], list[Figure]] = lambda found: [],
    printed: Mapping[str, str] | None = None,
    derive: Callable[[Found], Found] = lambda found: found,
) -> Callable[[Found, Mapping[str, Any]], ClaimVerdict]:
    """The check of an item by figures of every seed: all of them must be on the right side of their bars.

    Args:
        asked: what the figures mean, and their bars
        names: those that decide
        pictures: what is drawn beside the figures
        printed: what the paper prints for a figure
        derive: from the parts that were computed to one for each seed
    """

    def check(found: Found, published: Mapping[str, Any]) -> ClaimVerdict:
        seeds = derive(found)
        told = {name: finding(asked[name], seeds, name) for name in names}
        if missing := [asked[name][0] for name, one in told.items() if not one.values]:
            return ClaimVerdict(OPEN, [f"Not measured: {'; '.join(missing)}."])
        judgements = [judge_finding(one, asked[name][3]) for name, one in told.items()]
        sides = {name: SIDES[asked[name][3]] for name in names}
        said = [count_judgements(judgements, "finding")] + [
            _sentence(one, sides[name], judgement)
            for (name, one), judgement in zip(told.items(), judgements, strict=True)
        ]
        table = [
            [one.claim, one.figure, f"{sides[name]} {one.bar:g}", (printed or {}).get(name, "–"),
             show_interval(one.interval), judgement, ", ".join(f"{value:.3g}" for value in one.values)]
            for (name, one), judgement in zip(told.items(), judgements, strict=True)
        ]  # fmt: skip
        header = ["finding", "figure", "asked for", "paper", "ours, with its interval over seeds", "", "each seed"]
        return ClaimVerdict(all_of(judgements), said, header, table, [*pictures(found), *_intervals(told, sides)])

    return check


SIDES = {True: "below", False: "above", None: "within"}


def finding(asked: Asked, seeds: Found, name: str) -> Finding:
    """The figure of every seed that has it, with the bar it is judged by."""
    values = [part.figures["values"][name] for part in seeds.values() if name in part.figures.get("values", {})]
    claim, figure, bar, below = asked
    return Finding(claim, figure, values, bar, bool(below))


def judge_finding(one: Finding, below: bool | None) -> str:
    """Whether the figure is on its side of the bar, or within it on both sides."""
    return equal(one.interval, one.bar) if below is None else WORDS[one.verdict]


def _sentence(one: Finding, side: str, judgement: str) -> str:
    return (
        f"{one.claim[0].upper()}{one.claim[1:]}: {one.figure} {show_interval(one.interval)}, where {side} {one.bar:g} "
        f"is required: {judgement}."
    )


def _intervals(told: Mapping[str, Finding], sides: Mapping[str, str]) -> Sequence[Figure]:
    """One picture for figures of each kind; where the claim holds is shaded."""
    kinds: dict[tuple[str, float, str], dict[str, Any]] = {}
    for name, one in told.items():
        kinds.setdefault((one.figure, one.bar, sides[name]), {})[one.claim] = one.interval
    drawn = []
    for number, ((figure, bar, side), found) in enumerate(kinds.items()):
        ends = [bar, *(end for interval in found.values() for end in (interval if interval.known else interval[:1]))]
        room = 0.05 * (max(ends) - min(ends))
        low, high = {"below": (min(ends) - room, bar), "above": (bar, max(ends) + room), "within": (-bar, bar)}[side]
        caption = f"{figure[0].upper()}{figure[1:]}, with intervals over seeds. Shaded: where the claim holds."
        drawn.append(
            intervals_figure(f"findings-{number}", "The findings", caption, {"figure": found}, band=(low, high))
        )
    return drawn


def harder_minus_easier(found: Found) -> Found:
    """For each seed how much more independent solutions stand out on the harder problem."""
    gaps = {
        name: part.figures["values"]["apart"]
        for name, part in found.items()
        if "apart" in part.figures.get("values", {})
    }
    seeds = {}
    for name, gap in gaps.items():
        hard = next((other for other in (f"hard-{name[7:]}", name[7:]) if other in gaps), None)
        if name.startswith("easier-") and hard:
            seeds[name] = Stored({"values": {"harder": gaps[hard] - gap}})
    return seeds
