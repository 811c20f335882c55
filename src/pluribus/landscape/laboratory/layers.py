"""Do the layers of two runs represent the same thing?"""

from __future__ import annotations

import numpy as np

from ...report.charts.landscape import heat_map
from ...report.claims import Claim, section
from ...report.figure import Figure, Panel
from ..material import Material, spread
from ..representations import cka, layer_names


def layer_similarity(material: Material) -> Claim:
    """CKA between the layers of two runs."""
    material.say("layers of two solutions")
    first, second = material.solutions[:2]
    names = layer_names(first, material.test)
    across = cka(first, second, material.test, debiased=True)
    own = cka(first, data=material.test, debiased=True)
    same = np.diag(across)
    nearest = int((np.nanargmax(across, 1) == np.arange(len(names))).sum()) if np.isfinite(across).all() else 0
    ends = (min(0.0, float(np.nanmin(across))), 1.0)
    short = len(names) <= 8 and max(map(len, names)) <= 60 // len(names)  # names beside the rows, where there is room
    parts = [(name, [""]) for name in names] if short else [("layers", names)]
    panels = [
        Panel(heat_map(matrix, parts, "CKA", ends=ends), title)
        for matrix, title in ((across, "run 1 (rows) and run 2"), (own, "run 1 with itself"))
    ]
    found = [
        f"CKA of a layer with the same layer of the other run is {spread(same)}; for {nearest} of {len(names)} layers "
        "that is also the most similar layer.",
        f"Layer by layer: {', '.join(f'{name} {value:.2f}' for name, value in zip(names, same, strict=True))}.",
    ]
    caption = (
        "Linear CKA, debiased, on test rows: 1 where outputs are equal up to a rotation and a scale. The bluer, the"
        " more alike."
    )
    figure = Figure("layers", "Layers of two runs", caption, panels)
    claim = (
        "Layers of networks trained from different initialisations correspond to each other, early layers "
        "more than late ones (Kornblith et al., 2019)."
    )
    return section("layers", "Do the layers of two runs represent the same thing?", claim, found, [figure])
