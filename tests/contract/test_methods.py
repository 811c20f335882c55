"""What every method promises, on every kind of small model; a new method is tested unasked."""

import copy
import io
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from places import SUPPORT
from small import SMALL, close, make, needed, targets

import pluribus as pb
from pluribus.surgery.copying import state

pytestmark = pytest.mark.filterwarnings("ignore:.*this model does not run under vmap")

CASES = [(method, name) for method in pb.METHODS for name in SMALL]
every = pytest.mark.parametrize(("method", "name"), CASES)
APART = [case for case in CASES if case[0] not in ("mimo", "mc_dropout")]  # members that are modules of their own
apart = pytest.mark.parametrize(("method", "name"), APART)


@every
def test_members_come_first(method, name):
    ensemble, x = make(method, name)
    assert ensemble(x).shape == (ensemble.size, 5, 3)
    assert ensemble.train()(x).shape == (ensemble.size, 5, 3)


@every
def test_the_model_given_is_unchanged_bit_for_bit(method, name):
    torch.manual_seed(0)
    case = SMALL[name]
    model, x = case.build(), case.batch(5)
    before = copy.deepcopy(model)
    options = needed(method, x, case.branch)
    ensemble = pb.METHODS[method](model, *(() if method == "single" else (3,)), **options)
    optimizer = torch.optim.SGD(ensemble.parameters(), 0.1)
    ensemble.loss(x, targets(), F.cross_entropy).backward()
    optimizer.step()
    assert repr(model) == repr(before)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(state(model), state(before), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@apart
def test_vmap_equals_loop(method, name):
    if name == "recurrent":
        pytest.skip("torch has no batching rule for an LSTM")
    ensemble, x = make(method, name)
    ensemble.run = "vmap"
    mapped = ensemble(x)
    ensemble.run = "loop"
    close(mapped, ensemble(x))


@apart
def test_a_member_gives_what_the_ensemble_gives(method, name):
    ensemble, x = make(method, name)
    with torch.no_grad():  # where PyTorch may take a fast path around the layers
        outputs = ensemble(x)
        for i in range(ensemble.size):
            close(ensemble.member(i)(x), outputs[i])
    close(ensemble.member(-1)(x), outputs[-1])


@apart
def test_a_member_depends_on_no_tensor_that_only_another_owns(method, name):
    ensemble, x = make(method, name)
    own = [t for n, t in state(ensemble.module) if n in ensemble.own and "running" not in n and t.is_floating_point()]
    for tensor in own:
        tensor.requires_grad_()  # masks too
    outputs = ensemble(x)
    used = torch.zeros(ensemble.size, dtype=torch.bool)
    for i in range(ensemble.size):
        gradients = torch.autograd.grad(outputs[i].square().sum(), own, retain_graph=True, allow_unused=True)
        for gradient in (g for g in gradients if g is not None):
            others = [j for j in range(ensemble.size) if j != i]
            assert not gradient[others].any()
            used[i] |= gradient[i].any()
    assert used.all()


@apart
@torch.no_grad()
def test_a_change_of_what_one_member_owns_changes_that_member_only(method, name):
    ensemble, x = make(method, name)
    before = ensemble(x)
    for n, tensor in state(ensemble.module):  # statistics of normalisation included
        if n in ensemble.own and tensor.is_floating_point():
            tensor[-1] += 0.1 + torch.rand_like(tensor[-1])
    after = ensemble(x)
    assert torch.equal(before[:-1], after[:-1])
    assert not torch.equal(before[-1], after[-1])


@every
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_any_batch_size_trains(method, name, rows):
    ensemble, _ = make(method, name)
    loss = ensemble.train().loss(SMALL[name].batch(rows), targets(rows), F.cross_entropy)
    loss.backward()
    assert loss.ndim == 0
    gradients = [p.grad for p in ensemble.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(g).all() for g in gradients)


@every
def test_every_parameter_gets_a_gradient(method, name):
    ensemble, _ = make(method, name)
    ensemble.train().loss(SMALL[name].batch(12), targets(12), F.cross_entropy).backward()
    learning = [(n, p) for n, p in ensemble.named_parameters() if p.requires_grad]  # lora's weights are frozen
    assert learning
    assert not [n for n, p in learning if p.grad is None or not torch.isfinite(p.grad).all()]


@every
def test_it_learns(method, name):
    ensemble, _ = make(method, name)
    x, y = SMALL[name].batch(6), targets(6)
    optimizer = torch.optim.Adam(ensemble.parameter_groups(lr=0.03))
    now = before = F.nll_loss(ensemble.eval().pooled()(x), y).item()
    for step in range(60):
        optimizer.zero_grad()
        ensemble.train().loss(x, y, F.cross_entropy).backward()
        optimizer.step()
        if step % 10 == 9 and (now := F.nll_loss(ensemble.eval().pooled()(x), y).item()) < 0.7 * before:
            break
    assert now < 0.7 * before


@every
def test_each_member_can_have_a_batch_of_its_own(method, name):
    ensemble, _ = make(method, name)
    ensemble.train()
    x = torch.stack([SMALL[name].batch(4) for _ in range(ensemble.size)])
    y = torch.stack([targets(4) for _ in range(ensemble.size)])
    ensemble.loss(x, y, F.cross_entropy, per_member=True).backward()
    assert any(p.grad is not None for p in ensemble.parameters())
    with pytest.raises(ValueError, match="per_member=True inputs are"):
        ensemble.loss(x[:, 0][:1].repeat(ensemble.size + 1, *[1] * (x.ndim - 2)), y, F.cross_entropy, per_member=True)


@every
def test_copies_and_pickles_are_equal(method, name):
    ensemble, x = make(method, name)
    torch.manual_seed(1)
    expected = ensemble(x)
    stream = io.BytesIO()
    torch.save(ensemble, stream)
    stream.seek(0)
    for other in (
        copy.deepcopy(ensemble),
        pickle.loads(pickle.dumps(ensemble)),
        torch.load(stream, weights_only=False),
    ):
        torch.manual_seed(1)
        close(other(x), expected)
        other.train().loss(x, targets(), F.cross_entropy).backward()  # rows still find their members


@every
def test_state_dict_round_trip(method, name):
    ensemble, x = make(method, name)
    other, _ = make(method, name)
    changed = {k: 2 * v + 1 for k, v in ensemble.state_dict().items()}
    other.load_state_dict(changed)
    assert all(torch.equal(v, changed[k]) for k, v in other.state_dict().items())


@every
def test_it_moves_to_another_precision(method, name):
    ensemble, x = make(method, name)
    x = x.bfloat16() if x.is_floating_point() else x
    assert ensemble.bfloat16()(x).dtype == torch.bfloat16
    assert torch.isfinite(ensemble.train().loss(x, targets(), F.cross_entropy))


@every
def test_predict_leaves_everything_as_it_was(method, name):
    ensemble, x = make(method, name)
    ensemble.train()
    before = {k: v.clone() for k, v in ensemble.state_dict().items()}
    prediction = ensemble.predict(x, batch_size=2)
    assert prediction.mean.shape == (5, 3)
    torch.testing.assert_close(prediction.total, prediction.aleatoric + prediction.epistemic)
    assert ensemble.training
    assert all(torch.equal(v, before[k]) for k, v in ensemble.state_dict().items())
    assert not prediction.mean.requires_grad


def compiled_cases() -> Iterator[Any]:
    """Each method on each model; in the default suite those alone that are compiled like no other, on one model."""
    alike = {"single", "packed", "treenet", "lora"}  # as deep, multihead, which owns an end, or batch_ensemble
    for method in (m for m in pb.METHODS if m != "mc_dropout"):
        for name in ("mlp", "cnn", "encoder"):
            yield pytest.param(method, name, marks=[pytest.mark.slow] if name != "mlp" or method in alike else [])


@pytest.mark.parametrize(("method", "name"), list(compiled_cases()))
@pytest.mark.filterwarnings("default:The .grad attribute of a Tensor")  # dynamo looks and hides the warning
@pytest.mark.filterwarnings("default:There is a performance drop")  # of fused attention, traced by the compiler
def test_compile_gives_the_same(method, name):
    ensemble, x = make(method, name)
    expected = ensemble(x)
    torch.compiler.reset()
    close(torch.compile(ensemble, backend="eager")(x), expected)


LOADER = """
import sys, torch, pluribus as pb
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from small import SMALL
x = torch.load(sys.argv[2] + "/x.pt")
for case in open(sys.argv[2] + "/cases.txt").read().split():
    method, name = case.split(":")
    torch.manual_seed(99)  # other weights than the ones that were saved
    loaded = pb.load(f"{sys.argv[2]}/{method}-{name}.safetensors", SMALL[name].build())
    torch.manual_seed(1)
    torch.save(loaded(x[name]), f"{sys.argv[2]}/{method}-{name}.pt")
"""


@pytest.mark.parametrize("where", [SUPPORT])
@pytest.mark.slow
def test_save_and_load_in_a_new_process_give_equal_outputs(where, tmp_path):
    expected, inputs = {}, {}
    for method, name in ((m, n) for m, n in CASES if n == "mlp" or m == "packed"):  # each method, each kind of network
        ensemble, x = make(method, name)
        ensemble.task = "regression"
        pb.save(ensemble, tmp_path / f"{method}-{name}.safetensors", whole=True)
        inputs[name] = x
        torch.manual_seed(1)
        expected[f"{method}:{name}"] = ensemble(x)
    torch.save(inputs, tmp_path / "x.pt")
    (tmp_path / "cases.txt").write_text("\n".join(expected))
    subprocess.run([sys.executable, "-c", textwrap.dedent(LOADER), str(where), str(tmp_path)], check=True)
    for case, outputs in expected.items():
        torch.testing.assert_close(torch.load(tmp_path / f"{case.replace(':', '-')}.pt"), outputs, rtol=0, atol=0)
