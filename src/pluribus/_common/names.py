"""Names that users type: what to say of one that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def say_unknown(name: str, known: Iterable[str], more: str = "") -> str:
    """That a name is unknown, the one that was probably meant, and all that there are.

    Args:
        more: further choices, as they follow a list

    >>> say_unknown("paked", ["deep", "packed"])
    "'paked' is unknown. Did you mean 'packed'? Choose from deep, packed."
    """
    known = list(known)
    lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), lower, 1)
    hint = f" Did you mean {lower[near[0]]!r}?" if near else ""
    return f"{name!r} is unknown.{hint} Choose from {', '.join(known)}{more}."
