"""Layers inside an ensemble, against what they stand for: torch's own layers, explicit matrices, one row at a time."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small import close
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from pluribus.core.rows import MemberLayer
from pluribus.methods._packed import group_
from pluribus.methods.adapted_layers import Dropped, GroupedLinear, JointInput, JointOutput, Masked, RankOne
from pluribus.surgery.attention import Attention
from pluribus.surgery.probing import BatchLayout
from pluribus.surgery.replacing import adapt_, expose_weights

# -------------------------------------------------------------------- attention

BATCH, QUERIES, KEYS, EMBED, HEADS = 3, 4, 5, 8, 2
EVERY = BATCH * HEADS * QUERIES * KEYS
SETTINGS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "other sizes of keys and values": {"kdim": 6, "vdim": 7},
    "no bias": {"bias": False},
    "learned key and value": {"add_bias_kv": True},
    "zero key and value": {"add_zero_attn": True},
    "everything": {"kdim": 6, "vdim": 7, "add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}
LATER = torch.arange(KEYS) > torch.arange(QUERIES)[:, None] + 1
PADDING = torch.arange(KEYS) >= torch.tensor([5, 3, 2])[:, None]
MASKS = {
    "none": {},
    "boolean": {"attn_mask": LATER},
    "float": {"attn_mask": torch.linspace(-2, 2, QUERIES * KEYS).view(QUERIES, KEYS)},
    "boolean for each head": {"attn_mask": torch.arange(EVERY).view(-1, QUERIES, KEYS) % 7 == 1},
    "float for each head": {"attn_mask": torch.linspace(-2, 2, EVERY).view(-1, QUERIES, KEYS)},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": torch.zeros(BATCH, KEYS).masked_fill(PADDING, -torch.inf)},
    "both": {"attn_mask": LATER, "key_padding_mask": PADDING},
}
WEIGHTS = {
    "averaged": {},
    "of each head": {"average_attn_weights": False},
    "not given": {"need_weights": False},
}
settings = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def attention(**options) -> nn.MultiheadAttention:
    made = nn.MultiheadAttention(EMBED, HEADS, **options)
    for parameter in made.parameters():  # torch starts biases at zero, where a mistake would not show
        nn.init.normal_(parameter, std=0.5)
    return made


def inputs(mha: nn.MultiheadAttention) -> list[Tensor]:
    sizes = (QUERIES, EMBED), (KEYS, mha.kdim), (KEYS, mha.vdim)
    made = [torch.randn(BATCH, length, channels) for length, channels in sizes]
    return made if mha.batch_first else [t.transpose(0, 1).contiguous() for t in made]


@settings
@masks
@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("training", [True, False])
def test_attention_equals_torch(setting, mask, weights, training):
    mha = attention(**setting).train(training)
    x = inputs(mha)
    expected, found = mha(*x, **mask, **weights), Attention.of(mha).train(training)(*x, **mask, **weights)
    close(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None)
    if expected[1] is not None:
        close(found[1], expected[1])


@settings
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_of_one_sequence_equals_torch(setting, need_weights):
    mha = attention(**setting)
    x = [torch.randn(n, c) for n, c in ((QUERIES, EMBED), (KEYS, mha.kdim), (KEYS, mha.vdim))]
    mask = {"attn_mask": LATER.expand(HEADS, -1, -1), "key_padding_mask": PADDING[1], "need_weights": need_weights}
    for expected, found in zip(mha(*x, **mask), Attention.of(mha)(*x, **mask), strict=True):
        assert (found is None) == (expected is None)
        if expected is not None:
            close(found, expected)


@settings
def test_attention_has_the_gradients_of_torch(setting):
    mha = attention(**setting)
    made = Attention.of(copy.deepcopy(mha))
    x = [t.requires_grad_() for t in inputs(mha)]
    twins = [t.detach().clone().requires_grad_() for t in x]
    mha(*x, **MASKS["both"])[0].square().sum().backward()
    made(*twins, **MASKS["both"])[0].square().sum().backward()
    for a, b in zip(twins, x, strict=True):
        close(a.grad, b.grad)
    projections = (made.q_proj, made.k_proj, made.v_proj)
    if mha.in_proj_weight is not None:
        close(torch.cat([p.weight.grad for p in projections]), mha.in_proj_weight.grad)
    else:
        for p, weight in zip(projections, (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight), strict=True):
            close(p.weight.grad, weight.grad)
    if mha.in_proj_bias is not None:
        close(torch.cat([p.bias.grad for p in projections]), mha.in_proj_bias.grad)
    close(made.out_proj.weight.grad, mha.out_proj.weight.grad)
    if mha.bias_k is not None:
        close(made.bias_k.grad, mha.bias_k.grad)
        close(made.bias_v.grad, mha.bias_v.grad)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # fused attention is run member by member
def test_attention_under_vmap_equals_one_after_the_other(need_weights):
    several = [attention(add_bias_kv=True) for _ in range(3)]
    x = inputs(several[0])
    tensors, buffers = stack_module_state([Attention.of(mha) for mha in several])
    template = Attention.of(several[0])

    def run(own: dict[str, Tensor]) -> Tensor:
        return functional_call(template, own, tuple(x), {"need_weights": need_weights, **MASKS["both"]})[0]

    found = vmap(run)({**tensors, **buffers})
    close(found, torch.stack([mha(*x, **MASKS["both"])[0] for mha in several]))


def test_attention_drops_weights_in_training_only():
    made = Attention.of(attention(dropout=0.25, batch_first=True))
    x = torch.randn(20, 10, EMBED)
    full = made.eval()(x, x, x, average_attn_weights=False)[1]
    dropped = made.train()(x, x, x, average_attn_weights=False)[1] / full
    kept = dropped[dropped > 0]
    close(kept, torch.full_like(kept, 1 / 0.75))
    assert 1 - len(kept) / dropped.numel() == pytest.approx(0.25, abs=0.03)


class Sequences(nn.Module):
    """A whole transformer in the three forms that torch has, and what it is called with."""

    def __init__(self, kind: str, batch_first: bool):
        super().__init__()
        options = {"dim_feedforward": 16, "batch_first": batch_first, "dropout": 0.3}
        self.kind = kind
        if kind == "encoder":
            self.body: nn.Module = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED, HEADS, **options), 2)
        elif kind == "decoder":
            self.body = nn.TransformerDecoder(nn.TransformerDecoderLayer(EMBED, HEADS, **options), 2)
        else:
            self.body = nn.Transformer(EMBED, HEADS, 2, 2, **options)

    def forward(self, x: Tensor, y: Tensor, padding: Tensor | None) -> Tensor:
        """(batch, time, channels), or time first."""
        if self.kind == "encoder":
            return self.body(x, src_key_padding_mask=padding)
        if self.kind == "decoder":
            return self.body(y, x, memory_key_padding_mask=padding)
        return self.body(x, y, src_key_padding_mask=padding, memory_key_padding_mask=padding)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "both"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
def test_opened_transformer_equals_the_original(kind, batch_first, padded, gradients):
    model = Sequences(kind, batch_first).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, y = torch.randn(BATCH, KEYS, EMBED), torch.randn(BATCH, QUERIES, EMBED)
    if not batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    padding = PADDING if padded else None
    with torch.set_grad_enabled(gradients):
        found, expected = expose_weights(model)(x, y, padding), model(x, y, padding)
    if kind == "encoder" and padded:  # torch's fast path gives zeros where there is padding
        found, expected = (t[~PADDING if batch_first else ~PADDING.T] for t in (found, expected))
    close(found, expected)


@torch.no_grad()
def test_opened_transformer_calls_every_projection_on_no_fast_path():
    model = expose_weights(Sequences("encoder", True)).eval()
    called = []
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda *_, name=name: called.append(name))
    model(torch.randn(BATCH, KEYS, EMBED), None, PADDING)
    assert len(layers) == 12
    assert sorted(called) == sorted(layers)


def test_opened_keeps_what_a_kind_of_attention_of_the_users_own_computes():
    class Doubled(nn.MultiheadAttention):
        def forward(self, *args, **kwargs):
            y, weights = super().forward(*args, **kwargs)
            return 2 * y, weights

    model, x = Doubled(EMBED, HEADS), torch.randn(4, 2, EMBED)
    close(expose_weights(model)(x, x, x)[0], model(x, x, x)[0])


# -------------------------------------------------------------------- groups


@pytest.mark.parametrize("shape", [(4,), (0,), (2, 3), (2, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_grouped_linear_equals_a_block_diagonal_matrix_and_a_grouped_convolution(shape, bias, groups):
    layer = GroupedLinear(6, 12, groups, bias)
    x = torch.randn(*shape, 6)
    found = layer(x)
    close(found, F.linear(x, torch.block_diag(*layer.weight.chunk(groups)), layer.bias))
    points = x.reshape(-1, 6, 1)
    close(found, F.conv1d(points, layer.weight[..., None], layer.bias, groups=groups).reshape(*shape, 12))


def test_grouped_linear_starts_as_a_convolution_with_groups_does():
    layer, conv = GroupedLinear(256, 256, 4), nn.Conv1d(256, 256, 1, groups=4)
    assert layer.weight.abs().max().item() == pytest.approx(conv.weight.abs().max().item(), rel=0.01)
    assert layer.bias.abs().max().item() == pytest.approx(conv.bias.abs().max().item(), rel=0.05)


def test_grouped_linear_refuses_groups_that_do_not_divide():
    with pytest.raises(ValueError, match="4 groups must divide 6 inputs and 8 outputs"):
        GroupedLinear(6, 8, 4)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(2, 128, 3), nn.Conv1d(128, 128, 3), nn.Flatten(), nn.Linear(128, 64))


def test_grouped_layers_mix_no_channels_of_different_groups():
    model = group_(chain(), {"1": 4, "3": 2}, None)
    x = torch.randn(1, 128, 3, requires_grad=True)
    model[1](x)[0, :32].sum().backward()
    assert x.grad[0, :32].any()
    assert not x.grad[0, 32:].any()
    assert model(torch.randn(2, 2, 5)).shape == (2, 64)
    assert (model[1].weight.shape, model[3].weight.shape) == ((128, 32, 3), (64, 64))


@pytest.mark.parametrize("conv", [nn.Conv2d, nn.ConvTranspose2d])
def test_grouped_convolution_has_the_deviation_of_one_made_with_groups(conv):
    model = group_(nn.Sequential(conv(64, 128, 3)), {"0": 4}, None)
    fresh = conv(64, 128, 3, groups=4)
    assert model[0].weight.shape == fresh.weight.shape
    if conv is nn.Conv2d:
        assert model[0].weight.std().item() == pytest.approx(fresh.weight.std().item(), rel=0.05)


# -------------------------------------------------------------------- rows of several members

ROWS, OTHERS, MEMBERS = 5, 4, 3
INDEX = torch.tensor([2, 0, 1, 1, 2])
# How (rows, others, channels) looks to the layer, and where its batch is then.
FOLDS = {
    "rows first": (BatchLayout(0), lambda x: x),
    "rows second": (BatchLayout(1), lambda x: x.transpose(0, 1)),
    "rows third": (BatchLayout(2), lambda x: x.unflatten(1, (2, 2)).movedim(0, 2)),
    "windows": (BatchLayout(0), lambda x: x.flatten(0, 1)),
    "time times batch": (BatchLayout(0, True), lambda x: x.transpose(0, 1).flatten(0, 1)),
    "windows second": (BatchLayout(1), lambda x: x.unflatten(1, (2, 2)).movedim(1, 0).flatten(1, 2)),
    "inner second": (BatchLayout(1, True), lambda x: x.unflatten(1, (2, 2)).movedim(0, 2).flatten(1, 2)),
}
folds = pytest.mark.parametrize(("layout", "fold"), FOLDS.values(), ids=FOLDS)


def adapted(
    layer: nn.Module, mixin: type, layout: BatchLayout, index: Tensor | None, **tensors: Tensor | None
) -> nn.Module:
    for name, tensor in tensors.items():
        layer.register_buffer(name, tensor)
    adapt_(layer, mixin)
    if isinstance(layer, MemberLayer):
        layer.begin_()
        layer.layout, layer.rows.index = layout, index
    return layer


@folds
def test_masked_rows_equal_rows_run_with_their_members_mask(layout, fold):
    linear, mask = nn.Linear(6, 2), torch.randint(2, (MEMBERS, 6)).float()
    x = torch.randn(ROWS, OTHERS, 6)
    expected = torch.stack(
        [F.linear(row * mask[i], linear.weight, linear.bias) for row, i in zip(x, INDEX, strict=True)]
    )
    close(adapted(linear, Masked, layout, INDEX, mask=mask)(fold(x)), fold(expected))


@folds
@pytest.mark.parametrize("bias", [True, False])
def test_rank_one_rows_equal_rows_run_with_their_members_matrix(layout, fold, bias):
    linear = nn.Linear(6, 2, bias=False)
    r, s, b = torch.randn(MEMBERS, 6), torch.randn(MEMBERS, 2), torch.randn(MEMBERS, 2) if bias else None
    x = torch.randn(ROWS, OTHERS, 6)
    matrices = [linear.weight * torch.outer(s[i], r[i]) for i in range(MEMBERS)]
    expected = torch.stack(
        [F.linear(row, matrices[i], None if b is None else b[i]) for row, i in zip(x, INDEX, strict=True)]
    )
    close(adapted(linear, RankOne, layout, INDEX, r=r, s=s, b=b)(fold(x)), fold(expected))


CONVOLUTIONS = [
    (nn.Conv1d, F.conv1d), (nn.Conv2d, F.conv2d), (nn.Conv3d, F.conv3d), (nn.ConvTranspose2d, F.conv_transpose2d)
]  # fmt: skip


@pytest.mark.parametrize(("kind", "function"), CONVOLUTIONS)
@pytest.mark.parametrize("windows", [1, 2])
def test_rows_of_convolutions_equal_rows_run_one_by_one(kind, function, windows):
    conv = kind(4, 6, 2, bias=False)
    dims = len(conv.kernel_size)
    r, s, b = torch.randn(MEMBERS, 4), torch.randn(MEMBERS, 6), torch.randn(MEMBERS, 6)
    x = torch.randn(ROWS, windows, 4, *[3] * dims)
    rows, columns = (r, s) if conv.transposed else (s, r)
    matrices = [conv.weight * torch.outer(rows[i], columns[i])[(..., *[None] * dims)] for i in range(MEMBERS)]
    expected = torch.cat([function(row, matrices[i], b[i]) for row, i in zip(x, INDEX, strict=True)])
    close(adapted(conv, RankOne, BatchLayout(), INDEX, r=r, s=s, b=b)(x.flatten(0, 1)), expected)


def test_dropped_drops_its_input_in_training_only():
    layer = adapted(nn.Linear(1000, 1000, bias=False), Dropped, BatchLayout(), None)
    layer.rate = 0.3
    nn.init.eye_(layer.weight)
    x = torch.ones(10, 1000)
    assert torch.equal(layer.eval()(x), x)
    dropped = layer.train()(x)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    close(dropped[dropped > 0], torch.full(((dropped > 0).sum(),), 1 / 0.7))


# -------------------------------------------------------------------- joined inputs and split outputs


@folds
def test_split_gives_each_members_outputs_as_rows(layout, fold):
    linear = nn.Linear(6, MEMBERS * 2)
    x = torch.randn(ROWS, OTHERS, 6)
    parts = zip(linear.weight.chunk(MEMBERS), linear.bias.chunk(MEMBERS), strict=True)
    expected = torch.cat([F.linear(x, w, b) for w, b in parts])  # (members * rows, others, 2)
    layer = adapted(linear, JointOutput, layout, torch.arange(ROWS))
    layer.members = MEMBERS
    close(layer(fold(x)), fold(expected))


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", ["linear", "convolution", "recurrent"])
def test_joined_reads_the_members_inputs_side_by_side(kind, given):
    x = torch.randn(MEMBERS, ROWS, 4, 7, 7) if kind == "convolution" else torch.randn(MEMBERS, ROWS, 7, 4)
    layer = {
        "linear": lambda: nn.Linear(MEMBERS * 4, 2),
        "convolution": lambda: nn.Conv2d(MEMBERS * 4, 2, 3),
        "recurrent": lambda: nn.GRU(MEMBERS * 4, 2, batch_first=True),
    }[kind]()
    parts = list(x) if given else [x[0]] * MEMBERS
    expected = layer(torch.cat(parts, 1 if kind == "convolution" else 2))
    layer = adapted(layer, JointInput, BatchLayout(), None)
    layer.members, layer.parts = MEMBERS, parts[1:] if given else None
    found = layer(x[0])
    close(*((found[0], expected[0]) if kind == "recurrent" else (found, expected)))


def test_joined_embedding_is_the_sum_of_the_members_embeddings():
    words = torch.randint(11, (MEMBERS, ROWS, 6))
    tables = torch.randn(MEMBERS, 11, 4)
    layer = adapted(nn.Embedding.from_pretrained(tables.flatten(0, 1)), JointInput, BatchLayout(), None)
    layer.members, layer.parts = MEMBERS, list(words)[1:]
    close(layer(words[0]), sum(F.embedding(w, t) for w, t in zip(words, tables, strict=True)))
