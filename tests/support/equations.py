"""What a member of each method computes, by the equations of the papers, put into a network that is built apart."""

import torch
from torch import Tensor, nn

import pluribus as pb

LAYERS = ("enter", "middle", "leave")


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.relu(self.inside(torch.relu(self.enter(x)))))

    def inside(self, h: Tensor) -> Tensor:
        return self.middle(h)


def make(method: str, model: nn.Module, example: Tensor | None) -> pb.Ensemble:
    """An ensemble of three in eval mode, whose members have biases and products of their own that are not zero."""
    options: dict = {"treenet": {"branch": "leave|middle"}, "mc_dropout": {"rate": 0.1}}.get(method, {})
    if method in ("packed", "mimo") or (example is not None and method not in ("deep", "treenet", "single")):
        options = {**options, "example": torch.randn(4, 6)}
    if method == "packed":
        options["alpha"] = 3
    if method == "lora":
        options["gain"] = 0.3
    ensemble = pb.METHODS[method](model, *(() if method == "single" else (3,)), **options).eval()
    with torch.no_grad():
        for name, parameter in ensemble.module.named_parameters():
            if name.endswith((".b", "lora_b")):
                parameter.add_(torch.randn_like(parameter))
    return ensemble


def separate(kind: type[nn.Module], ensemble: pb.Ensemble, i: int) -> nn.Module:
    """A network with the weights that member i has by the equation of its method."""
    network = kind()
    stacked = {name: t for name, t in ensemble.module.state_dict().items() if isinstance(t, Tensor)}
    whole = {name: (t[i] if name in ensemble.own else t).clone() for name, t in stacked.items()}
    for name in LAYERS:
        own = {key.rpartition(".")[2]: tensor for key, tensor in whole.items() if key.startswith(f"{name}.")}
        weight, bias = own["weight"], own.get("b", own.get("bias"))
        if "r" in own:
            weight = own["s"][:, None] * weight * own["r"]
        if "lora_a" in own:
            weight = weight + own["lora_b"] @ own["lora_a"]
        if "mask" in own:
            weight = weight * own["mask"]
        layer = network.get_submodule(name)  # with its hooks
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if name.partition(".")[0] not in LAYERS and isinstance(tensor, Tensor):  # packed integers are none
                tensor.copy_(whole[name])
    return network.eval()
