"""Out of many networks, one: efficient ensembles from any PyTorch model, and what their uncertainty is worth."""

from . import figures, metrics, models
from .calibration import Calibrated, calibrate
from .conformal import Conformal, Threshold, abstain, conformal
from .cost import Cost, cost
from .ensemble import Ensemble
from .evaluation import bootstrap, by_member, compare, evaluate, ood, shift, torchmetric
from .export import Export, export
from .files import load, save
from .freeze import Frozen, freeze
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
from .optimizers import PerMember
from .planning import Plan, plan
from .prediction import Classification, Regression, gaussian_nll
from .recipes import RECIPES, Recipe
from .summary import Summary
from .training import History, fit, lightning_module

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "METRICS",
    "RECIPES",
    "Calibrated",
    "Classification",
    "Conformal",
    "Cost",
    "Ensemble",
    "Export",
    "Frozen",
    "History",
    "PerMember",
    "Plan",
    "Recipe",
    "Regression",
    "Summary",
    "Threshold",
    "abstain",
    "batch_ensemble",
    "bootstrap",
    "by_member",
    "calibrate",
    "compare",
    "conformal",
    "cost",
    "deep",
    "evaluate",
    "export",
    "figures",
    "fit",
    "freeze",
    "gaussian_nll",
    "lightning_module",
    "load",
    "masksembles",
    "mc_dropout",
    "metrics",
    "mimo",
    "models",
    "multihead",
    "ood",
    "packed",
    "plan",
    "save",
    "shift",
    "single",
    "torchmetric",
    "treenet",
]
