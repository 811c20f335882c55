"""The mask sampler against enumeration, closed forms and its limits."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy import stats

from pluribus.methods.mask_sampler import _log_finishes, expected_iou, grow_width, masks, mean_mask_iou, ones

WIDTHS = (4, 8, 10, 12, 16, 20, 32, 64, 100, 128, 256, 512, 2048)
SIZES = (1, 2, 4, 8, 16)
SCALES = (1, 1.1, 1.5, 2, 3, 4, 6, 10)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_setting_uses_every_channel_with_equal_ones(width):
    for size, scale in itertools.product(SIZES, SCALES):
        drawn = masks(width, size, scale, generator=seeded())
        assert drawn.shape == (size, width)
        assert set(drawn.unique().tolist()) <= {0.0, 1.0}
        assert (drawn.sum(dim=0) > 0).all(), (size, scale)
        assert (drawn.sum(dim=1) == ones(width, size, scale)).all(), (size, scale)


@pytest.mark.parametrize(
    "width, size, count", [(3, 3, 1), (4, 2, 2), (4, 2, 3), (4, 3, 2), (5, 2, 3), (5, 3, 2), (3, 4, 2)]
)
@pytest.mark.slow
def test_law_is_uniform_over_all_covering_tuples(width, size, count):
    subsets = list(itertools.combinations(range(width), count))
    tuples = [rows for rows in itertools.product(subsets, repeat=size) if len(set().union(*rows)) == width]
    generator, draws = seeded(width * 100 + size * 10 + count), 25 * len(tuples) + 2000
    seen = Counter(as_sets(masks(width, size, capacity=count, generator=generator)) for _ in range(draws))
    assert set(seen) <= set(tuples)
    assert stats.chisquare([seen[rows] for rows in tuples]).pvalue > 0.01


def as_sets(drawn: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row.nonzero().flatten().tolist()) for row in drawn)


@pytest.mark.parametrize("width, size, count", [(10, 4, 3), (64, 4, 34), (64, 16, 4), (2048, 4, 1092), (3000, 3, 1500)])
def test_number_of_mask_sets_agrees_with_inclusion_and_exclusion(width, size, count):  # 3000: in several blocks
    exact = sum(
        (-1) ** missed * math.comb(width, missed) * math.comb(width - missed, count) ** size
        for missed in range(width - count + 1)
    )
    found = _log_finishes(width, count, size)[size - 1, 0] + math.log(math.comb(width, count))
    assert found == pytest.approx(math.log(exact), rel=1e-10)


@pytest.mark.parametrize("scale", [1, 1.1, 1.5, 2, 3, 4, 6])
def test_mean_iou_of_wide_masks_is_one_over_two_scale_minus_one(scale):
    drawn = masks(2048, 16, scale, generator=seeded())
    assert mean_mask_iou(drawn) == pytest.approx(expected_iou(scale), abs=0.01)


@pytest.mark.parametrize("scale", [1.5, 2, 3])
def test_ones_agree_with_the_formula_of_the_paper(scale):
    for width, size in itertools.product((64, 100, 512), (2, 4, 8)):
        formula = width / (scale * (1 - (1 - 1 / scale) ** size))
        assert formula - 1 < ones(width, size, scale) <= formula + 1e-9


def test_ones_are_exact_where_the_formula_gives_a_whole_number():
    assert ones(16, 2, 1.5) == 12
    assert ones(12, 2, 2) == 8
    assert ones(30, 4, 2) == 16


def test_ones_are_raised_to_what_covering_needs():
    assert ones(10, 4, 10) == 3  # the formula gives 2, and 4 masks of 2 leave channels unused
    assert ones(7, 1, 3) == 7
    assert ones(10, 4, 1e18) == 3


def test_a_large_scale_gives_disjoint_masks_where_the_size_divides_the_width():
    drawn = masks(20, 4, 1e6, generator=seeded())
    assert torch.equal(drawn.sum(dim=0), torch.ones(20))


def test_capacity_gives_the_ones_directly():
    assert (masks(16, 4, capacity=7).sum(dim=1) == 7).all()
    assert torch.equal(masks(64, 4, 2.0, generator=seeded(3)), masks(64, 4, capacity=34, generator=seeded(3)))


def test_draws_follow_the_seed_of_the_generator():
    first, again, other = (masks(64, 4, 2.0, generator=seeded(seed)) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("capacity, size, scale", [(2, 2, 2.0), (2, 3, 2.5), (3, 3, 1.5), (1, 4, 3.0)])
def test_grown_width_follows_the_law_of_uniform_masks(capacity, size, scale):
    positions = round(capacity * scale)
    subsets = list(itertools.combinations(range(positions), capacity))
    law = Counter(len(set().union(*rows)) for rows in itertools.product(subsets, repeat=size))
    generator = seeded(1)
    seen = Counter(grow_width(capacity, size, scale, generator) for _ in range(3000))
    assert set(seen) <= set(law)
    expected = [3000 * count / law.total() for count in law.values()]
    assert stats.chisquare([seen[width] for width in law], expected).pvalue > 0.01


def test_grown_width_is_the_capacity_at_scale_one_and_the_sum_at_a_huge_scale():
    assert grow_width(64, 4, 1.0) == 64
    assert grow_width(64, 4, 1e17) == 256


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: masks(8, 0, 2.0), "masks: size must be a whole number of at least 1, but it is 0"),
        (lambda: masks(0, 4, 2.0), "masks: width must be a whole number of at least 1, but it is 0"),
        (lambda: masks(8, 4, 0.5), "scale must be finite and at least 1 .*, but it is 0.5"),
        (lambda: masks(8, 4, math.nan), "at least 1 .*, but it is nan"),
        (lambda: masks(8, 4, math.inf), "at least 1 .*, but it is inf"),
        (lambda: masks(8, 2.5, 2.0), "size must be a whole number"),
        (lambda: masks(8, 4), "either scale or capacity, but got neither"),
        (lambda: masks(8, 4, 2.0, capacity=4), "either scale or capacity, but got both"),
        (lambda: masks(10, 4, capacity=2), "need a capacity of 3 to 10 ones each, but capacity is 2"),
        (lambda: masks(10, 4, capacity=11), "need a capacity of 3 to 10 ones each, but capacity is 11"),
        (lambda: ones(8, 4, 0.9), "ones: scale"),
        (lambda: grow_width(0, 4, 2.0), "grow_width: capacity must be a whole number of at least 1, but it is 0"),
        (lambda: grow_width(8, 4, 0.0), "grow_width: scale"),
        (lambda: expected_iou(0.5), "expected_iou: scale"),
        (lambda: mean_mask_iou(torch.ones(1, 4)), r"mean_mask_iou: compares two or more masks.*\(1, 4\)"),
    ],
)
def test_bad_input_names_the_rule_and_the_value(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# ---------------------------------------------------------------- masks after layers, each row through all of them


def test_masks_after_convolutions_and_repeated_rows_equal_networks_masked_by_hand():
    """Packed-Ensembles' comparison: every row through every mask, all in one batch, the mean over members and rows."""
    import torch.nn.functional as F
    from torch import nn

    import pluribus as pb

    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(6 * 4, 3)),
    )
    x, y = torch.randn(5, 2, 6, 6), torch.arange(5) % 3
    ensemble = pb.masksembles(model, 3, 2.0, example=x, after=True, repeat=True)
    masks = {name: mask for name, mask in ensemble.module.named_buffers() if name.endswith("mask")}
    assert {name: tuple(mask.shape) for name, mask in masks.items()} == {"0.mask": (3, 8), "3.mask": (3, 6)}

    def run(x, member):  # (rows), of each row
        h = model[0](x) * masks["0.mask"][member][:, :, None, None]
        h = model[3](model[2](model[1](h))) * masks["3.mask"][member][:, :, None, None]
        return model[6](model[5](model[4](h)))

    model.train()
    member, rows = torch.arange(3).repeat_interleave(5), x.repeat(3, 1, 1, 1)
    expected = F.cross_entropy(run(rows, member), y.repeat(3))
    found = ensemble.train().loss(x, y, F.cross_entropy)
    torch.testing.assert_close(found, expected)
    model.eval()
    model[1].load_state_dict(ensemble.module[1].state_dict())
    for i, output in enumerate(ensemble.eval()(x)):
        torch.testing.assert_close(output, run(x, torch.full((5,), i)))
    torch.testing.assert_close(ensemble.member(1).eval()(x), ensemble(x)[1])
    with pytest.raises(ValueError, match="after= and capacity= exclude each other"):
        pb.masksembles(model, 3, 2.0, 1.0, x, after=True)
