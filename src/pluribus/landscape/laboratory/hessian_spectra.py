"""In how many directions does the loss bend? Spectra of its Hessian at two solutions."""

from __future__ import annotations

import numpy as np

from ...report.claims import Claim, section
from ...report.figure import Curve, Figure, curve_panel, legend
from ...report.svg import Axis
from ..curvature import Spectrum, spectrum
from ..material import Material, spread


def loss_curvature(material: Material) -> Claim:
    """The spectra of the loss's Hessian at two solutions."""
    material.say("curvature at two solutions")
    train = tuple(part[:200] for part in material.train)
    spectra: dict[str, Spectrum] = {
        name: spectrum(run, train, top=5, probes=3, steps=30, tolerance=1e-2, exact=False, seed=material.seed)
        for name, run in zip(material.names[:2], material.runs, strict=False)
    }
    low = min(float(one.nodes.min()) for one in spectra.values())
    high = max(float(one.nodes.max()) for one in spectra.values())
    points = np.linspace(low - 0.05 * (high - low), high + 0.05 * (high - low), 200)
    curves: dict[str, Curve] = {name: (points, np.maximum(one.density(points), 1e-7)) for name, one in spectra.items()}
    top = max(float(values.max()) for _, values in curves.values())
    panel = curve_panel(
        curves, material.styles, ("eigenvalue", "density"), (Axis(points[0], points[-1]), Axis(1e-7, top, log=True)),
        lambda label: f"{label}: largest eigenvalue {spectra[label].values[0]:.3g}",
    )  # fmt: skip
    found = [
        f"{name}: the largest eigenvalues are {', '.join(f'{value:.3g}' for value in one.values)}, the smallest one "
        f"found {one.lowest:.3g}; the trace is {one.trace:.4g} with a standard error of {one.trace_error:.2g}."
        for name, one in spectra.items()
    ]
    shares = [float(one.weights[np.abs(one.nodes) < 0.01 * one.values[0]].sum()) for one in spectra.values()]
    few = min(shares) > 0.9
    found.insert(
        0,
        f"{'In few' if few else 'Not only in a few'}: a share of {spread(np.array(shares))} of all directions has less "
        "than a hundredth of the largest curvature.",
    )
    caption = (
        f"Density of the eigenvalues of the Hessian of the mean loss on {len(train[1])} training rows, by stochastic "
        "Lanczos quadrature; each eigenvalue is smoothed by a hundredth of the range."
    )
    figure = Figure("bending", "Spectra at two solutions", caption, [panel], "wide", legend(spectra, material.styles))
    claim = (
        "The Hessian has a bulk of eigenvalues around zero and a few large ones beside it (Sagun et al., 2017; "
        "Ghorbani et al., 2019)."
    )
    return section("curvature", "In how many directions does the loss bend?", claim, found, [figure])
