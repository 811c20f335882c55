"""What a method states about itself alongside its function, so that no other folder needs to know it by name.

A method that states nothing is a complete one: it is compared with its default settings, and a plan counts it for every
number of members.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from ..core.ensemble import Ensemble
from .building import check_model
from .warm_start import is_batch, start_near

Method = Callable[..., Ensemble]
M = TypeVar("M", bound=Method)
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, AssertionError)


@dataclass(frozen=True)
class Candidate:
    """One setting of a method for a plan, with what is counted in its place.

    Args:
        member: one of `size` networks that share nothing, of which the ensemble consists
        family: makes the ensemble of any number of members
        network: what one training pass of a `family` runs; by default the model itself
        capacity: parameters that one member computes with, relative to the model; by default as counted
        width: channels of one member, relative to the model
        iou: expected overlap of two masks
        masks: of each layer, (members, channels), where what they drop is not computed once frozen
        expected: the figures are expected values, because widths are drawn
        reason: why the setting cannot be used
    """

    settings: Mapping[str, Any]
    size: int
    member: nn.Module | None = None
    family: Callable[[int], Ensemble] | None = None
    network: nn.Module | None = None
    capacity: float | None = None
    width: float = 1.0
    iou: float | None = None
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    expected: bool = False
    reason: str = ""


@dataclass(frozen=True)
class PlanRequest:
    """What candidates are wanted for: a model, an example, numbers of members, and settings to try by name."""

    model: nn.Module
    example: Any
    sizes: Sequence[int]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Baseline:
    """One of the papers' baselines that is made of a method.

    Args:
        width: of the network, relative to that of the other methods
        size: its number of members; by default that of the study
        finish: what is done with the trained ensemble before it is judged
    """

    description: str
    width: float = 1.0
    size: int | None = None
    finish: Callable[[Ensemble], Ensemble] = lambda ensemble: ensemble


@dataclass(frozen=True)
class Paper:
    """Where a method comes from.

    Args:
        authors: in BibTeX's form, "Last, First and Last, First"
        venue: of the proceedings; empty where there is a preprint alone
        arxiv: the preprint's number
    """

    authors: str
    title: str
    year: int
    venue: str = ""
    arxiv: str = ""

    @property
    def key(self) -> str:
        """What the entry is cited by: last name, year, first word of the title.

        >>> Paper("Wen, Yeming and Tran, Dustin", "BatchEnsemble: An Approach", 2020).key
        'wen2020batchensemble'
        """
        last, word = self.authors.split(",")[0], re.split(r"[\s:-]", self.title)[0]
        return f"{last}{self.year}{word}".lower().replace(" ", "")

    @property
    def bibtex(self) -> str:
        """The entry for a bibliography."""
        where = {"booktitle": self.venue} if self.venue else {"eprint": self.arxiv, "archivePrefix": "arXiv"}
        fields = {"author": self.authors, "title": f"{{{self.title}}}", **where, "year": str(self.year)}
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
        return f"@{'inproceedings' if self.venue else 'misc'}{{{self.key},\n{lines},\n}}"


@dataclass(frozen=True)
class MethodInfo:
    """What other folders may ask of a method.

    Args:
        nests: whether the model may contain an ensemble already
        nearer: for the arguments of a call with `trained=`, settings that start nearer and nearer to the network
        study_settings: the settings for a model in a study, and its dropout rate, where the defaults do not fit
        candidates: the settings that a plan considers; by default one family without settings
        baselines: the papers' baselines that are made of this method, by name
        paper: where it comes from, for `pluribus cite`
        for_trained: it learns beside weights that stay as they are, so that it is compared only where it is asked for
        for_tables: it is made for tables, so that it is compared there, and elsewhere only where it is asked for
        keeps: it starts from the weights that the model has, if they are trained, as whatever takes `trained=` does
        tuning_rate: its rate when a trained network is fine-tuned, relative to that of the network's own weights
    """

    nests: bool = False
    nearer: Callable[[dict[str, Any]], Iterable[dict[str, Any]]] | None = None
    for_trained: bool = False
    for_tables: bool = False
    keeps: bool = False
    tuning_rate: float = 1.0
    study_settings: Callable[[nn.Module, float | None], Mapping[str, Any]] = lambda model, dropout: {}
    candidates: Callable[[PlanRequest], Iterable[Candidate]] | None = None
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    paper: Paper | None = None


def method_info(**info: Any) -> Callable[[M], M]:
    """Let a method state something about itself.

    >>> info_of(method_info(nests=True)(lambda model, size: None)).nests
    True
    """

    def attach(method: M) -> M:
        stated = MethodInfo(**info)
        made: Any = method if stated.nearer is None else _start_near(method, stated.nearer)
        made.info = stated
        return cast(M, made)

    return attach


def _start_near(method: Method, nearer: Callable[[dict[str, Any]], Iterable[dict[str, Any]]]) -> Method:
    """The method; where `trained=` is a batch, with the first of these settings that keeps the network's answers."""

    @wraps(method)
    def run(*args: Any, **kwargs: Any) -> Ensemble:
        bound = inspect.signature(method).bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        if not is_batch(given["trained"]):
            return method(*args, **kwargs)
        name, model = method.__name__, check_model(method.__name__, given["model"], nests=info_of(run).nests)
        return start_near(
            name,
            model,
            given["trained"],
            nearer(given),
            lambda settings: method(**{**given, "trained": False, **settings}),
            given.get("generator"),
        )

    return run


def info_of(method: Method) -> MethodInfo:
    """What the method states; the usual where it states nothing."""
    return getattr(method, "info", MethodInfo())


def takes(method: Method, name: str) -> bool:
    """Whether the method has an argument of this name."""
    return name in inspect.signature(method).parameters


def keeps_weights(method: Method) -> bool:
    """Whether its members can start from the weights of a trained network and differ all the same."""
    info = info_of(method)
    return info.keeps or info.for_trained or takes(method, "trained")


def call_method(method: Method, model: Any, size: int, settings: Mapping[str, Any], example: Any = None) -> Ensemble:
    """The method's ensemble; the size and the example are given where the method takes them.

    The model is an architecture, whatever its weights are, unless the settings have `trained`.
    """
    given = {"size": size, "example": example, "trained": False, **settings}
    return method(model, **{name: value for name, value in given.items() if takes(method, name) or name in settings})


def candidates_by_size(method: Method, request: PlanRequest, **settings: Any) -> list[Candidate]:
    """One candidate for each number of members."""

    def make(size: int) -> Ensemble:
        return call_method(method, request.model, size, settings, request.example)

    return [Candidate(settings, size, family=make) for size in request.sizes]


def first_line(error: Exception) -> str:
    """The reason that an error gives, in one line."""
    return (str(error).strip() or repr(error)).splitlines()[0]
