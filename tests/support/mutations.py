"""Plain values with something changed, as files have them that somebody spoiled: for tests of every reader."""

import copy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 10**20), st.floats(), st.text(max_size=5), st.just("x" * 1000),
        st.sampled_from(["deep", "packed", "single", "classification", "mlp", "images", "table", "python:os:getcwd"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def mutations(draw, good):
    """The good value with one or two of its parts, at any depth, replaced, removed or doubled."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 2))):
        if not isinstance(value, dict | list) or not value:
            break
        holder = value
        while True:
            key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
            inner = holder[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
                break
            holder = inner
        if draw(st.booleans()):
            holder[key] = draw(JUNK)
        elif isinstance(holder, dict):
            del holder[key]
        else:
            holder.insert(key, inner)
    return value


FUZZ = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def value_or_message(function):
    try:
        return function()
    except (ValueError, FileNotFoundError) as error:
        assert str(error)
        return None
