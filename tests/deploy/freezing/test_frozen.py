"""A frozen ensemble gives what the ensemble gives, with fewer operations."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from freezing import alike, expected, frozen, trained, written
from small import SMALL, make
from torch import Tensor, nn
from zoo import TIMM, images, timm_model

import pluribus as pb
from pluribus import models
from pluribus.deploy.freezing import frozen as freezing
from pluribus.deploy.freezing import lowering
from pluribus.deploy.freezing.frozen import CHUNK
from pluribus.surgery.dropout import no_dropout

OTHERS = ["resnet18", "mobilenetv2_100", "efficientnet_b0", "vit_tiny_patch16_224", "seresnet18"]
slow = pytest.mark.slow
every = pytest.mark.parametrize(("method", "name"), [(method, name) for method in pb.METHODS for name in SMALL])


class Preactivated(nn.Module):
    """Normalisation that no layer before it can take in, twice with ReLU, once without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 12, 3, 1, 1), nn.BatchNorm2d(12)
        self.second, self.norm2 = nn.Conv2d(12, 12, 3, 2, 1), nn.BatchNorm2d(12)
        self.third, self.norm3 = nn.Conv2d(12, 12, 3, 1, 1), nn.BatchNorm2d(12)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) -> (batch, 4)."""
        x = self.second(self.norm1(self.first(x)).relu())
        y = x + self.third(torch.relu(self.norm2(x)))
        return self.fc(self.pool(self.norm3(y)).flatten(1))


class Activated(nn.BatchNorm2d):
    """Normalisation and activation in one module, as timm has them: torch traces into it."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same."""
        x = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps)
        return F.relu(x, inplace=True)


class Functional(nn.Module):
    """Normalisation as a function, folded once and once not, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 12, 3, 1, 1), Activated(12)
        self.second, self.norm2, self.fc = nn.Conv2d(12, 12, 3, 2, 1), Activated(12), nn.Linear(12, 4)
        self.register_buffer("shift", torch.randn(12, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) -> (batch, 4)."""
        y = self.second(self.norm1(self.first(x))) * (self.shift + self.shift.shape[0])
        return self.fc(self.norm2(y).mean((2, 3)))


def flattening() -> nn.Module:
    """Flattens what has dimensions, and what has none."""
    rest = nn.Flatten(), nn.Linear(1024, 8), nn.Flatten(), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.ReLU(), *rest)


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    return trained(models.resnet18(width=0.25))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@every
def test_every_method_on_every_small_model_gives_the_same_outputs(method, name):
    ensemble, x = make(method, name)
    trained(ensemble)
    if (method, name) == ("mc_dropout", "recurrent"):
        pytest.skip("the dropout inside an LSTM cannot be stilled")
    made = frozen(ensemble, x)
    assert made.form in lowering.FORMS  # and not as it was
    assert "does not run" not in made.explain()
    with no_dropout():
        alike(made(x), expected(ensemble, x))
        more = torch.cat([x, x.flip(0)])
        alike(made(more), expected(ensemble, more))


@pytest.mark.parametrize("form", lowering.FORMS)
@pytest.mark.parametrize(
    "method", ["packed", "masksembles", *(pytest.param(m, marks=slow) for m in ("batch_ensemble", "treenet"))]
)
@pytest.mark.parametrize(
    "build",
    [
        *(Preactivated, Functional, flattening, SMALL["mlp"].build),
        pytest.param(lambda: models.resnet20(width=0.5), marks=slow),
    ],
)
def test_each_form_is_right_by_itself(build, method, form):
    torch.manual_seed(0)
    model = trained(build())
    x = torch.randn(3, *((6,) if build is SMALL["mlp"].build else (3, 16, 16)))
    names = list(dict(model.named_children()))
    options = {"branch": "|".join(names[1:])} if method == "treenet" else {"example": x}
    ensemble = pb.METHODS[method](model, 3, **options).eval()
    made = written(ensemble, x, form)
    with no_dropout():
        alike(made(x), expected(ensemble, x))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 5, 20])  # side by side, in a loop, and by width
@pytest.mark.parametrize("name", ["resnet20", "wide_resnet16_4", "lenet", "small_cnn"])
@pytest.mark.parametrize("method", ["packed", "masksembles", "batch_ensemble", "treenet"])
def test_networks_of_the_papers_give_the_same_outputs(method, name, rows):
    torch.manual_seed(0)
    model, x = trained(models.MODELS[name](width=0.5)), torch.randn(rows, 3, 32, 32)
    branch = next(reversed(dict(model.named_children())))
    options = {"treenet": {"branch": branch}}.get(method, {"example": x})
    ensemble = pb.METHODS[method](model, 3, **options)
    alike(frozen(ensemble, x)(x), expected(ensemble, x))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["deep", "masksembles", "batch_ensemble", "multihead"])
@pytest.mark.parametrize("name", OTHERS)
def test_networks_of_others_give_the_same_outputs(method, name):
    size, _ = TIMM[name]
    model, x = trained(timm_model(name)()), images(size)()
    ensemble = pb.METHODS[method](model, 2, **({"example": x} if method == "masksembles" else {}))
    alike(frozen(ensemble, x)(x), expected(ensemble, x))


def test_normalisation_is_folded(resnet, x):
    made = frozen(pb.deep(resnet, 2), x)
    kinds = {type(module).__name__ for module in made.modules()}
    assert not any("Norm" in kind or kind == "Affine" for kind in kinds)
    assert "normalisation layers folded into the layer before: 20" in made.explain()


@pytest.mark.slow
def test_masks_cost_the_channels_that_are_read_and_no_others(x):
    resnet = models.resnet18()
    single = pb.cost(resnet, x).mult_adds
    ensemble = pb.masksembles(resnet, 4, 2.0, example=x, generator=torch.Generator().manual_seed(0))
    made = frozen(ensemble, x.repeat(10, 1, 1, 1))
    assert pb.cost(made, x).mult_adds / single == pytest.approx(1.44, abs=0.02)
    assert pb.cost(made, x).mult_adds == by_hand(ensemble, residual=True)
    assert by_hand(ensemble, residual=False) / single == pytest.approx(1.68, abs=0.02)
    alike(made(x), expected(ensemble, x))


def by_hand(ensemble: pb.Ensemble, residual: bool) -> int:
    """Mult-adds of a masked ResNet-18, layer by layer, from its masks alone."""
    module, total = ensemble.module, 3 * 64 * 9 * 32 * 32  # the first layer runs once
    masks = {name[:-5]: mask.bool() for name, mask in module.named_buffers() if name.endswith(".mask")}
    for i in range(ensemble.size):
        needed = masks["fc"][i]
        total += int(needed.sum()) * 10
        for stage, block in [(s, b) for s in (4, 3, 2, 1) for b in (1, 0)]:
            name, side = f"layer{stage}.{block}", 32 // 2 ** (stage - 1)
            first, second = masks[f"{name}.conv1"][i], masks[f"{name}.conv2"][i]
            outputs = int(needed.sum()) if residual else len(needed)
            total += 9 * side**2 * (int(first.sum()) * int(second.sum()) + int(second.sum()) * outputs)
            shortcut = masks.get(f"{name}.downsample.0")
            if shortcut is None:
                needed = needed | first
            else:
                total += side**2 * int(shortcut[i].sum()) * outputs
                needed = first | shortcut[i]
    return total


def test_a_plain_chain_of_masked_layers_costs_the_square_of_their_share():
    torch.manual_seed(0)
    model, x = models.mlp(300, 10, hidden=(300, 300, 300)), torch.randn(4, 300)
    ensemble = pb.masksembles(model, 4, 2.0, example=x)
    share = int(ensemble.module.get_buffer("fc2.mask")[0].sum())
    first = 300 * 300  # runs once
    assert pb.cost(frozen(ensemble, x), x).mult_adds == first + 4 * (2 * share**2 + share * 10)


def test_what_no_member_owns_runs_once(resnet, x):
    single = pb.cost(resnet, x).mult_adds
    assert pb.cost(frozen(pb.multihead(resnet, 4), x), x).mult_adds == single + 3 * 128 * 10
    dropped = pb.mc_dropout(models.resnet18(width=0.25, dropout=0.5), 4)
    assert pb.cost(frozen(dropped, x), x).mult_adds == single + 3 * 128 * 10
    tree = frozen(pb.treenet(resnet, 4, "layer4|fc"), x)
    assert pb.cost(tree, x).mult_adds == pb.cost(pb.treenet(resnet, 4, "layer4|fc"), x).mult_adds


def test_mimo_reads_its_input_once(resnet, x):
    single = pb.cost(resnet, x).mult_adds
    ensemble = pb.mimo(resnet, 4, example=x)
    made = frozen(ensemble, x)
    assert pb.cost(made, x).mult_adds == single + 3 * 128 * 10
    alike(made(x), expected(ensemble, x))


def test_draws_of_dropout_are_new_in_each_call_and_differ_between_members():
    ensemble, x = make("mc_dropout", "mlp")
    made = frozen(ensemble, x)
    first, second = made(x), made(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    many = torch.stack([made(x) for _ in range(400)]).mean((0, 1))
    wanted = torch.stack([ensemble(x).detach() for _ in range(400)]).mean((0, 1))
    torch.testing.assert_close(many, wanted, atol=0.05, rtol=0.0)


def test_large_batches_run_in_chunks_and_give_the_same(resnet, x):
    made = frozen(pb.packed(resnet, 2, 1, example=x), x)
    many = torch.randn(made.chunk + 3, 3, 32, 32)
    assert made.chunk >= CHUNK
    alike(made(many), torch.cat([made(many[:7]), made(many[7:])], 1))


def test_a_network_that_mixes_its_rows_is_not_cut_into_chunks():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x).mean((2, 3))
            return y - y.mean(0)

    x = torch.randn(5, 1, 4, 4)
    assert frozen(pb.deep(Mixing(), 2), x).chunk == 0


def test_another_precision_and_back(resnet, x):
    ensemble = pb.packed(resnet, 2, 1, example=x)
    made = frozen(ensemble, x)
    made(x)
    alike(made.double()(x.double()), expected(copy.deepcopy(ensemble).double(), x.double()), 1e-6)
    alike(made.float()(x), expected(ensemble, x))


@pytest.mark.slow
def test_it_compiles(x):
    torch.manual_seed(0)
    ensemble = pb.packed(trained(models.resnet20(width=0.5)), 2, 1, example=x)
    made = frozen(ensemble, x)
    made(x)  # packed for this machine
    compiled = torch.compile(made, backend="aot_eager")
    alike(compiled(x), expected(ensemble, x))
    alike(compiled(x.contiguous(memory_format=torch.channels_last)), expected(ensemble, x))


def test_predictions_and_answers_are_those_of_the_ensemble(resnet, x):
    ensemble = pb.multihead(resnet, 3)
    made, prediction = frozen(ensemble, x), ensemble.predict(x)
    alike(made.predict(x).mean, prediction.mean)
    answers = made.answers(x)
    alike(answers["epistemic"], prediction.epistemic, 1e-3)
    assert torch.equal(answers["label"], prediction.label)


class FromDouble(nn.Module):
    """Takes what float32 cannot tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 2) -> (batch, 2)."""
        return self.head((x - 1e9).float())


def test_inputs_that_the_network_takes_as_they_are_are_not_rounded():
    x = 1e9 + torch.arange(10, dtype=torch.float64).reshape(5, 2)
    ensemble = pb.deep(FromDouble(), 2)
    separate = torch.stack([member(x) for member in ensemble.members])
    made = freezing.freeze(ensemble, x, choose="rule")
    assert torch.allclose(made.predict(x, batch_size=2).logits, separate)
    single = freezing.freeze(pb.deep(nn.Linear(2, 2), 2), x.float(), choose="rule")
    assert torch.equal(single.predict(x).logits, single(x.float()))  # a layer that takes float32 alone


class Steps(nn.Module):
    """Time first: what is cut into rows would be steps."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(time, batch, 3) -> (time, batch, 2)."""
        return self.head(self.lstm(x)[0])


def test_steps_of_time_are_not_taken_for_rows():
    ensemble, x = pb.deep(Steps(), 2), torch.randn(6, 4, 3)
    ensemble.class_dim = -1
    made = freezing.freeze(ensemble, x, choose="rule")
    for one in (ensemble, made):
        with pytest.raises(ValueError, match="cannot be split so that each row keeps its output"):
            one.predict(x, batch_size=2)
        assert torch.allclose(one.predict(x).logits, torch.stack([member(x) for member in ensemble.members]), atol=1e-6)


def test_members_of_unlike_architectures_are_frozen_each():
    torch.manual_seed(0)
    ensemble = pb.deep([models.lenet(width=0.5), models.small_cnn()])
    x = torch.randn(2, 3, 32, 32)
    alike(frozen(ensemble, x)(x), expected(ensemble, x))


@pytest.mark.parametrize("form", lowering.FORMS)
def test_other_sizes_work_or_are_refused_clearly(form, resnet, x, monkeypatch):
    monkeypatch.setattr(freezing, "FORMS", {form: lowering.FORMS[form]})
    larger = torch.randn(2, 3, 48, 48)
    for ensemble in (pb.deep(resnet, 2), pb.masksembles(resnet, 2, example=x)):
        alike(frozen(ensemble, x)(larger), expected(ensemble, larger))
    flat = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 2))
    masked = frozen(pb.masksembles(flat, 2, example=x), x)
    with pytest.raises(ValueError, match=r"3600 channels.*8464.*Freeze the ensemble again"):
        masked(larger)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((nn.Linear(2, 2), torch.zeros(1, 2)), TypeError, r"must be an Ensemble, but it is a Linear.*pb.single"),
        ((pb.single(nn.Linear(2, 2)), torch.zeros(1, 3)), ValueError, r"does not run on the example.*\(1, 3\)"),
    ],
)
def test_what_cannot_be_frozen_is_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        pb.freeze(*arguments)
