"""A joint step equals separate steps, whatever the optimizer looks at."""

import pytest
import torch
import torch.nn.functional as F
from processes import in_two_processes
from small import CLASSES, targets
from torch import nn

import pluribus as pb
from pluribus.surgery.copying import state
from pluribus.training.optimizers import Lamb


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 12, 3),
        nn.BatchNorm2d(12),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


class LayerWise(torch.optim.Optimizer):
    """What LARS does, in three lines: a step scaled by the norm of the whole tensor."""

    def __init__(self, groups, lr=0.1):
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"] * p.norm() / (p.grad.norm() + 1e-3))


def batches(steps: int = 3):
    return [(torch.randn(6, 3, 8, 8), targets(6)) for _ in range(steps)]


def ensembles(run: str) -> list[pb.Ensemble]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    made = [pb.deep(network(), 3), pb.packed(network(), 4, example=x), pb.deep([network(), network()])]
    made.append(pb.deep([network(), nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))]))
    for ensemble in made[:-1]:
        ensemble.run = run
    return made


@pytest.mark.parametrize("run", ["vmap", "loop"])
def test_joint_sgd_with_momentum_decay_and_clipping_equals_separate_steps(run):
    for ensemble in ensembles(run):
        members = [ensemble.member(i).train() for i in range(ensemble.size)]
        make = lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=5e-3)  # noqa: E731
        joint, separate = make(ensemble.parameters()), [make(member.parameters()) for member in members]
        for x, y in batches():
            joint.zero_grad()
            ensemble.train().loss(x, y, F.cross_entropy).backward()
            norms = ensemble.clip_grad_norm_(0.5)
            joint.step()
            for i, (member, optimizer) in enumerate(zip(members, separate, strict=True)):
                optimizer.zero_grad()
                F.cross_entropy(member(x), y).backward()
                norm = nn.utils.clip_grad_norm_(member.parameters(), 0.5)
                torch.testing.assert_close(norms[i], norm, rtol=1e-4, atol=1e-5)
                optimizer.step()
        for i, member in enumerate(members):
            after = ensemble.member(i)
            for (name, a), (_, b) in zip(state(after), state(member), strict=True):  # statistics included
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_layer_wise_optimizers_act_per_member():
    for ensemble in ensembles("vmap"):
        ensemble.double()  # biases before a normalisation have no gradient but rounding, which a norm would blow up
        members = [ensemble.member(i).train() for i in range(ensemble.size)]
        joint = pb.PerMember(ensemble, LayerWise, ensemble.parameter_groups(lr=0.1))
        separate = [LayerWise(member.parameters()) for member in members]
        for x, y in batches():
            x = x.double()
            joint.zero_grad()
            ensemble.train().loss(x, y, F.cross_entropy).backward()
            joint.step()
            for member, optimizer in zip(members, separate, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(member(x), y).backward()
                optimizer.step()
        x = torch.randn(4, 3, 8, 8).double()
        for i, member in enumerate(members):
            torch.testing.assert_close(ensemble.eval()(x)[i], member.eval()(x), rtol=1e-5, atol=1e-6)


def test_lamb_divides_each_members_gradient_by_its_own_norm():
    """Against timm's LAMB on networks of their own; gradients are so large that every step is scaled."""
    from timm.optim import Lamb as Reference

    for ensemble in ensembles("loop"):
        ensemble.double()
        members = [ensemble.member(i).train() for i in range(ensemble.size)]
        joint = pb.PerMember(ensemble, Lamb, ensemble.parameter_groups(lr=0.02, weight_decay=0.02))
        separate = [Reference(m.parameters(), lr=0.02, weight_decay=0.02, max_grad_norm=1.0) for m in members]
        for x, y in batches(8):
            x = 50 * x.double()
            joint.zero_grad()
            (30 * ensemble.train().loss(x, y, F.cross_entropy)).backward()
            joint.step()
            for member, optimizer in zip(members, separate, strict=True):
                optimizer.zero_grad()
                (30 * F.cross_entropy(member(x), y)).backward()
                optimizer.step()
        for i, member in enumerate(members):
            for (name, a), (_, b) in zip(state(ensemble.member(i)), state(member), strict=True):
                if not name.endswith("bias"):  # of convolutions before a normalisation: no gradient but rounding
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_per_member_follows_schedules_and_state_dicts():
    ensemble = pb.deep(nn.Linear(4, 2), 3)
    build = lambda groups: torch.optim.SGD(groups, momentum=0.9)  # noqa: E731
    optimizer = pb.PerMember(ensemble, build, ensemble.parameter_groups(lr=0.1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    ensemble.loss(torch.randn(3, 4), torch.randn(3, 2), F.mse_loss).backward()
    optimizer.step()
    schedule.step()
    assert {group["lr"] for one in optimizer.inner for group in one.param_groups} == {0.05}
    other = pb.PerMember(ensemble, build, ensemble.parameter_groups(lr=0.3))
    other.load_state_dict(optimizer.state_dict())
    assert {group["lr"] for one in other.inner for group in one.param_groups} == {0.05}
    assert len(other.state) == 6 and all(one.state is other.state for one in other.inner)


def test_what_is_shared_is_clipped_as_one_group():
    ensemble = pb.treenet(network(), 3, branch="8")
    x, y = batches(1)[0]
    ensemble.train().loss(x, y, F.cross_entropy).backward()
    norms = ensemble.clip_grad_norm_(0.01)
    assert norms.shape == (4,)
    assert (norms > 0.01).all()
    own = [p.grad for n, p in ensemble.module.named_parameters() if n in ensemble.own]
    shared = [p.grad for n, p in ensemble.module.named_parameters() if n not in ensemble.own]
    for i in range(3):
        assert torch.stack([g[i].norm() for g in own]).norm() == pytest.approx(0.01, rel=1e-3)
    assert torch.stack([g.norm() for g in shared]).norm() == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(ValueError, match="must be positive"):
        ensemble.clip_grad_norm_(0.0)


def test_per_member_batches_equal_separate_training_on_them():
    ensemble = ensembles("loop")[0]
    members = [ensemble.member(i).train() for i in range(3)]
    x, y = torch.randn(3, 4, 3, 8, 8), torch.stack([targets(4) for _ in range(3)])
    ensemble.train().loss(x, y, F.cross_entropy, per_member=True).backward()
    for i, member in enumerate(members):
        F.cross_entropy(member(x[i]), y[i]).backward()
        for (name, joint), (_, alone) in zip(
            ensemble.module.named_parameters(), member.named_parameters(), strict=True
        ):
            torch.testing.assert_close(joint.grad[i], alone.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_batch_ensemble_has_no_decay_and_its_own_rate_on_fast_weights():
    ensemble = pb.batch_ensemble(network(), 3)
    slow, fast = ensemble.parameter_groups(lr=0.1, weight_decay=5e-4)
    assert (slow["lr"], slow["weight_decay"], fast["lr"], fast["weight_decay"]) == (0.1, 5e-4, 0.05, 0.0)
    names = {id(p): n for n, p in ensemble.module.named_parameters()}
    assert {names[id(p)].rpartition(".")[2] for p in fast["params"]} == {"r", "s"}
    assert len(slow["params"]) + len(fast["params"]) == len(names)


def gradients(rank: int, halves: list) -> list:
    torch.manual_seed(0)
    ensemble = pb.deep(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 3)
    parallel = nn.parallel.DistributedDataParallel(ensemble)
    parallel(halves[rank]).square().mean(dim=(1, 2)).sum().backward()
    return [p.grad.tolist() for p in ensemble.parameters()]


@pytest.mark.slow
def test_distributed_data_parallel_averages_the_gradients_of_stacked_tensors(tmp_path):
    halves = [torch.randn(4, 4), torch.randn(4, 4)]
    found = in_two_processes(gradients, tmp_path, halves)
    torch.manual_seed(0)
    ensemble = pb.deep(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 3)
    (ensemble(torch.cat(halves)).square().mean(dim=(1, 2)).sum()).backward()
    for parameter, gradient in zip(ensemble.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, torch.tensor(gradient), rtol=1e-4, atol=1e-6)
