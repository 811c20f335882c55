"""Out of many networks, one: efficient ensembles from any PyTorch model, and what their uncertainty is worth."""

from . import models
from .calibration import calibrate
from .conformal import abstain, conformal
from .cost import Cost, cost
from .ensemble import Ensemble
from .evaluation import bootstrap, evaluate, ood
from .files import load, save
from .methods import (
    METHODS,
    batch_ensemble,
    deep,
    masksembles,
    mc_dropout,
    mimo,
    multihead,
    packed,
    single,
    treenet,
)
from .metrics import METRICS
from .prediction import Classification, Regression
from .summary import Summary
from .training import PerMember

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "METRICS",
    "Classification",
    "Cost",
    "Ensemble",
    "PerMember",
    "Regression",
    "Summary",
    "abstain",
    "batch_ensemble",
    "bootstrap",
    "calibrate",
    "conformal",
    "cost",
    "deep",
    "evaluate",
    "load",
    "masksembles",
    "mc_dropout",
    "mimo",
    "models",
    "multihead",
    "ood",
    "packed",
    "save",
    "single",
    "treenet",
]
