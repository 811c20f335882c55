"""Networks with the members first: every operation, with and without a rule, gives what the members give one by one."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from freezing import written
from torch import Tensor, fx, nn

import pluribus as pb
from pluribus.deploy.freezing import lowering
from pluribus.deploy.freezing.batching_rules import MODULES, RULES, NewValue
from pluribus.methods.adapted_layers import RankOne

MEMBERS, ROWS = 3, 2


class Model(nn.Module):
    """A layer, and an operation on what it gives and on tensors that a member owns or that are the input's."""

    def __init__(self, operation):
        super().__init__()
        self.layer, self.operation = nn.Linear(6, 8), operation
        self.vector, self.bias = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.matrix = nn.Parameter(torch.randn(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 4, 6) -> whatever the operation makes of (batch, 4, 8)."""
        return self.operation(self, self.layer(x), x)


CASES = {
    "mean": [lambda m, y, x: y.mean(1), lambda m, y, x: y.mean((1, 2)), lambda m, y, x: torch.mean(y, dim=-1)],
    "sum": [lambda m, y, x: y.sum(2, keepdim=True), lambda m, y, x: y.sum(axis=1)],
    "amax": [lambda m, y, x: y.amax(1)],
    "amin": [lambda m, y, x: y.amin(-2)],
    "std": [lambda m, y, x: y.std(2)],
    "var": [lambda m, y, x: y.var(2, False)],
    "argmax": [lambda m, y, x: y.argmax(-1)],
    "argmin": [lambda m, y, x: torch.argmin(y, 1)],
    "cumsum": [lambda m, y, x: y.cumsum(1)],
    "logsumexp": [lambda m, y, x: y.logsumexp(1)],
    "softmax": [lambda m, y, x: y.softmax(-1), lambda m, y, x: F.softmax(y, dim=1)],
    "log_softmax": [lambda m, y, x: F.log_softmax(y, 2)],
    "unsqueeze": [lambda m, y, x: y.unsqueeze(1), lambda m, y, x: y.unsqueeze(-1)],
    "squeeze": [lambda m, y, x: y[:, :1].squeeze(1)],
    "select": [lambda m, y, x: y.select(1, 2)],
    "narrow": [lambda m, y, x: y.narrow(1, 1, 2)],
    "unflatten": [lambda m, y, x: y.unflatten(2, (2, -1)), lambda m, y, x: y.unflatten(-1, (4, 2))],
    "chunk": [lambda m, y, x: y.chunk(2, 1)[1], lambda m, y, x: torch.cat(y.chunk(2, dim=-1), 1)],
    "split": [lambda m, y, x: y.split(3, -1)[2], lambda m, y, x: torch.split(y, [1, 3], dim=1)[1]],
    "tensor_split": [lambda m, y, x: y.tensor_split(3, 2)[0]],
    "unbind": [lambda m, y, x: y.unbind(1)[0] + y.unbind(dim=1)[3]],
    "cat": [lambda m, y, x: torch.cat([y, x], 2), lambda m, y, x: torch.cat((y, 2 * y), dim=1)],
    "concat": [lambda m, y, x: torch.concat(tensors=[y, y], dim=1), lambda m, y, x: torch.concat([y, y], axis=1)],
    "concatenate": [lambda m, y, x: torch.concatenate([y, y], -1)],
    "stack": [lambda m, y, x: torch.stack([y, y + 1], 1), lambda m, y, x: torch.stack([y, y], dim=-1)],
    "matmul": [
        lambda m, y, x: y @ m.matrix,
        lambda m, y, x: y.transpose(1, 2) @ x,
        lambda m, y, x: torch.matmul(y, y.mT),
    ],
    "bmm": [lambda m, y, x: torch.bmm(y.transpose(1, 2), x)],
    "interpolate": [lambda m, y, x: F.interpolate(y, scale_factor=2.0)],
    "view": [lambda m, y, x: y.view(y.shape[0], -1), lambda m, y, x: y.transpose(1, 2).contiguous().view(-1, 4)],
    "reshape": [lambda m, y, x: y.reshape(y.size(0), 2, 16)],
    "expand": [lambda m, y, x: m.vector.expand(2, 4, 8) + y, lambda m, y, x: y[:, :1].expand(-1, 7, -1)],
    "repeat": [lambda m, y, x: m.vector.repeat(2, 3) + y.sum((0, 1, 2)), lambda m, y, x: y.repeat(1, 2, 3)],
    "flatten": [lambda m, y, x: y.flatten(1), lambda m, y, x: torch.flatten(y), lambda m, y, x: y.flatten(0, 1)],
    "transpose": [lambda m, y, x: y.transpose(1, 2), lambda m, y, x: y.transpose(-1, 0)],
    "movedim": [lambda m, y, x: y.movedim(1, 2), lambda m, y, x: torch.movedim(y, -1, 0)],
    "glu": [lambda m, y, x: F.glu(y), lambda m, y, x: F.glu(y, 1)],
    "normalize": [lambda m, y, x: F.normalize(y), lambda m, y, x: F.normalize(y, dim=-1)],
    "roll": [lambda m, y, x: y.roll(1, 2), lambda m, y, x: torch.roll(y, shifts=(1, 2), dims=(0, 2))],
    "pad": [lambda m, y, x: F.pad(y, (1, 2, 0, 1), value=3.0)],
    "permute": [lambda m, y, x: y.permute(2, 0, 1), lambda m, y, x: torch.permute(y, (0, -1, 1))],
    "linear": [
        lambda m, y, x: F.linear(y, m.matrix.T, m.bias[:5]),
        lambda m, y, x: F.linear(x, m.layer.weight) + y,
        lambda m, y, x: F.linear(y, torch.ones(3, 8)),
    ],
    "layer_norm": [
        lambda m, y, x: F.layer_norm(y, (8,), m.vector, m.bias, 1e-3),
        lambda m, y, x: F.layer_norm(y, (8,), m.vector),
        lambda m, y, x: F.layer_norm(y, (4, 8)),
        lambda m, y, x: F.layer_norm(torch.cat([x, x[..., :2]], 2), (8,), weight=m.vector, bias=m.bias) + y,
    ],
    "scaled_dot_product_attention": [
        lambda m, y, x: F.scaled_dot_product_attention(*(y.unflatten(2, (2, -1)).transpose(1, 2),) * 3),
        lambda m, y, x: F.scaled_dot_product_attention(y[:, None], y[:, None], x[:, None, :, :3], is_causal=True),
        lambda m, y, x: F.scaled_dot_product_attention(*(y[:, None],) * 3, attn_mask=x[0, :, :4]),
    ],
    "getitem": [
        lambda m, y, x: y[:, 0],
        lambda m, y, x: y[..., 1:3],
        lambda m, y, x: y[1],
        lambda m, y, x: y[:, None, 1:, -1],
    ],
    "getattr": [
        lambda m, y, x: y.reshape(y.shape[0], y.shape[2], -1),
        lambda m, y, x: y * y.ndim,
        lambda m, y, x: y.mT @ torch.ones(4, 2, dtype=y.dtype, device=y.device),
        lambda m, y, x: m.matrix.T + y.sum((0, 1, 2)),
    ],
    "size": [lambda m, y, x: y * y.size(1) / y.size(-1), lambda m, y, x: y * y.size()[2]],
    "where": [lambda m, y, x: torch.where(y > 0, y, m.vector)],
    "masked_fill": [lambda m, y, x: y.masked_fill(x[..., :1] > 0, -1.0)],
    "add": [lambda m, y, x: m.vector + x[..., :1] + y, lambda m, y, x: torch.add(y, m.bias)],
    "dropout": [lambda m, y, x: F.dropout(y, 0.5, False)],
    **{
        f"{kind}_pool1d": [lambda m, y, x, kind=kind: getattr(F, f"{kind}_pool1d")(y, 2)]
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    },
    **{
        f"{kind}_pool2d": [lambda m, y, x, kind=kind: getattr(F, f"{kind}_pool2d")(y[:, None], 2)]
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    },
    **{
        f"{kind}_pool3d": [lambda m, y, x, kind=kind: getattr(F, f"{kind}_pool3d")(y[:, None, None], (1, 2, 2))]
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    },
    **{
        name: [lambda m, y, x, name=name: getattr(y.abs() + 0.1, name)()]
        for name in ("sqrt", "rsqrt", "exp", "log", "log1p", "sin", "cos", "erf", "sign", "reciprocal", "neg", "square")
        + ("abs", "contiguous", "clone", "float", "double", "detach", "relu", "tanh", "sigmoid", "bool")
    },
    **{
        name: [lambda m, y, x, name=name: getattr(torch, name)(y, m.vector)]
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "sub", "mul", "div")
    },
    **{
        name: [lambda m, y, x, name=name: getattr(F, name)(y)]
        for name in ("relu6", "gelu", "silu", "hardswish", "hardsigmoid", "leaky_relu", "elu", "mish", "softplus")
        + ("hardtanh", "selu")
    },
    "pow": [lambda m, y, x: y**2, lambda m, y, x: torch.pow(y, 3)],
    "truediv": [lambda m, y, x: y / m.vector],
    "to": [lambda m, y, x: y.to(torch.float64), lambda m, y, x: y.to(x)],
    "type_as": [lambda m, y, x: y.type_as(x)],
    "clamp": [lambda m, y, x: y.clamp(-0.1, 0.1)],
    "clamp_min": [lambda m, y, x: y.clamp_min(0.1)],
    "clamp_max": [lambda m, y, x: y.clamp_max(0.1)],
    "logical_not": [lambda m, y, x: torch.logical_not(y > 0)],
    "logical_and": [lambda m, y, x: torch.logical_and(y > 0, x[..., :1] > 0)],
}  # fmt: skip
LINES = [(name, i) for name, cases in CASES.items() for i in range(len(cases))]
# Torch 2.13 traces a value in place of a list, a type or a device; 2.8 does not, and the part stays one operation.
TRACED_LATER = [("chunk", 1), ("getattr", 2)]
WITHOUT = {
    "sort": lambda m, y, x: y.sort(1).values,
    "two of several": lambda m, y, x: torch.topk(y, 2)[0] + torch.topk(y, 2)[1],
    "a mean of everything": lambda m, y, x: y.mean() + y,
    "roll of everything": lambda m, y, x: y.roll(1).relu(),
    "reflection": lambda m, y, x: F.pad(y, (1, 2), mode="reflect"),
    "sizes of another": lambda m, y, x: y.flatten(1).reshape(y.shape),
    "indices": lambda m, y, x: y[:, torch.tensor([2, 0])],
    "a mask for each row": lambda m, y, x: F.scaled_dot_product_attention(
        *(y[:, None],) * 3, attn_mask=x[:, None, :, :4]
    ),
    "a mask of a member": lambda m, y, x: F.scaled_dot_product_attention(
        *(y[:, None],) * 3, attn_mask=m.matrix[:4, :4]
    ),
    "letters left out": lambda m, y, x: torch.einsum("btc,cd", y, m.matrix),
    "a memory format": lambda m, y, x: y[:, None].contiguous(memory_format=torch.channels_last) + 1,
    "a shift without a scale": lambda m, y, x: F.layer_norm(y, (8,), None, m.bias),
    "a vector": lambda m, y, x: y @ m.vector,
    "permuted by name": lambda m, y, x: torch.permute(y, dims=(0, 2, 1)),
}


def both(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the members give side by side, and in the ensemble."""
    torch.manual_seed(0)
    ensemble = pb.deep(model, MEMBERS).eval()
    ensemble.run = "loop"
    made = written(ensemble, x, "beside")
    with torch.no_grad():
        return made(x), ensemble(x)


def alike(given: Tensor, expected: Tensor) -> None:
    assert given.dtype == expected.dtype
    largest = float(expected.detach().to(torch.float64).abs().max())
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5 * max(1.0, largest))


def refuse(self, node):
    raise AssertionError(f"{node} ran member by member")


def test_every_rule_has_a_case():
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize(("name", "i"), LINES)
def test_a_rule_gives_what_the_members_give(name, i, monkeypatch):
    model, x = Model(CASES[name][i]), torch.randn(ROWS, 4, 6)
    if (name, i) in TRACED_LATER and not torch_traces_lists():
        ensemble = pb.deep(model, MEMBERS).eval()
        return alike(pb.freeze(ensemble, x)(x), ensemble(x).detach())
    monkeypatch.setattr(lowering._Beside, "_each", refuse)
    alike(*both(model, x))


def torch_traces_lists() -> bool:
    try:
        fx.Tracer().trace(Model(CASES["chunk"][1]))
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_rule_runs_member_by_member(name, monkeypatch):
    model, x = Model(WITHOUT[name]), torch.randn(ROWS, 4, 6)
    alike(*both(model, x))
    monkeypatch.setattr(lowering._Beside, "_each", refuse)
    with pytest.raises(AssertionError, match="member by member"):
        both(model, x)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", [*sorted(set(MODULES) - {RankOne}, key=lambda kind: kind.__name__), nn.GroupNorm])
def test_modules(kind, rows):
    numbers = {nn.LayerNorm: (8,), nn.GroupNorm: (2, 4), nn.Softmax: (1,)}.get(
        kind, (2,) if "Pool" in str(kind) else ()
    )
    dims = int(kind.__name__[-2]) if "Pool" in str(kind) else 0
    shape = {0: (4, 6), 1: (4, 6), 2: (3, 4, 6), 3: (3, 4, 4, 6)}[dims]
    linear, module = nn.Linear(6, 8), kind(*numbers)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    alike(
        *both(
            nn.Sequential(linear, module, nn.Linear(module(linear(torch.randn(1, *shape))).shape[-1], 2)),
            torch.randn(rows, *shape),
        )
    )


def test_a_form_that_does_not_run_is_left_out(monkeypatch):
    def wrong(writer, node):
        return NewValue(writer.graph.call_function(torch.bmm, (writer.first(node.all_input_nodes[0]),) * 2))

    monkeypatch.setitem(RULES, "softmax", wrong)
    x, ensemble = torch.randn(ROWS, 4, 6), pb.deep(Model(CASES["softmax"][0]), MEMBERS).eval()
    made = pb.freeze(ensemble, x, choose="rule")
    assert made.form == "loop"
    assert "does not run as beside: batch1 must be a 3D tensor" in made.explain()
    with torch.no_grad():
        alike(made(x), ensemble(x))


class Block(nn.Module):
    """Attention and a perceptron, as transformers have them."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) -> the same."""
        rows, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(rows, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, time, width)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Patches of images, two blocks, a token that gathers them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.randn(1, 1, 16))
        self.blocks, self.norm, self.head = (
            nn.Sequential(Block(16, 2), Block(16, 2)),
            nn.LayerNorm(16),
            nn.Linear(16, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 16, 16) -> (batch, 5)."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        return self.head(self.norm(self.blocks(x))[:, 0])


@pytest.mark.parametrize("method", sorted(set(pb.METHODS) - {"mc_dropout", "single"}))
def test_a_transformer_runs_with_the_members_first_for_any_number_of_rows(method, monkeypatch):
    monkeypatch.setattr(lowering._Beside, "_each", refuse)
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16)
    options = {"treenet": {"branch": "blocks.1|norm|head"}, "multihead": {}, "deep": {}}.get(method, {"example": x})
    ensemble = pb.METHODS[method](Transformer(), MEMBERS, **options).eval()
    for part in ensemble.parameters():
        part.data.add_(0.1 * torch.randn_like(part))
    made = written(ensemble, x, "beside")
    for rows in (2, 1, 5):
        x = torch.randn(rows, 3, 16, 16)
        with torch.no_grad():
            alike(made(x), ensemble(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["transformer", "convolutions", "linear"])
def test_vectors_of_batch_ensemble_stay_apart_from_one_weight(name, bias, monkeypatch):
    monkeypatch.setattr(lowering._Beside, "_each", refuse)
    torch.manual_seed(0)
    model = {
        "transformer": Transformer,
        "convolutions": lambda: pb.models.resnet20(width=0.5),
        "linear": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(768, 8, bias=bias), nn.ReLU(), nn.Linear(8, 5, bias=bias)
        ),
    }[name]()
    x = torch.randn(2, 3, 16, 16)
    ensemble = pb.batch_ensemble(model, MEMBERS).eval()
    for part in ensemble.parameters():
        part.data.add_(0.1 * torch.randn_like(part))
    made = written(ensemble, x, "beside", apart=True)
    shared = sum(part.numel() for part in made.parameters())
    assert shared < 1.3 * sum(part.numel() for part in ensemble.parameters())
    for rows in (2, 1, 5):
        x = torch.randn(rows, 3, 16, 16)
        with torch.no_grad():
            alike(made(x), ensemble(x))


def test_many_rows_may_run_side_by_side_where_convolutions_are_narrow_or_not_grouped():
    x = torch.randn(12, 3, 16, 16)
    assert "beside" in pb.freeze(pb.deep(Transformer(), 2), x).explain()
    for channels, named in ((16, True), (128, False)):
        model = nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), nn.Conv2d(channels, channels, 3), nn.Flatten())
        ensemble = pb.deep(model, 2).eval()
        made = pb.freeze(ensemble, x)
        assert ("beside" in made.explain()) is named
        assert (pb.freeze(ensemble, x, choose="rule").form == "beside") is named
        alike(made(x), torch.stack([ensemble.member(i)(x) for i in range(2)]))


class Mixer(nn.Module):
    """A layer across the tokens, whose number is that of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.tokens, self.head = nn.Linear(6, 8), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 4, 6) -> (batch, 3)."""
        x = self.features(x).transpose(1, 2)
        return self.head(self.tokens(x).mT.mean(1))


@pytest.mark.parametrize("form", lowering.FORMS)
def test_channels_are_not_taken_from_more_than_there_were(form):
    x = torch.randn(2, 4, 6)
    ensemble = pb.masksembles(Mixer(), 4, example=x).eval()
    made = written(ensemble, x, form)
    with torch.no_grad():
        alike(made(x), ensemble(x))
    with pytest.raises(ValueError, match=r"4 channels for the example, but for this input it has 5.*Freeze"):
        made(torch.randn(2, 5, 6))


def test_dropout_is_drawn_anew_for_each_member():
    model = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 1, bias=False))
    nn.init.ones_(model[2].weight)
    ensemble = pb.mc_dropout(model, 4).eval()
    x = torch.ones(3, 8, 8)
    ensemble(x)
    made = written(ensemble, x, "beside")
    assert len(made(x).unique()) > 6
