"""One item from its experiment to its verdict and its page; and the page of all verdicts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.atomic import refuse_links
from .._common.names import say_unknown
from .._common.signed_files import read_signed_json, write_signed_json
from .._common.untrusted import check_shape
from ..report.claims import Claim, ClaimVerdict, claims_page
from ..results.judgements import FAILS, HOLDS, OPEN, plural
from .parts import SCALES, Context
from .registry import CLAIMS, PAPERS

RECORD = {
    **{"item": str, "scale": str, "judgement": str, "found": [str], "header": [str], "rows": [[str]]},
    **{"seconds": (int, float), "command": str, "scope?": str},
}


@dataclass(frozen=True)
class Judged:
    """A verdict with what it cost, in seconds on one core, and its page."""

    claim: Claim
    verdict: ClaimVerdict
    seconds: float
    page: Path


def find_claim(name: str) -> Claim:
    """The item of this name, such as "packed/table11"; an unknown one lists what there is."""
    if name in CLAIMS:
        return CLAIMS[name]
    paper = name.partition("/")[0]
    near = [known for known in CLAIMS if known.startswith(f"{paper}/")] or list(CLAIMS)
    raise ValueError(f"reproduce: {say_unknown(name, near)}")


def reproduce_claim(claim: Claim, context: Context, command: str = "") -> Judged:
    """Run what is missing of the item's experiment, judge it, and write its page and the page of all verdicts."""
    check_scale(context.scale)
    refuse_links("reproduce", context.folder, "verdicts")
    found = claim.experiment.carry_out(context)
    try:
        judged = claim.judge(found)
    except KeyError as error:  # a figure that a stored part of another version does not have
        raise ValueError(
            f"reproduce: the parts in {str(context.folder)!r} do not have {error}, by which {claim.name} is judged. "
            "Delete the experiment's folder there, or choose another --out."
        ) from error
    verdict, seconds = _with_caution(claim, judged, context.scale), _seconds(found)
    verdict = dataclasses.replace(verdict, scope=scope_of(claim, context.scale))
    page = context.folder / f"{claim.paper}-{claim.item}-{context.scale}.html"
    write_verdict(claim, context, verdict, seconds, command)
    settings = {"scale": context.scale, "cost": _cost(seconds), **_texts(claim.settings)}
    about = f"{PAPERS[claim.paper]}. Scale {context.scale}."
    shown = _section(claim, dataclasses.replace(verdict, found=[*verdict.found, *claim.notes]), context.scale)
    claims_page(claim.title, [shown], page, about=about, command=command, settings=settings)
    collect(context.folder)
    return Judged(claim, verdict, seconds, page)


def check_scale(scale: str) -> None:
    """Refuse a scale that is unknown."""
    if scale not in SCALES:
        raise ValueError(f"reproduce: the scale {scale!r} is unknown. Choose from {', '.join(SCALES)}.")


RAN = "ran"  # in place of a verdict: a smoke run has none

CAUTIONS = {
    "smoke": "At this scale the data and the networks are tiny: this shows only that it runs.",
    "laptop": "At this scale networks and data are smaller than the paper's.",
}


def _with_caution(claim: Claim, verdict: ClaimVerdict, scale: str) -> ClaimVerdict:
    """The verdict, with what its scale means for it; what is computed exactly is the same at every scale."""
    if claim.exact or scale not in claim.reduced:
        return verdict
    if scale == "smoke":  # no verdict, of no part
        pictures = [picture for picture in verdict.pictures if picture.name != "parts"]
        return dataclasses.replace(verdict, judgement=RAN, found=[CAUTIONS[scale]], pictures=pictures)
    first, *others = verdict.found
    return dataclasses.replace(verdict, found=[first, CAUTIONS[scale], *others])


def _section(claim: Claim, verdict: ClaimVerdict, scale: str) -> Claim:
    """The item as a section of a page: whether it holds, at which scale, and why."""
    judgement, where = verdict.judgement, verdict.scope or scope_of(claim, scale)
    words = {RAN: f"No verdict: a smoke run ({where}).", OPEN: f"Inconclusive: {where}."}
    found = [words.get(judgement, f"The claim {judgement}: {where}."), *verdict.found]
    scaled = judgement if claim.exact else f"{judgement} ({scale})"
    return claim.answered(dataclasses.replace(verdict, judgement=scaled, found=found, number=verdict.found[0]))


def scope_of(claim: Claim, scale: str) -> str:
    """How far a verdict reaches: network, data and seeds, or the scale where there are none."""
    if claim.exact:
        return "computed exactly"
    if said := getattr(claim.experiment, "scope", lambda scale: "")(scale):
        return str(said)
    sizes = {"smoke": "with tiny data and networks", "laptop": "with smaller networks and data than the paper's"}
    return (
        f"at {scale} scale, {sizes[scale]}" if scale in claim.reduced else f"at {scale} scale, with the paper's sizes"
    )


# ---------------------------------------------------------------- stored verdicts


def write_verdict(claim: Claim, context: Context, verdict: ClaimVerdict, seconds: float, command: str) -> None:
    """Store a verdict for the page of all."""
    folder = context.folder / "verdicts"
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"item": claim.name, "scale": context.scale, "seconds": seconds, "command": command}
    record |= {name: getattr(verdict, name) for name in ("judgement", "found", "header", "rows", "scope")}
    write_signed_json(folder / f"{claim.paper}-{claim.item}-{context.scale}.json", record)


def read_verdicts(folder: Path) -> list[dict[str, Any]]:
    """The stored verdicts, in the order of the registry; of an item the one of the largest scale."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "verdicts").glob("*.json")):
        try:
            record = read_signed_json(path)
            check_shape(record, RECORD, "its record")
            if record["judgement"] not in WORDS:
                raise ValueError(f"its judgement {record['judgement']!r} is none of {', '.join(WORDS)}")
        except ValueError as error:
            raise ValueError(f"reproduce: {str(path)!r} is damaged ({error}). Delete it.") from error
        before = found.get(record["item"])
        if record["item"] in CLAIMS and record["scale"] in SCALES:
            if before is None or SCALES.index(before["scale"]) < SCALES.index(record["scale"]):
                found[record["item"]] = record
    return [found[name] for name in CLAIMS if name in found]


def collect(folder: Path) -> Path:
    """Write the page of all verdicts, from those that are stored: the claim, figures, holds or not, the cost."""
    records, page = read_verdicts(folder), folder / "claims.html"
    sections = [_stored_section(record) for record in records]
    judged = {record["item"] for record in records}
    left = [claim for claim in CLAIMS.values() if claim.name not in judged]
    notes = [f"{claim.name}: {claim.title}. Not run here." for claim in left]
    counts = Counter((record["scale"], WORDS[record["judgement"]]) for record in records)
    scales = [
        f"at {scale} scale "
        + ", ".join(f"{counts[scale, word]} {word}" for word in WORDS.values() if counts[scale, word])
        for scale in reversed(SCALES)
        if any(one == scale for one, _ in counts)
    ]
    headline = f"{plural(len(records), 'item')} of {len(CLAIMS)} run: {'; '.join(scales)}."
    if sections:
        claims_page(TITLE, sections, page, headline=headline, notes=notes, command="pluribus reproduce")
    return page


TITLE = "Reproducing the papers"
WORDS = {HOLDS: "hold", FAILS: "do not hold", OPEN: "inconclusive", RAN: "ran"}


def _stored_section(record: Mapping[str, Any]) -> Claim:
    claim = CLAIMS[record["item"]]
    cost = f"Scale {record['scale']}; {_cost(record['seconds'])}. {record['command']}"
    scope = record.get("scope", "")
    stored = ClaimVerdict(record["judgement"], record["found"], record["header"], record["rows"], scope=scope)
    found = _section(claim, stored, record["scale"])
    verdict = dataclasses.replace(found.verdict, found=[*found.found, cost])
    return claim.answered(verdict, title=f"{claim.name}: {claim.title}")


def _seconds(found: Any) -> float:
    parts = found.values() if isinstance(found, Mapping) else [found]
    return float(sum(getattr(part, "seconds", 0.0) for part in parts))


def _cost(seconds: float) -> str:
    return f"{seconds:.0f} s on one core" if seconds < 600 else f"{seconds / 60:.0f} min on one core"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    def text(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)

    return {f"the paper: {name}": text(value) for name, value in values.items()}
