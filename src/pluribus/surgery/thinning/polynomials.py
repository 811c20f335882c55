"""Integer terms and the equations between them: what is known of the sizes of a model.

A term is a polynomial over atoms with integer coefficients: a sorted tuple of (monomial, coefficient), a
monomial being a sorted tuple of atoms. An atom is the index of a symbol (a positive integer that is not known
yet, with its value in the original model) or of an operation that is no polynomial (floor division, remainder,
maximum, ...). A computer algebra system could do the same a hundred times slower.

An equation says that a term is zero. Where a symbol stands alone in it, it is solved for that symbol, which is replaced
wherever it occurs from then on; other equations wait in `left`.

>>> from operator import floordiv, mod
>>> terms = Terms({"int_floordiv": floordiv, "mod": mod}.__getitem__)
>>> width, heads = terms.symbol(32), terms.symbol(4)
>>> head = terms.apply("int_floordiv", (width, heads))  # 32 // 4: what divides evenly shall divide evenly
>>> terms.rewrite(width) == multiply(heads, head), terms.value(head)
(True, 8)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Monomial = tuple[int, ...]

Term = tuple[tuple[Monomial, int], ...]

ZERO: Term = ()

ONE: Term = (((), 1),)


@dataclass(frozen=True)
class Symbol:
    """A positive integer to be found, and its value in the original model."""

    value: int


@dataclass(frozen=True)
class Operation:
    """An operation on terms that is not a polynomial, and the symbols inside it."""

    method: str
    arguments: tuple[Term, ...]
    symbols: frozenset[int]


class Terms:
    """A set of symbols, and the equations between them as far as they are known.

    Args:
        operator: gives the function on numbers that the name of an operation stands for.
        where: gives the name of what is running now, to be noted beside a new equation.
    """

    def __init__(self, operator: Callable[[str], Callable[..., Any]], where: Callable[[], str] = str):
        self.operator, self.where = operator, where
        self.atoms: list[Symbol | Operation] = []
        self.index: dict[tuple[str, tuple[Term, ...]], int] = {}
        self.measured: set[int] = set()  # symbols that are sizes of tensors, or quotients of such
        self.solved: dict[int, Term] = {}
        self.left: dict[Term, str] = {}  # equations (term = 0) that solve no symbol, and where they came from
        self._quotients: dict[tuple[Term, Term], Term] = {}
        self._busy: set[int] = set()

    def symbol(self, value: int) -> Term:
        """A new symbol, as a term."""
        self.atoms.append(Symbol(value))
        return (((len(self.atoms) - 1,), 1),)

    def lone(self, term: Term) -> int | None:
        """The symbol that the term is, or None."""
        if len(term) == 1 and term[0][1] == 1 and len(term[0][0]) == 1 and not self._is_operation(term[0][0][0]):
            return term[0][0][0]
        return None

    def free(self, term: Term) -> set[int]:
        """The symbols in a term, those inside operations included."""
        found: set[int] = set()
        for monomial, _ in term:
            for atom in monomial:
                inner = self.atoms[atom]
                found |= inner.symbols if isinstance(inner, Operation) else {atom}
        return found

    def hint(self, symbol: int) -> int:
        """The value of a symbol in the original model."""
        atom = self.atoms[symbol]
        assert isinstance(atom, Symbol)
        return atom.value

    def value(self, term: Term, new: Mapping[int, int] | None = None) -> Any:
        """The value of a term where some symbols have new values."""
        new = {} if new is None else new
        return sum(c * math.prod(self._atom_value(a, new) for a in monomial) for monomial, c in term)

    def apply(self, method: str, arguments: tuple[Term, ...]) -> Term:
        """The operation on the terms, as a term."""
        if method in ("add", "sub"):
            return add(arguments[0], arguments[1], 1 if method == "add" else -1)
        if method == "mul":
            return multiply(arguments[0], arguments[1])
        if method == "neg":
            return add(ZERO, arguments[0], -1)
        if all(is_constant(a) for a in arguments):
            return constant_term(self.operator(method)(*(a[0][1] if a else 0 for a in arguments)))
        if method in ("int_floordiv", "mod"):
            result = self._divide(method, *arguments)
            if result is not None:
                return result
        if method == "sym_max" and ONE in arguments:  # sizes are positive
            return arguments[arguments[0] == ONE]
        return self._operation(method, arguments)

    def rewrite(self, term: Term) -> Term:
        """The term in symbols that are not solved."""
        result = ZERO
        for monomial, coefficient in term:
            product = constant_term(coefficient)
            for atom in monomial:
                product = multiply(product, self._rewrite_atom(atom))
            result = add(result, product)
        return result

    def equate(self, term: Term, where: str | None = None) -> bool:
        """Take note that the term is zero; True if that solved a symbol."""
        term, where = self.rewrite(term), self.where() if where is None else where
        if not term:
            return False
        multiple = self._multiple(term)
        if multiple is not None:
            return self.equate(multiple, where)
        term = self._reduce(term)
        for symbol, coefficient in self._candidates(term):
            rest = add(term, (((symbol,), coefficient),), -1)
            if symbol not in self.free(rest):
                self.solved[symbol] = multiply(constant_term(-coefficient), rest)
                return True
        self.left.setdefault(term, where)
        return False

    def settle(self) -> None:
        """Use the equations that could not be solved at first, until none can."""
        again = True
        while again:
            left, self.left = self.left, {}
            again = any([self.equate(term, where) for term, where in left.items()])

    def degree(self, monomial: Monomial, scaled: Iterable[int]) -> int:
        """The power of the factor by which a monomial grows when the scaled symbols grow by it."""
        return sum(self._atom_degree(atom, scaled) for atom in monomial)

    def _is_operation(self, atom: int) -> bool:
        return isinstance(self.atoms[atom], Operation)

    def _operation(self, method: str, arguments: tuple[Term, ...]) -> Term:
        key = method, arguments
        if key not in self.index:
            self.index[key] = len(self.atoms)
            self.atoms.append(Operation(method, arguments, frozenset().union(*map(self.free, arguments))))
        return (((self.index[key],), 1),)

    def _atom_value(self, atom: int, new: Mapping[int, int]) -> Any:
        inner = self.atoms[atom]
        if isinstance(inner, Symbol):
            return new.get(atom, inner.value)
        try:
            return self.operator(inner.method)(*(self.value(argument, new) for argument in inner.arguments))
        except ZeroDivisionError:
            return math.nan

    def _rewrite_atom(self, atom: int) -> Term:
        inner = self.atoms[atom]
        if isinstance(inner, Operation):
            if inner.symbols.isdisjoint(self.solved):
                return (((atom,), 1),)
            return self.apply(inner.method, tuple(map(self.rewrite, inner.arguments)))
        if atom not in self.solved or atom in self._busy:
            return (((atom,), 1),)
        if not self.free(self.solved[atom]).isdisjoint(self.solved):
            self._busy.add(atom)
            self.solved[atom] = self.rewrite(self.solved[atom])
            self._busy.discard(atom)
        return self.solved[atom]

    def _divide(self, method: str, p: Term, q: Term) -> Term | None:
        """p // q or p % q where p is a multiple of q, or None."""
        if (p, q) in self._quotients:
            result: Term | None = self.rewrite(self._quotients[p, q])
        else:
            result = quotient(p, q)
        if result is None and method == "int_floordiv":
            rounding_up = add(add(p, q, -1), ONE)  # (n + q - 1) // q
            result = self._exact(p, q) or self._exact(rounding_up, q)
        return result if method == "int_floordiv" or result is None else ZERO

    def _exact(self, p: Term, q: Term) -> Term | None:
        """What divides evenly in the original model shall divide evenly: p / q, or None."""
        if not p or not p[0][0] or not self.free(p):  # no constant in the sum
            return None
        number, divisor = self.value(p), self.value(q)
        if not divisor or number <= 0 or number % divisor:
            return None
        self.equate(self.apply("mod", (p, q)))
        return self.apply("int_floordiv", (self.rewrite(p), self.rewrite(q)))

    def _multiple(self, term: Term) -> Term | None:
        """If the term is p % q: the equation p = q * quotient with a name for the quotient."""
        atom = self.atoms[term[0][0][0]] if len(term) == 1 and len(term[0][0]) == 1 else None
        if not isinstance(atom, Operation) or atom.method != "mod":
            return None
        p, q = atom.arguments
        ratio = self.value(p) // self.value(q)
        if not self.free(p) or ratio < 1:
            return None
        result = ONE if ratio == 1 else self.symbol(ratio)
        if self.free(p) & self.measured:
            self.measured |= self.free(result)
        self._quotients[p, q] = result
        return add(p, multiply(q, result), -1)

    def _reduce(self, term: Term) -> Term:
        """The equation divided by what its monomials share (symbols are positive)."""
        divisor = math.gcd(*(coefficient for _, coefficient in term))
        common = [atom for atom in term[0][0] if not self._is_operation(atom)]
        for monomial, _ in term:
            common = [
                atom for atom in dict.fromkeys(common) for _ in range(min(common.count(atom), monomial.count(atom)))
            ]
        parts = ((without(monomial, common), coefficient // divisor) for monomial, coefficient in term)
        return tuple(sorted((monomial, coefficient) for monomial, coefficient in parts if monomial is not None))

    def _candidates(self, term: Term) -> list[tuple[int, int]]:
        """The symbols that stand alone in an equation with their signs, the largest first."""
        alone = [
            (monomial[0], coefficient)
            for monomial, coefficient in term
            if len(monomial) == 1 and abs(coefficient) == 1 and not self._is_operation(monomial[0])
        ]
        return sorted(alone, key=lambda part: (self.hint(part[0]), part[0] not in self.measured, part[0]), reverse=True)

    def _atom_degree(self, atom: int, scaled: Iterable[int]) -> int:
        inner = self.atoms[atom]
        if isinstance(inner, Symbol):
            return int(atom in scaled)
        degrees = [max([self.degree(m, scaled) for m, _ in term] + [0]) for term in inner.arguments]
        if "div" in inner.method:
            return degrees[0] - degrees[1]
        return degrees[0] if inner.method == "mod" else max(degrees)


def constant_term(value: Any) -> Term:
    """A number as a term."""
    return (((), value),) if value else ZERO


def is_constant(term: Term) -> bool:
    """Whether the term is a number."""
    return not term or (len(term) == 1 and term[0][0] == ())


def add(p: Term, q: Term, times: int = 1) -> Term:
    """The term p + times * q."""
    coefficients = dict(p)
    for monomial, coefficient in q:
        coefficients[monomial] = coefficients.get(monomial, 0) + times * coefficient
    return tuple(sorted((monomial, c) for monomial, c in coefficients.items() if c))


def multiply(p: Term, q: Term) -> Term:
    """The term p * q."""
    if p == ONE:
        return q
    if q == ONE:
        return p
    coefficients: dict[Monomial, int] = {}
    for first, c in p:
        for second, d in q:
            monomial = tuple(sorted(first + second))
            coefficients[monomial] = coefficients.get(monomial, 0) + c * d
    return tuple(sorted((monomial, c) for monomial, c in coefficients.items() if c))


def without(monomial: Monomial, divisor: Iterable[int]) -> Monomial | None:
    """The monomial divided by another, or None."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def quotient(p: Term, q: Term) -> Term | None:
    """The term p / q where it is one for all values of the symbols, or None."""
    if not p:
        return ZERO
    if not q:
        return None
    if len(q) == 1:
        return _quotient_by_monomial(p, *q[0])
    monomial = without(p[0][0], q[0][0])
    if monomial is None or p[0][1] % q[0][1]:
        return None
    result = ((monomial, p[0][1] // q[0][1]),)
    return result if multiply(result, q) == p else None


def _quotient_by_monomial(p: Term, divisor: Monomial, coefficient: int) -> Term | None:
    parts = []
    for monomial, c in p:
        rest = without(monomial, divisor)
        if rest is None or c % coefficient:
            return None
        parts.append((rest, c // coefficient))
    return tuple(sorted(parts))
