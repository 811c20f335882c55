"""Out of many networks, one: efficient ensembles from any PyTorch model, and what their uncertainty is worth."""

from . import models
from .cost import Cost, cost
from .ensemble import Ensemble
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
from .prediction import Classification, Regression
from .training import PerMember

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Classification",
    "Cost",
    "Ensemble",
    "PerMember",
    "Regression",
    "batch_ensemble",
    "cost",
    "deep",
    "load",
    "masksembles",
    "mc_dropout",
    "mimo",
    "models",
    "multihead",
    "packed",
    "save",
    "single",
    "treenet",
]
