"""Pictures show what was stored, point by point, and nothing where nothing was."""

import numpy as np
import pytest

from pluribus.reproduce.checks import pictures
from pluribus.reproduce.experiments.stored_parts import Stored

LINE = {"line t": np.array([0.0, 0.5, 1.0]), "line loss": np.array([0.25, 2.0, 0.5])}
TUNNEL = {"tunnel t": np.array([0.0, 1.0]), "tunnel loss": np.array([0.25, 0.5])}
AGREEMENT = {"tunnel agreement": np.array([[1.0, 0.75], [0.625, 1.0]])}
SIZES = {"sizes nll": np.arange(10.0).reshape(5, 2), "sizes accuracy": np.arange(10.0).reshape(5, 2) / 16}
ALIKE = {f"{of} {name}": np.eye(3) for of in ("epochs", "runs") for name in ("cosine", "disagreement")}
FOUND = {"seed-0": Stored({}, LINE | TUNNEL | AGREEMENT | SIZES | ALIKE)}


def numbers(draw):
    (figure,) = draw(FOUND)
    return [(label, float(x), float(value)) for label, x, value, *_ in figure.rows]


def test_the_line_and_the_tunnel_are_drawn_each_along_its_own_points():
    line = [("straight line", 0.0, 0.25), ("straight line", 0.5, 2.0), ("straight line", 1.0, 0.5)]
    assert numbers(pictures.paths_picture) == [*line, ("tunnel", 0.0, 0.25), ("tunnel", 1.0, 0.5)]


def test_agreement_is_shown_with_either_end():
    first = [("with its beginning", 0.0, 1.0), ("with its beginning", 1.0, 0.75)]
    assert numbers(pictures.functions_picture) == [*first, ("with its end", 0.0, 0.625), ("with its end", 1.0, 1.0)]


def test_kinds_of_ensembles_are_drawn_in_the_order_they_are_stored_in():
    shown = numbers(pictures.sizes_picture)
    assert shown[:2] == [("solutions", 1.0, 0.0), ("solutions", 2.0, 1.0)] and shown[-1][0] == "low-rank samples"
    assert numbers(pictures.shifted_picture)[-1][2] == 9 / 16


@pytest.mark.parametrize("draw", [pictures.epochs_picture, pictures.runs_picture])
def test_a_matrix_is_drawn_for_weights_and_for_labels(draw):
    (figure,) = draw(FOUND)
    assert len(figure.panels) == 2 and all("and" in panel.svg for panel in figure.panels)


@pytest.mark.parametrize(
    "draw", ["epochs", "runs", "sizes", "shifted", "paths", "functions", "radial", "embedding", "diversity", "sources"]
)
def test_nothing_is_drawn_of_parts_that_were_stored_without_it(draw):
    assert getattr(pictures, f"{draw}_picture")({"seed-0": Stored({}, {})}) == []
