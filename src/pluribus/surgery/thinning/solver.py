"""New widths for a model whose sizes are terms: scale what may be scaled, then mend what rounding broke.

A run with unknown sizes has left symbols, one for each size, and equations between them (`polynomials`):

    embed = heads * head          heads is counted: it keeps its number, so that head is scaled
    mlp's input = embed           solved: there is one symbol for both
    classes, channels of images   sizes of data: fixed

1. Each lone width gets its target, the old one times the factor, rounded up.
2. `_spread`: dimensional analysis. Where a product of two symbols is a width, one of them is scaled and not both; the
   terms of a sum are scaled alike.
3. `_repair`: rounding may have broken equations (7 and 7 become 4 and 4, while 14, their concatenation, becomes 7). One
   symbol at a time is moved to the nearest value with which fewer equations are broken, until none is.
4. `_round_up`: widths that must be multiples of a number of groups are raised, and repaired again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .polynomials import Monomial, Term, Terms

Factor = float | Callable[[int], int]


@dataclass(frozen=True)
class Use:
    """A width at which a weight takes its input or gives its output."""

    term: Term
    layer: str  # the module that owns the weight
    running: str  # the module in whose forward it is used
    is_input: bool


@dataclass
class SizeTrace:
    """What a run of a model with unknown sizes has shown."""

    terms: Terms
    sizes: dict[str, tuple[Term, ...]] = field(default_factory=dict)
    attributes: dict[tuple[tuple[str, str | None], tuple[str | int, ...]], Term] = field(default_factory=dict)
    uses: dict[Use, None] = field(default_factory=dict)
    widths: dict[Term, str] = field(default_factory=dict)  # sizes that a weight contracts or produces
    contracted: set[Term] = field(default_factory=set)
    counts: set[Term] = field(default_factory=set)  # numbers of attention heads, windows, ...
    groups: set[Term] = field(default_factory=set)  # numbers of groups of channels
    cuts: dict[Term, Term] = field(default_factory=dict)  # where a dimension is cut, and its size
    ranked: set[int] = field(default_factory=set)  # sizes whose entries are ranked
    roots: dict[str, dict[int, set[Term]]] = field(default_factory=dict)  # by module: sizes of which it holds the root


@dataclass(frozen=True)
class RoundedWidth:
    """A hidden width that could not be scaled exactly."""

    layer: str  # the name of a module whose weight has that width
    width: int  # in the given model
    exact: float  # as it was asked for
    chosen: int


@dataclass(frozen=True)
class Unit:
    """A width that is a symbol times a factor, and a layer that has it."""

    factor: int
    term: Term
    layer: str


def find_roots(attributes: Mapping[str, object]) -> dict[str, int]:
    """The attributes that may be the inverse root of a size, as attention scales its products, with that size."""
    found = {}
    for key, value in attributes.items():
        if type(value) is float and 1e-6 < value < 1 and "drop" not in key:
            size = round(value**-2)
            if abs(value * size**0.5 - 1) < 1e-6:
                found[key] = size
    return found


class UnsolvableError(ValueError):
    """No new widths satisfy all equations."""


class WidthSolver:
    """The choice of new values for the symbols of a trace, such that all equations hold.

    Args:
        parameters: the names of the parameters among the sizes; the others are data.
        layers: only the input widths of these layers are scaled, and what depends on them; None: every width.
        multiples: layers whose widths must be multiples of a number.
    """

    def __init__(
        self,
        trace: SizeTrace,
        parameters: Collection[str],
        factor: Factor,
        layers: Collection[str] | None = None,
        multiples: Mapping[str, int] | None = None,
    ):
        self.trace, self.terms, self.parameters = trace, trace.terms, parameters
        self.factor, self.layers, self.multiples = factor, layers, multiples or {}
        self.new: dict[int, int] = {}
        self._wishes: dict[Term, float] = {}
        self.terms.settle()

    def solve(self) -> dict[int, int]:
        """The new values of the symbols that change."""
        for symbol in map(self.terms.lone, self._widths):
            if symbol is not None and symbol not in self._fixed_symbols | self._heads:
                self.new[symbol] = self.target(symbol)
        self._spread()
        self._repair()
        self._round_up()
        self._follow_cuts()
        self._check()
        return self.new

    def _follow_cuts(self) -> None:
        """A number that nothing binds, at which a width is cut (its half), stays at its share of the width."""
        for bound, size in self.trace.cuts.items():
            symbol = self.terms.lone(self.terms.rewrite(bound))
            if symbol is None or symbol in self.new or symbol in self._fixed_symbols:
                continue
            share, rest = divmod(self.terms.hint(symbol) * self.value(size), self.terms.value(size))
            if not rest and share and not (symbol in self._equations and self._count_broken(symbol, share)):
                self.new[symbol] = share

    def value(self, term: Term) -> int:
        """The new value of a term."""
        return int(self.terms.value(self.terms.rewrite(term), self.new))

    def rounded_widths(self) -> tuple[RoundedWidth, ...]:
        """The scaled widths that are not what was asked for."""
        found = {}
        for symbol, value in self.new.items():
            unit, exact = self._unit(symbol), self.wish(symbol)
            chosen = unit.factor * value
            if symbol in self._units and abs(chosen - exact) > 1e-6:
                width = unit.factor * self.terms.hint(symbol)
                found[unit.term] = RoundedWidth(unit.layer, width, exact, chosen)
        return tuple(found.values())

    def target(self, symbol: int) -> int:
        """The value that a symbol should get: its width scaled, rounded up."""
        return max(1, math.ceil(self.wish(symbol) / self._unit(symbol).factor - 1e-9))

    def wish(self, symbol: int) -> float:
        """The new width that is asked for where the symbol makes one."""
        unit = self._unit(symbol)
        if unit.term not in self._wishes:
            width = unit.factor * self.terms.hint(symbol)
            self._wishes[unit.term] = float(self.factor(width) if callable(self.factor) else width * self.factor)
        return self._wishes[unit.term]

    def used_symbols(self) -> set[int]:
        """The symbols about which something is known."""
        known = [*self.terms.solved.values(), *self.terms.left, *self.trace.widths]
        return set(self.terms.solved).union(*map(self.terms.free, known))

    @cached_property
    def _widths(self) -> dict[Term, None]:
        """The terms that shall be scaled."""
        if self.layers is None:
            chosen: Iterable[Term] = self.trace.widths
        else:
            chosen = [use.term for use in self.trace.uses if use.is_input and self._is_of(use, self.layers)]
        return dict.fromkeys(term for term in map(self.terms.rewrite, chosen) if self.terms.free(term))

    @cached_property
    def _sizes(self) -> dict[Term, None]:
        """The other terms in which symbols show: sizes of tensors and attributes."""
        sizes = [term for shape in self.trace.sizes.values() for term in shape]
        return dict.fromkeys(map(self.terms.rewrite, [*sizes, *self.trace.attributes.values()]))

    @cached_property
    def _fixed_symbols(self) -> set[int]:
        """The symbols that keep their values: sizes of data, and what constants bind."""
        terms = self.terms
        made: set[int] = set()
        for name, shape in self.trace.sizes.items():
            for term in shape if name in self.parameters else ():
                made |= set() if term in self.trace.contracted else terms.free(terms.rewrite(term))
        data = [t for n, shape in self.trace.sizes.items() if n not in self.parameters for t in shape]
        fixed = {symbol for t in data if (symbol := terms.lone(terms.rewrite(t))) is not None} - made
        for equation in terms.left:
            if self._binds(equation):
                fixed |= terms.free(equation)
            elif any(monomial == () for monomial, _ in equation):
                fixed |= {a for m, _ in equation for a in m if terms.lone((((a,), 1),)) is not None}
        return fixed

    def _binds(self, equation: Term) -> bool:
        """Whether an equation holds only at its scale, and for no size of a tensor: a window, a grid."""
        symbols = self.terms.free(equation)
        if symbols & self.terms.measured:
            return False
        return any(self.terms.value(equation, {a: k * self.terms.hint(a) for a in symbols}) for k in (2, 3))

    def _unit(self, symbol: int) -> Unit:
        return self._units.get(symbol) or Unit(1, (((symbol,), 1),), "")

    @cached_property
    def _units(self) -> dict[int, Unit]:
        """For each symbol the smallest width that it makes alone."""
        units: dict[int, Unit] = {}
        for use in self.trace.uses:
            term = self.terms.rewrite(use.term)
            for symbol in self.terms.free(term):
                if len(term) == 1 and term[0][0].count(symbol) == 1 and term[0][1] > 0:  # times a number, or others
                    factor = self.terms.value(term) // self.terms.hint(symbol)
                    if symbol not in units or factor < units[symbol].factor:
                        units[symbol] = Unit(factor, term, use.layer)
        for use in self.trace.uses:
            for symbol in self.terms.free(self.terms.rewrite(use.term)):
                units.setdefault(symbol, Unit(1, (((symbol,), 1),), use.layer))
        return units

    @cached_property
    def _heads(self) -> set[int]:
        """The counted symbols that make a width together with another one, the width of a head."""
        counted = set().union(*(self.terms.free(self.terms.rewrite(term)) for term in self.trace.counts))
        monomials = [m for term in self._widths for m, _ in term]
        shared = [symbols for m in monomials if len(symbols := self.terms.free(((m, 1),)) - self._fixed_symbols) > 1]
        return counted & set().union(*shared)

    @cached_property
    def _groups(self) -> set[int]:
        return set().union(*(self.terms.free(self.terms.rewrite(term)) for term in self.trace.groups))

    @cached_property
    def _products(self) -> dict[int, set[Monomial]]:
        products: dict[int, set[Monomial]] = {}
        for term in [*self._widths, *self._sizes]:
            for monomial, _ in term:
                for symbol in self.terms.free(((monomial, 1),)):
                    products.setdefault(symbol, set()).add(monomial)
        return products

    @cached_property
    def _equations(self) -> dict[int, list[Term]]:
        equations: dict[int, list[Term]] = {}
        for equation in self.terms.left:
            for symbol in self.terms.free(equation):
                equations.setdefault(symbol, []).append(equation)
        return equations

    def _spread(self) -> None:
        """Dimensional analysis: a width scales once, the terms of a sum scale alike."""
        sums = [*self.terms.left, *(self._sizes if self.layers is None else ())]
        count = -1
        while count < len(self.new):
            count = len(self.new)
            for term in self._widths:
                self._raise(term, 1)
            for term in sums:
                self._raise(term, max([self.terms.degree(m, self.new) for m, _ in term] + [0]))

    def _raise(self, term: Term, degree: int) -> None:
        """Scale symbols until each monomial of the term scales with the degree."""
        for monomial, _ in term:
            now = self.terms.degree(monomial, self.new)
            if now >= degree:
                continue
            choice = [
                symbol
                for symbol in self.terms.free(((monomial, 1),)) - self.new.keys() - self._fixed_symbols - self._heads
                if self.terms.degree(monomial, {*self.new, symbol}) > now
            ]
            if choice:
                best = min(choice, key=self._cost)
                self.new[best] = self.target(best)

    def _cost(self, symbol: int) -> tuple[float, ...]:
        """Of scaling a symbol: widths scaled twice, equations broken, rounding error, groups lost."""
        new = {**self.new, symbol: self.target(symbol)}
        twice = any(self.terms.degree(m, new) > 1 for m in self._products.get(symbol, ()))
        broken = sum(self.terms.value(e, new) != 0 for e in self._equations.get(symbol, ()))
        error = abs(new[symbol] * self._unit(symbol).factor / self.wish(symbol) - 1)
        return twice, broken, error, symbol in self._groups, -self.terms.hint(symbol), symbol

    def _repair(self, kept: Collection[int] = ()) -> None:
        """Rounding may have broken equations: move one symbol to the nearest value that helps, repeat."""
        while broken := [e for e in self.terms.left if self.terms.value(e, self.new)]:
            candidates = set().union(*map(self.terms.free, broken[:8])) - self._fixed_symbols - set(kept)
            moves = [move for symbol in sorted(candidates) if (move := self._move(symbol))]
            if not moves:
                shown = " and ".join(f'"{self.terms.left[e]}"' for e in broken[:3])
                raise UnsolvableError(f"no widths near the target satisfy the equations of module {shown}")
            _, symbol, value = min(moves)
            self.new[symbol] = value

    def _move(self, symbol: int) -> tuple[tuple[bool, float], int, int] | None:
        """The nearest value of a symbol with which fewer equations are broken."""
        now = self.new.get(symbol, self.terms.hint(symbol))
        before = self._count_broken(symbol, now)
        near = sorted(range(max(1, now // 2), 2 * now + 1), key=lambda v: (abs(math.log(v / now)), v))
        for value in near:
            if self._count_broken(symbol, value) < before:
                return (symbol in self.new, abs(math.log(value / now))), symbol, value
        return None

    def _count_broken(self, symbol: int, value: int) -> int:
        new = {**self.new, symbol: value}
        return sum(self.terms.value(equation, new) != 0 for equation in self._equations[symbol])

    def _is_of(self, use: Use, layers: Collection[str]) -> bool:
        return use.layer in layers or use.running in layers

    def _demands(self) -> dict[tuple[Term, int], str]:
        """Terms that must be multiples of a number, and whose they are."""
        return {
            (self.terms.rewrite(use.term), number): layer
            for layer, number in self.multiples.items()
            for use in self.trace.uses
            if number > 1 and self._is_of(use, (layer,))
        }

    def _round_up(self) -> None:
        """Raise widths to the multiples that they must be."""
        met: list[tuple[Term, int]] = []
        for (term, number), layer in self._demands().items():
            met.append((term, number))
            if not self._are_multiples(met) and not any(self._try(move, met) for move in self._raises(term, number)):
                raise UnsolvableError(
                    f'layer "{layer}" has a width of {self.terms.value(term, self.new)} that cannot become a '
                    f"multiple of {number}"
                )

    def _are_multiples(self, demands: Iterable[tuple[Term, int]]) -> bool:
        return not any(self.terms.value(term, self.new) % number for term, number in demands)

    def _raises(self, term: Term, number: int) -> list[tuple[int, int]]:
        """Larger values of a symbol that make a term a multiple, those that raise it least first."""
        found = []
        for symbol in self.terms.free(term) - self._fixed_symbols - self._heads:
            now = self.new.get(symbol, self.terms.hint(symbol))
            values = (
                (self.terms.value(term, {**self.new, symbol: v}), v) for v in range(now + 1, now + 8 * number + 1)
            )
            found += [(value, symbol, v) for value, v in values if value % number == 0]
        return [(symbol, v) for _, symbol, v in sorted(found)]

    def _try(self, move: tuple[int, int], demands: Iterable[tuple[Term, int]]) -> bool:
        """Give a symbol a value if the equations and the demands can be met with it."""
        before, (symbol, value) = dict(self.new), move
        self.new[symbol] = value
        try:
            self._repair(kept=(symbol,))
        except UnsolvableError:
            self.new = before
            return False
        if not self._are_multiples(demands):
            self.new = before
            return False
        return True

    def _check(self) -> None:
        for term in self._sizes:
            if self.terms.value(term, self.new) < 1:
                raise UnsolvableError(f"nothing would be left of a width of {self.terms.value(term)}")
