"""An ensemble in one file: its tensors as safetensors, how to build it again as JSON in the header. No pickle."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._common.atomic import check_place
from .._common.signed_files import check_digest, read_safetensors, write_safetensors
from .._common.untrusted import check_shape, parse_json
from ..core.ensemble import TASKS, Ensemble
from ..core.execution import BY_HAND
from ..methods import METHODS
from ..methods.method_info import call_method
from ..surgery.closures import refuse_hidden
from ..surgery.copying import assign_, duplicate_mapped, hash_tensors, state
from ..surgery.selecting import quote_names
from ..surgery.thinning.widths import Widths

FORMAT = 1


def save(ensemble: Ensemble, path: str | os.PathLike[str], *, whole: bool = False) -> None:
    """Write everything that makes the ensemble: every tensor, masks included, method, settings and task.

    Where a method has frozen all that members share (`pb.lora`), and it is still as it was given, the file holds what
    members own alone, and names the model by a hash of its weights; `load` refuses another model.
    The file is complete or not there: it is written beside its place and then moved.

    Args:
        ensemble: what is written; it stays as it is
        path: the file; it is replaced as a whole, or stays as it was
        whole: write what members share in any case, so that `load` takes a model with any weights

    >>> ensemble = pb.packed(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), 2, example=torch.randn(5, 4))
    >>> save(ensemble, "two.safetensors")
    >>> Path("two.safetensors").exists()
    True
    """
    if not isinstance(ensemble, Ensemble):
        inside = hasattr(ensemble, "ensemble")  # of Calibrated and Upgrade
        hint = "Give its .ensemble; the calibration is not saved." if inside else "Make one with pb.single(model)."
        raise TypeError(f"save: needs an Ensemble, but got a {type(ensemble).__name__}. {hint}")
    if ensemble.method not in METHODS:
        raise ValueError(f"save: the method {ensemble.method!r} is unknown. Choose from {quote_names(METHODS)}.")
    path = Path(path)
    check_place("save", path)
    shared = {} if whole or not ensemble.base else _shared_tensors(ensemble)
    base = ensemble.base if shared and hash_tensors(shared) == ensemble.base else ""  # unchanged since it was made
    left_out = shared if base else {}
    tensors = {name: tensor for name, tensor in state(ensemble.module) if name not in left_out}
    write_safetensors(
        path, tensors, {"pluribus": json.dumps({**_header(ensemble), "base": base, "extra": _extra_states(ensemble)})}
    )


def load(
    path: str | os.PathLike[str],
    model: nn.Module | Callable[..., nn.Module] | Sequence[nn.Module],
    device: torch.device | str = "cpu",
) -> Ensemble:
    """The saved ensemble, rebuilt from the model it was made of.

    Nothing in the file is executed. The model is not changed, and no example is needed.

    Args:
        path: the file that `save` wrote
        model: the model, builder or (for unlike architectures) list of models that the method was given
        device: where the tensors go

    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), torch.randn(5, 4)
    >>> ensemble = pb.packed(model, 2, example=x)
    >>> save(ensemble, "again.safetensors")
    >>> torch.equal(load("again.safetensors", model)(x), ensemble(x))
    True
    """
    header, tensors = _read(Path(path), device)
    if isinstance(model, nn.Module):
        bare = duplicate_mapped(model, lambda tensor: tensor.detach().to("meta"))
        with torch.device("meta"):  # before anything is allocated that the file only claims
            _check_fit(header, _build(header, bare), tensors)
    with ThreadPoolExecutor(1) as pool:  # it takes the time of a copy to read all, and meanwhile the rest goes on
        checked = pool.submit(check_digest, Path(path), note=True)
        made = _build(header, model)
        _check_fit(header, made, tensors)
        _check_base(header, made)
        _fill_(made.module, tensors)
        try:
            checked.result()
        except ValueError as error:
            raise ValueError(f"load: {str(path)!r}: {error}. Restore it from a copy, or train again.") from None
    for name, value in header.get("extra", {}).items():
        made.module.get_submodule(name).set_extra_state(value)
    made.task, made.class_dim = header["task"], header.get("class_dim")
    made.votes = tuple(header["votes"]) if "votes" in header else None
    made.to(device)
    return made.train(header["training"])


@torch.no_grad()
def _fill_(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module these tensors: in the memory of its own where they fit, which attributes may be views of."""
    known = dict(state(module))
    fits = {name for name, tensor in tensors.items() if _fits_in_place(known[name], tensor)}
    others = {name: tensor.clone() for name, tensor in tensors.items() if name not in fits}
    refuse_hidden("load", module, {name: known[name] for name in others})
    for name in fits:
        known[name].copy_(tensors[name])
    assign_(module, others)


def _fits_in_place(old: Tensor, new: Tensor) -> bool:
    alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    return alike and not old.is_meta and not old.is_inference() and old.is_contiguous()


def _check_fit(header: Mapping[str, Any], made: Ensemble, tensors: Mapping[str, Tensor]) -> None:
    left_out = _shared_tensors(made) if header.get("base") else {}
    own = {name: tensor for name, tensor in state(made.module) if name not in left_out}
    kept = {name for name, part in made.module.named_modules() if _has_extra_state(part)}
    if kept != header.get("extra", {}).keys():
        raise ValueError(
            f"load: the model's parts {quote_names(sorted(kept))} keep a state beside their tensors (get_extra_state), "
            f"but the file has that of {quote_names(sorted(header.get('extra', {})))}. Save the ensemble again."
        )
    if missing := own.keys() ^ tensors.keys():
        raise ValueError(
            f"load: the file's tensors must be those of the ensemble, but {quote_names(sorted(missing), 6)} are in "
            f"only one of the two. Give the model that was given to pb.{header['method']}."
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"load: {name!r} must have the shape {tuple(own[name].shape)}, but the file has {tuple(tensor.shape)}. "
                f"Give the model that was given to pb.{header['method']}."
            )
        if not _is_kind_of(tensor.dtype, own[name].dtype):
            raise ValueError(f"load: {name!r} must hold numbers as {own[name].dtype} does, but holds {tensor.dtype}.")


def _check_base(header: Mapping[str, Any], made: Ensemble) -> None:
    """Refuse another model than the one whose frozen weights the members were trained beside."""
    if (base := header.get("base")) and made.base != base:
        raise ValueError(
            f"load: the file holds what members own besides a model whose weights have the hash {base}, but those of "
            f"the model given have {made.base or 'none, since they have no values'}. Give the model with the weights "
            f"that pb.{header['method']} was given."
        )


def _shared_tensors(ensemble: Ensemble) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state(ensemble.module) if name not in ensemble.own}


def _is_kind_of(found: torch.dtype, own: torch.dtype) -> bool:
    """Whether both are floats to compute with, or both complex, or both the same."""
    if own.is_floating_point:
        return found.is_floating_point and found.itemsize > 1
    return found == own or found.is_complex and own.is_complex


def _extra_states(ensemble: Ensemble) -> dict[str, Any]:
    """What parts of the model keep beside their tensors (`get_extra_state`), by their names."""
    parts = {name: part for name, part in ensemble.module.named_modules() if _has_extra_state(part)}
    found = {name: part.get_extra_state() for name, part in parts.items()}
    for name, value in found.items():
        own = [] if ensemble.joint else [member.get_submodule(name).get_extra_state() for member in ensemble.members]
        if not _is_plain(value) or any(each != value for each in own):
            raise ValueError(
                f"save: {name or 'the model'!r} keeps a state of its own beside its tensors (get_extra_state), which "
                "the file can hold if it is numbers and words, and the same for all members, but it is not. Keep it "
                "in a buffer, or use torch.save(ensemble)."
            )
    return found


def _has_extra_state(part: nn.Module) -> bool:
    return type(part).get_extra_state is not nn.Module.get_extra_state


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False


def _header(ensemble: Ensemble) -> dict[str, Any]:
    from .. import __version__

    return {
        "format": FORMAT,
        "version": __version__,
        "method": ensemble.method,
        "size": ensemble.size,
        **({"votes": ensemble.votes} if ensemble.votes else {}),
        "settings": ensemble.settings,
        "task": ensemble.task,
        "class_dim": ensemble.class_dim,
        "run": ensemble.run if ensemble.runner.why == BY_HAND else None,
        "training": ensemble.training,
        "unlike": not ensemble.stacked,
    }


def _read(path: Path, device: torch.device | str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors, checked."""
    if not path.exists():
        raise FileNotFoundError(f"load: there is no file {str(path)!r}.")
    try:
        header, tensors = read_safetensors(path, "pluribus")
    except ValueError as error:
        raise ValueError(f"load: {str(path)!r}: {error}. Give a file that pb.save wrote.") from error
    try:
        return _check_header(parse_json(header or "null")), {name: t.to(device) for name, t in tensors.items()}
    except ValueError as error:
        raise ValueError(f"load: {str(path)!r} was not written by pb.save: {error}.") from error


WIDTHS = {"sizes": {str: [int]}, "attributes": [[Any]], "rounded": [{str: Any}]}

HEADER = {
    "format": int,
    "method": str,
    "size": int,
    "settings": {str: Any},
    "task": str,
    "training": bool,
    "class_dim?": (None, int),
    "unlike?": bool,
    "base?": str,
    "votes?": [int],
    "extra?": {str: Any},
}

MOST_MEMBERS = 10_000  # of what owns no tensor, MC-Dropout, nothing else says how many there can be


def _check_header(header: Any) -> dict[str, Any]:
    if header is None:
        raise ValueError("its header has no entry 'pluribus'")
    check_shape(header, HEADER, "its header")
    if header["format"] > FORMAT:
        raise ValueError(
            f"its format {header['format']} is from a newer version ({header.get('version')}); update pluribus"
        )
    if header["method"] not in METHODS:
        raise ValueError(f"its method {header['method']!r} is unknown")
    if header["task"] not in TASKS or not 1 <= header["size"] <= MOST_MEMBERS:
        raise ValueError(f"its task {header['task']!r} or its size {header['size']} makes no sense")
    votes = header.get("votes", [1] * header["size"])
    if len(votes) != header["size"] or min(votes) < 1 or sum(votes) > MOST_MEMBERS:
        raise ValueError(f"its votes {votes[:9]} are not those of {header['size']} members")
    known = inspect.signature(METHODS[header["method"]]).parameters
    if unknown := [name for name in header["settings"] if name not in known]:
        raise ValueError(f"{header['method']} has no setting {quote_names(unknown, 3)}")
    check_shape(header["settings"].get("widths"), (None, WIDTHS), "its widths")
    return header


def _build(header: Mapping[str, Any], model: Any) -> Ensemble:
    method, size, settings = METHODS[header["method"]], header["size"], dict(header["settings"])
    if header.get("unlike") and (not isinstance(model, (list, tuple)) or len(model) != size):
        raise ValueError(f"load: the file holds {size} models that differ. Give a list of {size} models.")
    try:
        if settings.get("widths") is not None:
            settings["widths"] = Widths.from_json(settings["widths"])
        if header.get("unlike"):
            return method(model)
        if isinstance(model, (list, tuple)):
            model = model[0]
        made = call_method(method, model, size, settings)
        if header.get("run") in ("vmap", "loop") and header["run"] != made.run:
            made.run = header["run"]
        return made
    except Exception as error:  # settings of any kind, given to the method as they are
        raise ValueError(
            f"load: the file's settings do not make a {header['method']} ensemble of this model ({error}). Give the "
            f"model that was given to pb.{header['method']}."
        ) from error
