"""Gradient checkpointing: parts of a model run again in backward, and the gradients are those without it."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pluribus as pb

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),
    pytest.mark.filterwarnings("ignore:.*this model does not run under vmap"),
]


class Block(nn.Module):
    """Normalisation, dropout, and a shortcut."""

    def __init__(self, rate: float):
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.drop = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.two(torch.tanh(self.one(self.norm(x)))))


class Chain(nn.Module):
    """Blocks that may run again in backward; `reentrant`: None: they do not."""

    def __init__(self, rate: float = 0.3):
        super().__init__()
        self.enter, self.blocks, self.head = (
            nn.Linear(6, 8),
            nn.ModuleList(Block(rate) for _ in range(2)),
            nn.Linear(8, 3),
        )
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is False:  # the first layer too
            x = checkpoint(self.enter, x, use_reentrant=False)
        else:
            x = self.enter(x)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def build(method: str, model: nn.Module, x: Tensor, branch: str = "blocks.1|head", **options) -> pb.Ensemble:
    torch.manual_seed(0)
    if method in ("packed", "masksembles", "mimo"):
        options["example"] = x
    if method == "treenet":
        options["branch"] = branch
    return pb.METHODS[method](model, *(() if method == "single" else (3,)), **options).train()


def gradients(ensemble: pb.Ensemble, x: Tensor, y: Tensor, **options) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ensemble.zero_grad()
    ensemble.loss(x, y, F.cross_entropy, **options).backward()
    return {name: parameter.grad for name, parameter in ensemble.named_parameters() if parameter.grad is not None}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert list(first) == list(second)
    assert any(gradient.any() for gradient in first.values())
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("method", pb.METHODS)
def test_gradients_are_those_without_checkpointing(method, run, reentrant):
    x, y = torch.randn(12, 6), torch.randint(3, (12,))
    has_trunk = method in ("treenet", "multihead")  # which drops once for all members, unless it runs again in backward
    ensemble = build(method, Chain(0.0) if has_trunk else Chain(), x)
    if method != "mimo":
        ensemble.run = "loop"  # so that dropout is drawn in the same order
    for _ in range(2):
        expected = gradients(ensemble, x, y)
    if method != "mimo":
        ensemble.run = run
    for part in ensemble.modules():  # turned on later, as fine-tuning does
        if hasattr(part, "reentrant"):
            part.reentrant = reentrant
    for _ in range(2):
        assert_same(expected, gradients(ensemble, x, y))
    if reentrant is False:
        assert ensemble.predict(x).mean.isfinite().all()


@pytest.mark.parametrize("method", ["deep", "treenet", "masksembles"])
def test_each_member_with_its_own_batch_and_the_fastest_way(method):
    x, y = torch.randn(3, 12, 6), torch.randint(3, (3, 12))
    ensemble = build(method, Chain(rate=0.0), x[0])
    expected = gradients(ensemble, x, y, per_member=True)
    ensemble.module.reentrant = False
    assert_same(expected, gradients(ensemble, x, y, per_member=True))
    ensemble.run = "auto"
    assert_same(expected, gradients(ensemble, x, y, per_member=True))


def test_checkpointing_equals_separate_networks_with_checkpointing():
    x, y = torch.randn(12, 6), torch.randint(3, (12,))
    models = [Chain(rate=0.0) for _ in range(3)]
    for model in models:
        model.reentrant = False
    ensemble = pb.deep(models).train()
    ensemble.loss(x, y, F.cross_entropy).backward()
    for i, model in enumerate(models):
        F.cross_entropy(model(x), y).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(ensemble.module.get_parameter(name).grad[i], parameter.grad)


def test_a_counter_of_calls_counts_on():
    class Counting(Chain):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    x, y = torch.randn(12, 6), torch.randint(3, (12,))
    for method in ("deep", "batch_ensemble"):
        ensemble = build(method, Counting(), x)
        ensemble.module.reentrant = False
        for step in range(1, 4):
            gradients(ensemble, x, y)
            counting = ensemble.members if method == "deep" else [ensemble.module]
            assert all(part.calls == step for part in counting)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["single", "deep", "treenet", "masksembles", "batch_ensemble"])
def test_hugging_face_and_timm_turn_it_on(method):
    import timm
    from zoo import bert

    words, y = torch.randint(50, (4, 7)), torch.randint(10, (4,))
    images = torch.randn(4, 3, 32, 32)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=10)
    for model, x, turn_on, branch in (
        (bert(), words, lambda m: m.gradient_checkpointing_enable(), "classifier"),
        (vit, images, lambda m: m.set_grad_checkpointing(), "blocks.1|norm|head"),
    ):
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        ensemble = build(method, model, x, branch)
        ensemble.run = "loop"
        expected = gradients(ensemble, x, y)
        turn_on(ensemble.module)
        assert_same(expected, gradients(ensemble, x, y))
