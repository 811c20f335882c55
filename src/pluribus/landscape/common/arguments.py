"""Arguments that many functions of the laboratory take: each name has one rule, checked before anything runs."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from numbers import Integral, Real
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class Rule(NamedTuple):
    """What an argument must be, in words, and whether a value is that; with `error`, what is raised if not."""

    words: str
    fits: Callable[[Any], bool]
    error: type[Exception] = ValueError

    def check(self, caller: str, name: str, value: Any) -> None:
        """Refuse a value that does not fit."""
        if not self.fits(value):
            raise self.error(f"{caller}: {name} must be {self.words}, but it is {value!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _are_numbers(values: Any) -> bool:
    if isinstance(values, (str, bytes)) or not isinstance(values, (Iterable, Tensor, np.ndarray)):
        return False
    return isinstance(values, (Tensor, np.ndarray)) or all(_is_number(value) for value in list(values))


def _are_listed(values: Any) -> bool:
    if isinstance(values, (Tensor, np.ndarray)):
        return True
    return isinstance(values, (list, tuple)) and all(isinstance(v, Real) or _are_listed(v) for v in values)


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


NUMBER = Rule("a finite number", _is_number)
NUMBER_OR_NONE = Rule("a finite number, or None", _or_none(_is_number))
NOT_ZERO = Rule("a finite number other than 0", lambda value: _is_number(value) and value != 0)
NOT_NEGATIVE = Rule("a finite number of at least 0", lambda value: _is_number(value) and value >= 0)
POSITIVE = Rule("a positive, finite number", lambda value: _is_number(value) and value > 0)
POSITIVE_OR_NONE = Rule("a positive, finite number, or None", _or_none(POSITIVE.fits))
FROM_ZERO = Rule("a whole number of at least 0", lambda value: _is_whole(value) and value >= 0)
COUNT = Rule("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
COUNT_OR_NONE = Rule("a whole number of at least 1, or None", _or_none(COUNT.fits))
RATES = Rule(
    "a positive number, or two of them",
    lambda v: POSITIVE.fits(v) or (isinstance(v, (tuple, list)) and len(v) == 2 and all(map(POSITIVE.fits, v))),
)
NUMBERS = Rule("a list of at least one number", lambda values: _are_numbers(values) and len(list(values)) > 0)
SOME_NUMBERS = Rule("a list of numbers", _are_numbers)
SOME_NUMBERS_OR_NONE = Rule("a list of numbers, or None", _or_none(_are_numbers))
ONE_OR_MORE = Rule("a number, or a list or a tensor of numbers", lambda v: isinstance(v, Real) or _are_listed(v))
PAIRS = Rule("two pairs of numbers, or None", _or_none(lambda v: np.shape(v) == (2, 2)))
NAMES = Rule("a list of names", lambda v: not isinstance(v, (str, bytes)) and isinstance(v, Iterable), TypeError)
SAMPLED = Rule("a sampler, or several by name", lambda v: callable(v) or isinstance(v, Iterable), TypeError)
BY_NAME = Rule("a mapping from names", lambda value: isinstance(value, Mapping), TypeError)
BY_NAME_OR_NONE = Rule("a mapping from names, or None", _or_none(BY_NAME.fits), TypeError)
FILE = Rule("the name of a file, or None", _or_none(lambda value: isinstance(value, (str, os.PathLike))), TypeError)
FUNCTION = Rule("a function", lambda value: callable(value) and not isinstance(value, torch.nn.Module), TypeError)
FUNCTION_OR_NONE = Rule("a function, or None", _or_none(callable), TypeError)
YES_OR_NO = Rule("True, False or None", lambda value: value is None or isinstance(value, (bool, np.bool_)), TypeError)

RULES = {
    "seed": FROM_ZERO,
    "batch_size": COUNT,
    "weight_decay": NOT_NEGATIVE,
    "generator": Rule("a torch.Generator, or None", _or_none(lambda v: isinstance(v, torch.Generator)), TypeError),
    "where": Rule("a pattern of names, or None", _or_none(lambda value: isinstance(value, str)), TypeError),
    "progress": FUNCTION_OR_NONE,
    "together": YES_OR_NO,
    "normalised": YES_OR_NO,
}


def check_arguments(**further: Rule) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function that refuses arguments which break the rule of their name: one of `further`, or of RULES.

    What is left out keeps its default, which is not checked.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature, caller = inspect.signature(function), function.__name__
        rules = {name: rule for name, rule in {**RULES, **further}.items() if name in signature.parameters}

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            given = signature.bind(*args, **kwargs).arguments
            for name, rule in rules.items():
                if name in given:
                    rule.check(caller, name, given[name])
            return function(*args, **kwargs)

        return checked

    return decorate
