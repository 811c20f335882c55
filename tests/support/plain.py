"""Small models as people write them, built to given widths."""

import torch
from torch import Tensor, nn

from pluribus._common.trees import as_batch


def call(model: nn.Module, example: object) -> Tensor:
    arguments, named = as_batch(example)
    output = model(*arguments, **named)
    return getattr(output, "logits", output)


def sizes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in [*model.named_parameters(), *model.named_buffers()]}


def flat(model: nn.Module) -> Tensor:
    """All its parameters in a row."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((8, *widths), (*widths, 3), strict=True):
        layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.GELU()]
    return nn.Sequential(*layers[:-2])


def cnn(a: int, b: int, c: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, a, 3, padding=1),
        nn.BatchNorm2d(a),
        nn.ReLU(),
        nn.Conv2d(a, a, 3, padding=1, groups=a),
        nn.Conv2d(a, b, 1),
        nn.InstanceNorm2d(b, affine=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(b * 16, c),
        nn.ReLU(),
        nn.Linear(c, 10),
    )


class Grouped(nn.Module):
    def __init__(self, groups: int, width: int):
        super().__init__()
        self.enter, self.inner = nn.Conv1d(4, width, 1), nn.Conv1d(width, width, 3, groups=groups)
        self.norm, self.leave = nn.GroupNorm(groups, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.norm(self.inner(self.enter(x))).mean(-1))


class Attention(nn.Module):
    """Attention written out, with its scale as an attribute and its heads as plain numbers."""

    def __init__(self, width: int, heads: int, head: int):
        super().__init__()
        self.heads, self.head, self.scale = heads, head, head**-0.5
        self.enter, self.qkv = nn.Linear(5, width), nn.Linear(width, 3 * heads * head)
        self.leave, self.out = nn.Linear(heads * head, width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        weights = (self.scale * q @ k.transpose(-1, -2)).softmax(-1)
        return self.out(self.leave((weights @ v).transpose(1, 2).reshape(batch, tokens, -1)).mean(1))


class Caching(nn.Module):
    """Plain tensors as attributes, and a cache that eval mode fills from a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 12), nn.Linear(12, 3)
        self.bias = nn.Parameter(torch.randn(12))
        self.mask, self.cache = torch.ones(12), {}

    def train(self, mode: bool = True) -> "Caching":
        self.cache = {}
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and "bias" not in self.cache:
            self.cache["bias"] = 2 * self.bias
        bias = self.cache["bias"] if not self.training else 2 * self.bias
        return self.leave(self.enter(x) * self.mask + bias)


class Looking(nn.Module):
    """Looks at the values that it is given: it does not run without them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(8, width), nn.LayerNorm(width)
        self.two, self.three = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x[:, :3]
        return self.three(torch.relu(self.two(self.norm(self.one(x)))))


class Stubborn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy().reshape(-1, 6, 4)).sum(-1)
