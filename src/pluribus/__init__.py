"""Out of many networks, one: efficient ensembles from any PyTorch model."""
from .methods import *
from .methods import METHODS
