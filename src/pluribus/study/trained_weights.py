"""Trained weights in a file, put into a network: read without running anything in it, or refused by their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .._common.untrusted import is_plain_tensor
from ..landscape.checkpoints import Trajectory, prefix_of, state_dict_of


def read_weights(caller: str, path: str | Path, model: nn.Module) -> nn.Module:
    """The network with the weights in a checkpoint; a file that does not fit is refused with what does not.

    Args:
        path: a safetensors file, or what `torch.save` wrote of a state_dict
        model: a network of the architecture that was trained
    """
    path = Path(path)
    try:
        stored = state_dict_of(path)
        _check_fit(stored, model)
        return Trajectory.of([stored], model).solution
    except FileNotFoundError:
        raise FileNotFoundError(f"{caller}: file not found: {str(path)!r}.") from None
    except (ValueError, TypeError) as error:
        said = str(error).removeprefix("Trajectory.of: ").replace("checkpoint 0", "the file")
        if "eights only" in said:  # torch's own words advise to run what is in the file
            said = "it holds something other than weights, and no code in a checkpoint is run. Save model.state_dict()."
        raise ValueError(f"{caller}: {str(path)!r} does not fit: {said}") from error


def _check_fit(stored: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse weights that the model has no place for, or that have other shapes: they are of another architecture."""
    own = model.state_dict()
    prefix = prefix_of(own, stored)  # what stands before the names of a wrapped model
    tensors = {name: tensor for name, tensor in stored.items() if is_plain_tensor(tensor)}
    named = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if more := [name for name in named if name not in own]:
        raise ValueError(
            f"it has {len(more)} tensors that the model lacks, such as {more[0]!r}. Give the model that was trained."
        )
    shapes = {name: (tuple(named[name].shape), tuple(own[name].shape)) for name in own if name in named}
    other = [f"{name} {found} for {wanted}" for name, (found, wanted) in shapes.items() if found != wanted]
    if len(other) > 1:
        shown = "; ".join(other[:6])
        raise ValueError(
            f"{len(other)} tensors differ in shape from the model's: {shown}. Give the model that was trained."
        )
