"""Small networks of every odd kind, with the groups of hidden units that a person would write down for each.

A group is its size; `(4, 2)` is a group of 4 units with an order of its own in each of 2 units of another group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = int | tuple[int, int]


class Odd(NamedTuple):
    """How to build the network, an example for it, and the sizes of its groups."""

    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    sizes: list[Size]


class Net(nn.Module):
    """A network of named parts, tensors among them, and a function of it and its input."""

    def __init__(self, run: Callable[..., Any], **parts: Any):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *args: Any) -> Any:
        """What the function gives."""
        return self.run(self, *args)


def rows(*shape: int) -> Callable[[], Tensor]:
    """Numbers of that shape."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def seeded(number: int = 0) -> torch.Generator:
    """Chance of its own."""
    return torch.Generator().manual_seed(number)


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The network with weights that follow a seed, in eval mode."""
    torch.manual_seed(seed)
    return build().eval()


def linear(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers: list[nn.Module] = []
    for i, o in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def conv(i: int, o: int, k: int = 3, **options: Any) -> nn.Conv2d:
    """A convolution that keeps the size of the image."""
    return nn.Conv2d(i, o, k, padding=k // 2, **options)


def pooled(x: Tensor) -> Tensor:
    """Means over the image."""
    return x.mean((2, 3))


def residual(m: Any, x: Tensor) -> Tensor:
    """Two blocks on one stream."""
    x = m.enter(x)
    for block in m.blocks:
        x = x + block(x)
    return m.head(x)


def dense(m: Any, x: Tensor) -> Tensor:
    """Each layer sees all before it."""
    for layer in m.layers:
        x = torch.cat([x, layer(x).relu()], 1)
    return m.head(pooled(x))


def attention(m: Any, x: Tensor, heads: int = 2, shared: int = 1) -> Tensor:
    """Self-attention by hand; `shared` heads of queries for each of keys."""
    x = m.enter(x)
    b, t, _ = x.shape
    q = m.q(x).view(b, t, heads, -1).transpose(1, 2)
    k, v = (part(x).view(b, t, heads // shared, -1).transpose(1, 2) for part in (m.k, m.v))
    k, v = (part.repeat_interleave(shared, 1) for part in (k, v))
    scores = (q @ k.transpose(-1, -2) / 2).softmax(-1)
    return m.head(x + m.o((scores @ v).transpose(1, 2).reshape(b, t, -1))).mean(1)


def fused(m: Any, x: Tensor) -> Tensor:
    """Queries, keys and values from one matrix, and attention in one call."""
    x = m.enter(x)
    b, t, _ = x.shape
    q, k, v = m.qkv(x).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
    return m.head(x + m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, 8))).mean(1)


def squeeze_excite(m: Any, x: Tensor) -> Tensor:
    """Channels with gates from their means."""
    x = m.enter(x).relu()
    return m.head(pooled(x * m.gate(pooled(x)).sigmoid()[:, :, None, None]))


def standardised(m: Any, x: Tensor) -> Tensor:
    """Weights with mean 0 and variance 1."""
    w = m.mid.weight
    w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
    return m.head(pooled(F.conv2d(m.enter(x).relu(), w, m.mid.bias, padding=1).relu()))


def experts(m: Any, x: Tensor) -> Tensor:
    """The best of three experts for each row."""
    best = m.gate(x).topk(1).indices[:, 0]
    out = torch.zeros(len(x), 2, dtype=x.dtype)
    for i, expert in enumerate(m.experts):
        out[best == i] = expert(x[best == i])
    return out


def swish_gate(m: Any, x: Tensor) -> Tensor:
    """A gated layer in the manner of Llama."""
    return m.down(F.silu(m.gate(x)) * m.up(x))


def written(m: Any, x: Tensor) -> Tensor:
    """Halves written into a tensor of zeros."""
    out = torch.zeros(len(x), 8, dtype=x.dtype)
    out[:, :4] = m.one(x).relu()
    out[:, 4:] = m.two(x).relu()
    return m.head(out)


def unet(m: Any, x: Tensor) -> Tensor:
    """Down and up again, joined."""
    high = m.enter(x).relu()
    low = F.interpolate(m.down(F.max_pool2d(high, 2)).relu(), scale_factor=2)
    return m.head(torch.cat([high, low], 1))


def sub_pixel(m: Any, x: Tensor) -> Tensor:
    """Channels as pixels and back."""
    x = F.pixel_shuffle(m.enter(x).relu(), 2)
    return m.head(pooled(F.pixel_unshuffle(m.mid(x).relu(), 2)))


def in_place(m: Any, x: Tensor) -> Tensor:
    """Changes in place through views."""
    hidden = m.enter(x)
    hidden[:, :3].relu_()
    hidden[:, 3:].tanh_()
    return m.head(hidden)


def bilinear_pool(m: Any, x: Tensor) -> Tensor:
    """All products of two features."""
    a, b = m.one(x), m.two(x)
    return m.head(torch.einsum("bi,bj->bij", a, b).flatten(1))


def axial(m: Any, x: Tensor) -> Tensor:
    """Tokens mixed through hidden units of their own, then channels."""
    x = m.enter(x)
    x = x + m.tokens(x.transpose(1, 2)).transpose(1, 2)
    return m.head((x + m.channels(x)).mean(1))


def positions(m: Any, x: Tensor) -> Tensor:
    """Positions of which only the first are used."""
    return m.head((m.enter(x) + m.table[:, : x.shape[1]]).relu().mean(1))


def several(m: Any, x: Tensor) -> dict[str, Any]:
    """Outputs in a tree."""
    hidden = m.enter(x).relu()
    return {"mean": m.mean(hidden), "more": (m.scale(hidden).exp(), [x])}


def depthwise() -> nn.Sequential:
    """Convolutions channel by channel, with a multiplier."""
    return nn.Sequential(
        conv(3, 6), nn.ReLU(), conv(6, 6, groups=6), nn.BatchNorm2d(6), conv(6, 12, groups=6), nn.ReLU6(),
        conv(12, 5, 1), nn.Flatten(),
    )  # fmt: skip


def tied() -> nn.Module:
    """An autoencoder whose decoder is its encoder's transpose."""
    return Net(lambda m, x: F.linear(F.linear(x, m.w, m.b).relu(), m.w.T), w=torch.randn(8, 5), b=torch.randn(8))


def weight_normalised() -> nn.Module:
    """Weight norm as a parametrization and as a hook, spectral norm."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.utils.weight_norm(nn.Linear(7, 6))
    new = nn.utils.parametrizations.weight_norm(nn.Linear(5, 7))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))
    return nn.Sequential(new, nn.ReLU(), old, nn.Tanh(), spectral, nn.ReLU(), nn.Linear(4, 2))


def encoder(**options: Any) -> nn.Module:
    """PyTorch's own encoder."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **options)
    return Net(
        lambda m, x: m.head(m.body(m.enter(x)).mean(1)),
        enter=nn.Linear(5, 8), body=nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), head=nn.Linear(8, 3),
    )  # fmt: skip


def projections(**sizes: int) -> dict[str, nn.Module]:
    """Layers of attention."""
    return {
        "enter": nn.Linear(5, 6), "q": nn.Linear(6, sizes["q"]), "k": nn.Linear(6, sizes["k"]),
        "v": nn.Linear(6, sizes["v"]), "o": nn.Linear(sizes["o"], 6), "head": nn.Linear(6, 3),
    }  # fmt: skip


IMAGE, TABLE, SEQUENCE = rows(2, 3, 8, 8), rows(6, 5), rows(3, 4, 5)

ODD: dict[str, Odd] = {
    "mlp": Odd(lambda: linear(5, 7, 6, 2), TABLE, [7, 6]),
    "no bias": Odd(lambda: nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 2)), TABLE, [7]),
    "residual": Odd(
        lambda: Net(
            residual, enter=nn.Linear(5, 6), blocks=nn.ModuleList([linear(6, 9, 6), linear(6, 4, 6)]),
            head=nn.Linear(6, 2),
        ),
        TABLE, [6, 9, 4],
    ),
    "densenet": Odd(
        lambda: Net(dense, layers=nn.ModuleList([conv(3, 4), conv(7, 5), conv(12, 6)]), head=nn.Linear(18, 2)), IMAGE,
        [4, 5, 6],
    ),
    "top-k, its values": Odd(
        lambda: Net(lambda m, x: m.head(m.enter(x).topk(3).values), enter=nn.Linear(5, 7), head=nn.Linear(3, 2)),
        TABLE, [7],
    ),
    "top-k of some, others beside": Odd(
        lambda: Net(
            lambda m, x: m.head(torch.cat([(h := m.enter(x)).sort(1).values, h[:, :3]], 1)),
            enter=nn.Linear(5, 7), head=nn.Linear(10, 2),
        ),
        TABLE, [3, 4],
    ),
    "u-net": Odd(lambda: Net(unet, enter=conv(3, 4), down=conv(4, 6), head=conv(10, 2)), IMAGE, [4, 6]),
    "transposed convolution": Odd(
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, 2), nn.ReLU(), conv(6, 2)), IMAGE,
        [4, 6],
    ),
    "grouped convolution": Odd(
        lambda: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 12, groups=2), nn.ReLU(), conv(12, 2)), IMAGE,
        [2, (4, 2), (6, 2)],
    ),
    "grouped transposed convolution": Odd(
        lambda: nn.Sequential(conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 12, 2, 2, groups=2), nn.ReLU(), conv(12, 2)),
        IMAGE, [2, (4, 2), (6, 2)],
    ),
    "depthwise convolution": Odd(depthwise, IMAGE, [6, (2, 6)]),
    "pixel shuffle": Odd(
        lambda: Net(sub_pixel, enter=conv(3, 12), mid=conv(3, 4), head=nn.Linear(16, 2)), IMAGE, [3, 4]
    ),
    "squeeze and excitation": Odd(
        lambda: Net(squeeze_excite, enter=conv(3, 8), gate=linear(8, 3, 8), head=nn.Linear(8, 2)), IMAGE, [8, 3]
    ),
    "flatten after a convolution": Odd(
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 2)), IMAGE,
        [4],
    ),
    "batch norm": Odd(
        lambda: nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 6), nn.BatchNorm2d(6), conv(6, 2)),
        IMAGE, [4, 6],
    ),
    "group norm": Odd(
        lambda: nn.Sequential(conv(3, 8), nn.GroupNorm(2, 8), nn.ReLU(), conv(8, 2)), IMAGE, [2, (4, 2)]
    ),
    "instance norm": Odd(
        lambda: nn.Sequential(conv(3, 6), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), conv(6, 2)), IMAGE, [6]
    ),
    "layer norm": Odd(lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)), TABLE, [6]),
    "rms norm": Odd(lambda: nn.Sequential(nn.Linear(5, 6), nn.RMSNorm(6), nn.Linear(6, 2)), TABLE, [6]),
    "local response norm": Odd(
        lambda: nn.Sequential(conv(3, 6), nn.LocalResponseNorm(3), conv(6, 4), nn.ReLU(), conv(4, 2)), IMAGE, [4]
    ),
    "prelu": Odd(lambda: nn.Sequential(nn.Linear(5, 6), nn.PReLU(6), nn.Linear(6, 2)), TABLE, [6]),
    "weight and spectral norm": Odd(weight_normalised, TABLE, [7, 6, 4]),
    "weight standardisation": Odd(
        lambda: Net(standardised, enter=conv(3, 4), mid=conv(4, 6), head=nn.Linear(6, 2)), IMAGE, [4, 6]
    ),
    "tied weights": Odd(tied, TABLE, [8]),
    "outer products": Odd(
        lambda: Net(bilinear_pool, one=nn.Linear(5, 4), two=nn.Linear(5, 3), head=nn.Linear(12, 2)), TABLE, [4, 3]
    ),
    "gated linear unit": Odd(lambda: nn.Sequential(nn.Linear(5, 12), nn.GLU(), nn.Linear(6, 2)), TABLE, [6]),
    "chunks": Odd(
        lambda: Net(
            lambda m, x: m.head(torch.mul(*m.enter(x).chunk(2, -1))), enter=nn.Linear(5, 12), head=nn.Linear(6, 2)
        ),
        TABLE, [6],
    ),
    "gate in the manner of llama": Odd(
        lambda: Net(swish_gate, gate=nn.Linear(5, 7), up=nn.Linear(5, 7), down=nn.Linear(7, 2)), TABLE, [7]
    ),
    "maxout": Odd(
        lambda: Net(
            lambda m, x: m.head(m.enter(x).view(len(x), 3, 4).amax(1)), enter=nn.Linear(5, 12), head=nn.Linear(4, 2)
        ),
        TABLE, [3, 4],
    ),
    "einsum": Odd(
        lambda: Net(
            lambda m, x: torch.einsum("bi,ihd,hdo->bo", x, m.one, m.two),
            one=torch.randn(5, 3, 4), two=torch.randn(3, 4, 2),
        ),
        TABLE, [4, (3, 4)],
    ),
    "gru": Odd(
        lambda: Net(
            lambda m, x: m.head(m.body(x)[0][:, -1]), body=nn.GRU(5, 6, 2, batch_first=True), head=nn.Linear(6, 2)
        ),
        SEQUENCE, [6, 6],
    ),
    "lstm in both directions": Odd(
        lambda: Net(
            lambda m, x: m.head(m.body(x)[0].mean(1)), body=nn.LSTM(5, 6, batch_first=True, bidirectional=True),
            head=nn.Linear(12, 2),
        ),
        SEQUENCE, [6, 6],
    ),
    "attention": Odd(
        lambda: Net(attention, **projections(q=8, k=8, v=10, o=10)), SEQUENCE, [6, 2, (4, 2), (5, 2)]
    ),
    "grouped queries": Odd(
        lambda: Net(lambda m, x: attention(m, x, 4, 2), **projections(q=12, k=6, v=10, o=20)), SEQUENCE,
        [6, 2, (2, 2), (3, 2), (5, 2)],
    ),
    "queries, keys and values in one matrix": Odd(
        lambda: Net(fused, enter=nn.Linear(5, 6), qkv=nn.Linear(6, 24), o=nn.Linear(8, 6), head=nn.Linear(6, 2)),
        SEQUENCE, [6, 2, (4, 2), (4, 2)],
    ),
    "multi-head attention": Odd(
        lambda: Net(
            lambda m, x: m.head(m.body(*[m.enter(x)] * 3)[0].mean(1)),
            enter=nn.Linear(5, 8), body=nn.MultiheadAttention(8, 2, batch_first=True), head=nn.Linear(8, 2),
        ),
        SEQUENCE, [8, 8, 2, (4, 2), (4, 2)],
    ),
    "encoder, norm first": Odd(lambda: encoder(norm_first=True), SEQUENCE, [8, 12, 2, (4, 2), (4, 2)]),
    "encoder, norm last": Odd(lambda: encoder(), SEQUENCE, [8, 12, 2, (4, 2), (4, 2)]),
    "mixer": Odd(
        lambda: Net(
            axial, enter=nn.Linear(5, 6), tokens=linear(4, 7, 4), channels=linear(6, 9, 6), head=nn.Linear(6, 2)
        ),
        SEQUENCE, [6, 7, 9],
    ),
    "positions": Odd(
        lambda: Net(positions, enter=nn.Linear(5, 6), table=torch.randn(1, 9, 6), head=nn.Linear(6, 2)), SEQUENCE, [6]
    ),
    "several outputs": Odd(
        lambda: Net(several, enter=nn.Linear(5, 6), mean=nn.Linear(6, 2), scale=nn.Linear(6, 2)), TABLE, [6]
    ),
    "writes into zeros": Odd(
        lambda: Net(written, one=nn.Linear(5, 4), two=nn.Linear(5, 4), head=nn.Linear(8, 2)), TABLE, [4, 4]
    ),
    "changes through views": Odd(lambda: Net(in_place, enter=nn.Linear(5, 7), head=nn.Linear(7, 2)), TABLE, [3, 4]),
    "experts": Odd(
        lambda: Net(experts, gate=nn.Linear(5, 3), experts=nn.ModuleList([linear(5, n, 2) for n in (4, 5, 6)])),
        rows(24, 5), [4, 5, 6],
    ),
    "temporal convolution": Odd(
        lambda: nn.Sequential(
            nn.Conv1d(4, 6, 3), nn.ReLU(), nn.Conv1d(6, 7, 3, dilation=2), nn.AdaptiveMaxPool1d(1), nn.Flatten()
        ),
        rows(3, 4, 9), [6],
    ),
    "convolution in space": Odd(
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.ELU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(4, 2)),
        rows(2, 2, 4, 4, 4), [4],
    ),
}  # fmt: skip

# Hidden units whose places count: what touches them must keep them where they are. One group of 5 is left in each.

HIDDEN = 6


def ordered(change: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A network of two hidden layers, the first of whose units are read in an order by `change`."""
    return lambda: Net(
        lambda m, x: m.head(m.mid(change(m.enter(x).relu())).relu()),
        enter=nn.Linear(5, HIDDEN), mid=nn.Linear(HIDDEN, 5), head=nn.Linear(5, 2),
    )  # fmt: skip


def strides(hidden: Tensor) -> Tensor:
    """The same numbers in another order, by an in-place change of strides."""
    hidden = hidden.clone()
    hidden.as_strided_((len(hidden), 3, 2), (HIDDEN, 1, 3))
    return hidden.reshape(len(hidden), HIDDEN)


def every_other(hidden: Tensor) -> Tensor:
    """Written into zeros, even places first."""
    out = torch.zeros(len(hidden), HIDDEN, dtype=hidden.dtype)
    out[:, ::2], out[:, 1::2] = hidden[:, :3], hidden[:, 3:]
    return out


def added_at(hidden: Tensor) -> Tensor:
    """Added to zeros at the places of an index."""
    out = torch.zeros(len(hidden), HIDDEN, dtype=hidden.dtype)
    return out.index_add(1, torch.tensor([0, 0, 1, 2, 3, 5]), hidden)


ORDERED: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda h: h.flip(1) * torch.arange(HIDDEN),
    "roll": lambda h: h + h.roll(1, 1),
    "cumsum": lambda h: h.cumsum(1),
    "gather": lambda h: h + h.gather(1, torch.tensor([[1, 2, 3, 4, 5, 0]]).expand(len(h), -1)),
    "top-k": lambda h: h + h.topk(3).indices.sum(1, keepdim=True),
    "sort": lambda h: h + h.sort(1).values,
    "as_strided_": strides,
    "writes into zeros": every_other,
    "index_add": added_at,
    "index": lambda h: h[:, torch.tensor([5, 4, 3, 2, 1, 0])] + h,
    "fft": lambda h: torch.fft.fft(h, dim=1).real,
    "triangle": lambda h: (h[:, None] * torch.ones(HIDDEN, HIDDEN, dtype=h.dtype).tril()).sum(-1),
    "numpy": lambda h: h + torch.from_numpy(h.detach().numpy()[:, ::-1].copy()),
    "unfold": lambda h: F.pad(h.unfold(1, 2, 1).prod(-1), (0, 1)),
    "convolution over units": lambda h: F.conv1d(h[:, None], torch.tensor([[[1.0, 2, 3]]]).to(h), padding=1)[:, 0],
    "softmax of a scan": lambda h: h.softmax(1).cumprod(1),
    "values by position": lambda h: h * torch.linspace(0, 1, HIDDEN),
    "argmax": lambda h: h + h.argmax(1, keepdim=True),
    "python list": lambda h: torch.stack(sorted(h.unbind(1), key=lambda column: float(column.sum())), 1) * 2 + h,
}
