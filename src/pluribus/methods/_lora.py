"""LoRA-Ensemble: one frozen network, and low-rank matrices of each member's own beside its weights."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.ensemble import Ensemble
from ..surgery.copying import aliases, assign_, hash_tensors, state
from ..surgery.replacing import expose_weights
from ..surgery.selecting import exact_pattern, pick, quote_names
from .adapted_layers import LowRank, is_transposed, outputs_first
from .building import begin_, check_model, check_number, check_size, check_whole
from .layer_choice import check_read_inside, heads_of, refuse_tied
from .method_info import Paper, method_info

FUSED = re.compile(r"(.*\.)?(qkv|qkv_proj|Wqkv|c_attn|in_proj)")  # queries, keys and values below each other
PARTS = ("q", "k", "v")


@method_info(
    for_trained=True,
    tuning_rate=10.0,
    paper=Paper(
        r"Halbheer, Michelle and M\"uhlematter, Dominik Jan and Becker, Alexander and Narnhofer, Dominik and "
        "Aasen, Helge and Schindler, Konrad and Turkoglu, Mehmet Ozgur",
        "LoRA-Ensemble: Uncertainty Modelling for Self-attention Networks",
        2024,
        arxiv="2405.14438",
    ),
)
def lora(
    model: nn.Module,
    size: int,
    rank: int = 8,
    alpha: float | None = None,
    *,
    where: str | None = None,
    heads: bool = False,
    gain: float = 10.0,
    example: Any = None,
    generator: torch.Generator | None = None,
) -> Ensemble:
    """One frozen network, and each member's low-rank matrices: W x + (alpha / rank) B A x (Halbheer et al., 2024).

    Every weight of the model is kept, shared and frozen, and statistics of normalisation are not updated. Each member
    draws an A of its own by Xavier's uniform law; B is zero, so that all members start as the model given and part
    as they learn. In training every member sees every row, and the losses are summed: one joint step equals separate
    steps. `pb.save` writes what members own alone, and names the model by a hash of its weights.

    Shapes:
        input: (batch, *features), as the model takes it
        output of the ensemble: (members, batch, *outputs)

    Args:
        size: how many members
        alpha: by default the rank, which leaves the product as it is
        where: the linear layers that get matrices; by default those inside of attention (queries, keys, values and the
            output, as in the paper), or all in a model without attention. A layer that holds queries, keys and values
            side by side (qkv) counts as three: ".*qkv" takes all of them, r".*qkv\\.(q|v)" two
        heads: each member also owns the last layer, which starts as the model's own; where that is the only linear
            layer, as in many convolutional networks, it gets matrices like any other
        gain: of Xavier's law for A; the paper's 10
        example: finds the last layer; without one it is the model's declared or last defined one
        generator: where random numbers come from; by default torch's own generator

    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 4)
    >>> ensemble = lora(model, 4, rank=2)
    >>> torch.allclose(ensemble(x)[0], model(x))  # members start as the model
    True
    """
    size, rank = check_size("lora", size), check_whole("lora", "rank", rank)
    positive = "finite and positive"
    alpha = rank if alpha is None else check_number("lora", "alpha", alpha, positive, lambda v: 0 < v < math.inf)
    gain = check_number("lora", "gain", gain, positive, lambda v: 0 < v < math.inf)
    model = expose_weights(check_model("lora", model))
    last = heads_of(model, None, example) if heads else []
    refuse_tied("lora", model, last, "Leave heads= out.")
    if last and not any(_is_linear(part) for name, part in model.named_modules() if name not in last):
        last = []  # the only linear layer, as in many convolutional networks: it gets matrices instead of copies
    names = _choose_projections(model, where, last)
    layers = dict.fromkeys(_layer_of(name, model) for name in names)
    for name in layers:
        _low_rank_(model.get_submodule(name), _pieces(name, names, model), size, rank, alpha / rank, gain, generator)
    own = [f"{name}.{key}" for name in layers for key in ("lora_a", "lora_b")]
    tensors = [n for n, every in aliases(model).items() if all(place.rpartition(".")[0] in last for place in every)]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in own or (name in tensors and parameter.requires_grad))
    assign_(model, {n: torch.stack([t.detach()] * size) for n, t in state(model) if n in tensors})
    settings = {"rank": rank, "alpha": alpha, "where": exact_pattern(names), "heads": heads, "gain": gain}
    notes = [f"matrices of rank {rank} beside {len(names)} projections: {quote_names(names, 6)}"]
    notes += [f"each member owns the last layer: {quote_names(last)}"] if last else []
    made = Ensemble(
        model,
        size,
        [*own, *tensors],
        method="lora",
        settings=settings,
        notes=notes,
        first_look=partial(check_read_inside, keys=("weight",)),  # biases are shared
        example=example,
    )
    statistics = [name for name, p in model.named_modules() if isinstance(getattr(p, "running_mean", None), Tensor)]
    made.frozen_modules = frozenset(statistics)
    made.base = hash_tensors({name: t for name, t in state(model) if name not in made.own})
    return made.train(made.training)


# -------------------------------------------------------------------- which layers


def _choose_projections(model: nn.Module, where: str | None, heads: list[str]) -> list[str]:
    """The names of linear layers, and of the parts of fused ones, that get matrices."""
    linear = [name for name, part in model.named_modules() if _is_linear(part) and name not in heads]
    if not linear:
        raise ValueError("lora: the model has no linear layer to adapt. Use pb.batch_ensemble.")
    names = [part for name in linear for part in _parts(name, model)]
    if where is not None:
        return pick("lora", where, names)
    attention = [name for name, part in model.named_modules() if name and "Attention" in type(part).__name__]
    return [name for name in names if any(name.startswith(f"{each}.") for each in attention)] or names


def _parts(name: str, model: nn.Module) -> list[str]:
    """A layer's own name, or those of the three projections that it holds."""
    outputs, inputs = outputs_first(model.get_submodule(name)).shape
    fused = FUSED.fullmatch(name) and outputs == 3 * inputs
    return [f"{name}.{part}" for part in PARTS] if fused else [name]


def _layer_of(name: str, model: nn.Module) -> str:
    """The layer that a name of a projection belongs to."""
    layer, _, part = name.rpartition(".")
    return layer if part in PARTS and FUSED.fullmatch(layer) and _parts(layer, model) != [layer] else name


def _pieces(layer: str, names: list[str], model: nn.Module) -> tuple[tuple[int, int], ...]:
    """The outputs of a layer that get a product each."""
    outputs = outputs_first(model.get_submodule(layer)).shape[0]
    parts = _parts(layer, model)
    each = outputs // len(parts)
    return tuple((i * each, (i + 1) * each) for i, part in enumerate(parts) if part in names)


def _is_linear(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) or is_transposed(part)


# -------------------------------------------------------------------- matrices


def _low_rank_(
    layer: nn.Module, pieces: tuple[tuple[int, int], ...], size: int, rank: int, factor: float, gain: float,
    generator: torch.Generator | None,
) -> None:  # fmt: skip
    weight = outputs_first(layer)
    inputs, outputs = weight.shape[1], sum(stop - start for start, stop in pieces)
    bound = gain * math.sqrt(6 / (inputs + rank))  # of each A, (rank, inputs)
    drawn = torch.rand(size, len(pieces) * rank, inputs, generator=generator)
    layer.lora_a = nn.Parameter(((2 * drawn - 1) * bound).to(weight.device, weight.dtype))
    layer.lora_b = nn.Parameter(torch.zeros(size, outputs, rank, device=weight.device, dtype=weight.dtype))
    layer.pieces, layer.factor = pieces, factor  # type: ignore[assignment]
    begin_(layer, LowRank)
