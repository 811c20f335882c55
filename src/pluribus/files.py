"""An ensemble in one file: its tensors as safetensors, how to build it again as JSON in the header. No pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .ensemble import TASKS, Ensemble
from .members import Several
from .methods import METHODS
from .surgery import assign_, listed, state
from .thinning import Widths

FORMAT = 1


def save(ensemble: Ensemble, path: str | os.PathLike[str]) -> None:
    """Write everything that makes the ensemble: every tensor, masks included, method, settings and task.

    The file is complete or not there: it is written beside its place and then moved.
    """
    if not isinstance(ensemble, Ensemble):
        raise TypeError(
            f"save: takes an Ensemble, but got a {type(ensemble).__name__}. Make one with pb.single(model)."
        )
    if ensemble.method not in METHODS:
        raise ValueError(f"save: the method {ensemble.method!r} is unknown. Known are {listed(METHODS)}.")
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save: the folder {str(path.parent)!r} does not exist. Create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"save: {str(path)!r} is a folder. Give the name of a file in it.")
    to_bytes = _safetensors("save").torch.save
    tensors = {name: _plain(tensor) for name, tensor in state(ensemble.module)}
    content = to_bytes(tensors, {"pluribus": json.dumps(_header(ensemble))})
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(
    path: str | os.PathLike[str],
    model: nn.Module | Callable[..., nn.Module] | Sequence[nn.Module],
    device: torch.device | str = "cpu",
) -> Ensemble:
    """The ensemble that was saved, built again from the model that it was made of.

    Nothing in the file is executed. The model is not changed, and no example is needed.

    Args:
        model: the model, builder or (for unlike architectures) list of models that the method was given
    """
    header, tensors = _read(Path(path), device)
    made = _built(header, model)
    own = dict(state(made.module))
    if missing := own.keys() ^ tensors.keys():
        raise ValueError(
            f"load: the file's tensors must be those of the ensemble, but {listed(sorted(missing), 6)} are only in "
            f"one of them. Give the model that was given to pb.{header['method']}."
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"load: {name!r} must have the shape {tuple(own[name].shape)}, but the file has {tuple(tensor.shape)}. "
                f"Give the model that was given to pb.{header['method']}."
            )
    assign_(made.module, tensors)
    made.task, made.class_dim = header["task"], header.get("class_dim")
    made.to(device)
    return made.train(header["training"])


def _safetensors(what: str) -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what}: needs safetensors. Install it with: pip install 'pluribus[save]'."
        ) from error
    return safetensors


def _header(ensemble: Ensemble) -> dict[str, Any]:
    from . import __version__

    return {
        "format": FORMAT,
        "version": __version__,
        "method": ensemble.method,
        "size": ensemble.size,
        "settings": ensemble.settings,
        "task": ensemble.task,
        "class_dim": ensemble.class_dim,
        "run": ensemble.run,
        "training": ensemble.training,
        "unlike": isinstance(ensemble, Several),
    }


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().clone()


def _read(path: Path, device: torch.device | str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors, checked."""
    if not path.is_file():
        raise FileNotFoundError(f"load: there is no file {str(path)!r}.")
    safetensors, device = _safetensors("load"), torch.device(device)
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            header = (file.metadata() or {}).get("pluribus")
            tensors = {name: file.get_tensor(name).clone().to(device) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"load: {str(path)!r} is no complete safetensors file ({error}). Give a file that pb.save wrote."
        ) from error
    try:
        parsed = _checked(json.loads(header or "null"))
    except KeyError as error:
        raise ValueError(f"load: {str(path)!r} was not written by pb.save: its header has no {error}.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"load: {str(path)!r} was not written by pb.save: {error}.") from error
    return parsed, tensors


def _checked(header: Any) -> dict[str, Any]:
    if not isinstance(header, dict):
        raise ValueError("its header has no entry 'pluribus'")
    if header["format"] > FORMAT:
        raise ValueError(
            f"it has format {header['format']}, from a newer version ({header['version']}); update pluribus"
        )
    if header["method"] not in METHODS:
        raise ValueError(f"its method {header['method']!r} is unknown")
    if header["task"] not in TASKS or not isinstance(header["settings"], dict) or not isinstance(header["size"], int):
        raise ValueError("its task, size or settings make no sense")
    return header


def _built(header: Mapping[str, Any], model: Any) -> Ensemble:
    method, size, settings = METHODS[header["method"]], header["size"], dict(header["settings"])
    if settings.get("widths") is not None:
        settings["widths"] = Widths.from_json(settings["widths"])
    if header.get("unlike"):
        if not isinstance(model, (list, tuple)) or len(model) != size:
            raise ValueError(f"load: the file holds {size} unlike models. Give a list of {size} models.")
        return method(model)
    if isinstance(model, (list, tuple)):
        model = model[0]
    made = method(model) if header["method"] == "single" else method(model, size, **settings)
    if header.get("run") in ("vmap", "loop") and header["run"] != made.run:
        made.run = header["run"]
    return made
