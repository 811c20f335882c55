"""The nineteen corruptions of Hendrycks and Dietterich (2019), batched."""

from .catalogue import BENCHMARK, CORRUPTIONS, corrupt

__all__ = ["BENCHMARK", "CORRUPTIONS", "corrupt"]
