"""Optimizers, schedules and the papers' recipes by name."""

import pytest
import torch
import torch.nn.functional as F
from fitting_cases import examples
from torch import nn

import pluribus as pb
from pluribus.training.optimizers import Lamb
from pluribus.training.schedules import SCHEDULES


class TestOptimizers:
    def test_lamb_equals_that_of_timm(self):
        from timm.optim import Lamb as Reference

        torch.manual_seed(0)
        first = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        second = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        second.load_state_dict(first.state_dict())
        ours = Lamb(first.parameters(), lr=0.05, weight_decay=0.02)
        theirs = Reference(second.parameters(), lr=0.05, weight_decay=0.02, max_grad_norm=1.0)
        x, y = torch.randn(32, 6) * 5, torch.randint(3, (32,))
        for _ in range(5):
            for model, optimizer in ((first, ours), (second, theirs)):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    def test_lamb_trains_members_as_if_alone(self):
        x, y = examples()
        ensemble = pb.deep(nn.Linear(5, 3), 2)
        with torch.no_grad():
            ensemble.module.weight[1] *= 10
        alone = [pb.deep([ensemble.member(i)]) for i in range(2)]
        for one in (ensemble, *alone):
            build = lambda groups: Lamb(groups, max_grad_norm=None)  # noqa: E731
            build.layerwise = True
            pb.fit(one, (x, y), epochs=2, batch_size=32, optimizer=build, lr=0.05, weight_decay=0.01)
        for i in range(2):
            torch.testing.assert_close(ensemble.module.weight[i], alone[i].module.weight[0])

    def test_multistep_equals_that_of_torch(self):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5], gamma=0.2)
        rate = SCHEDULES["multistep"](8, milestones=[3, 5], factors=0.2)
        for epoch in range(8):
            assert rate(epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()


class TestRecipes:
    @pytest.mark.parametrize("name", pb.RECIPES)
    @pytest.mark.parametrize("method", pb.METHODS)
    def test_every_recipe_makes_a_module_for_every_method(self, name, method):
        recipe = pb.RECIPES[name]
        ensemble = pb.deep(nn.Linear(2, 2), 2)
        module = pb.lightning_module(ensemble, recipe.of(method))
        assert module.rate(recipe.of(method).epochs - 1) <= 1

    def test_every_recipes_augmentation_can_be_made(self):
        from pluribus.training.augmentation import Augment, augment_of

        for recipe in pb.RECIPES.values():
            if isinstance(recipe.augment, str):
                augment_of(recipe.augment, 0.5, 0.2, 10)
            elif recipe.augment is not None:
                Augment(0.5, 0.2, classes=10, **recipe.augment)

    def test_every_setting_of_a_method_is_one_that_it_takes(self):
        import inspect

        for name, recipe in pb.RECIPES.items():
            for method in recipe.methods:
                known = set(inspect.signature(pb.METHODS[method]).parameters)
                assert set(recipe.settings(method)) <= known, (name, method)
