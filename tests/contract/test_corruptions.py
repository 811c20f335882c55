"""What every entry of CORRUPTIONS promises; those of the paper also against tests/support/published.py."""

import numpy as np
import published
import pytest
import torch
from corruption_cases import SEVERITIES, SMALL, STEP, Recorded, Replay, arrays, others, photographs, tensor

from pluribus.data.corruptions import CORRUPTIONS, corrupt
from pluribus.data.corruptions import catalogue as corruptions

PUBLISHED = [name for name in CORRUPTIONS if hasattr(published, name)]
RANDOM = [name for name in PUBLISHED if CORRUPTIONS[name].random]
FIXED = [name for name in PUBLISHED if not CORRUPTIONS[name].random]


# ---------------------------------------------------------------- equal to the published definitions


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", FIXED)
def test_what_is_not_random_equals_the_published_definition(name, severity):
    ours = arrays(corrupt(tensor(SMALL), name, severity))
    theirs = np.stack([published.corrupt(image, name, severity, None) for image in SMALL])
    assert abs(ours - theirs).max() <= STEP


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", [name for name in RANDOM if name not in ("shot_noise", "impulse_noise")])
def test_what_is_random_equals_the_published_definition_given_the_same_numbers(name, severity, monkeypatch):
    made = []
    monkeypatch.setattr(corruptions, "ExampleRng", lambda *args: made.append(Recorded(*args)) or made[0])
    ours = arrays(corrupt(tensor(SMALL[:6]), name, severity))
    for row, image in enumerate(SMALL[:6]):
        replay = Replay(made[0], row)
        theirs = published.corrupt(image, name, severity, replay, **others(name))
        assert abs(ours[row] - theirs).max() <= STEP
        assert [len(left) for left in replay.left.values()] == [0, 0]


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", RANDOM)
def test_mean_and_variance_agree_with_the_published_definition(name, severity):
    image, count, rng = SMALL[1], 80, np.random.default_rng(severity)
    theirs = np.stack([published.corrupt(image, name, severity, rng, **others(name)) for _ in range(count)])
    ours = arrays(corrupt(tensor(image[None]).expand(3 * count, -1, -1, -1).float(), name, severity, seed=1))
    for statistic in (np.mean, np.var):
        one, two = statistic(ours, (1, 2, 3)), statistic(theirs, (1, 2, 3))
        error = np.sqrt(one.var() / len(one) + two.var() / len(two))
        assert abs(one.mean() - two.mean()) <= 4 * error + 1e-4


# ---------------------------------------------------------------- severity

# The published constants make other things grow than the mean difference from the clean image. Motion at 3 and 4
# differs in a radius that the Gaussian does not reach. Glass blurs more from 1 to 3, which hides displaced pixels, and
# displaces twice from 4 on. Elastic trades a large affine map for fine waves. Spatter is water to 3 and mud from 4,
# saturate takes colour to 2 and gives it from 3. Frost darkens the image as it whitens it.
RISING = {
    **{name: [list(SEVERITIES)] for name in CORRUPTIONS if name not in ("glass_blur", "elastic_transform", "frost")},
    "spatter": [[1, 2, 3], [4, 5]],
    "saturate": [[1, 2], [3, 4, 5]],
    "motion_blur": [[1, 2, 3, 5], [1, 2, 4, 5]],
    "glass_blur": [[1, 4], [1, 5], [2, 4], [2, 5], [3, 4], [3, 5]],
    "elastic_transform": [[5, 4, 3, 2, 1]],
}


@pytest.mark.parametrize("name", RISING)
def test_a_severer_corruption_is_farther_from_the_clean_image(name):
    x = tensor(SMALL).repeat(6, 1, 1, 1)
    error = {severity: (corrupt(x, name, severity) - x).abs().mean().item() for severity in SEVERITIES}
    for order in RISING[name]:
        errors = [error[severity] for severity in order]
        assert errors == sorted(errors) and len(set(errors)) == len(errors)


# ---------------------------------------------------------------- shapes, types and seeds


@pytest.mark.parametrize("name", CORRUPTIONS)
class TestEvery:
    x = tensor(SMALL[:4]).float()

    @pytest.mark.parametrize("shape", [(2, 1, 28, 28), (1, 3, 8, 8), (2, 3, 48, 33), (3, 1, 64, 64)])
    def test_shape_range_and_input_are_kept(self, name, shape):
        x = torch.rand(shape)
        before = x.clone()
        for severity in SEVERITIES:
            y = corrupt(x, name, severity)
            assert y.shape == x.shape and y.dtype == x.dtype
            assert y.min() >= 0 and y.max() <= 1
        assert torch.equal(x, before)

    @pytest.mark.parametrize("channels", [1, 3])
    def test_large_images(self, name, channels):
        x = tensor(photographs(224, 1)).float()[:, :channels]
        error = [(corrupt(x, name, severity) - x).abs().mean().item() for severity in (1, 5)]
        assert min(error) > 1e-3 or (name == "saturate" and channels == 1)

    def test_sizes_between_and_beyond_the_published_ones(self, name):
        for shape in ((1, 3, 65, 65), (1, 3, 96, 130), (1, 1, 260, 240)):
            assert corrupt(torch.rand(shape), name, 3).shape == shape

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
    def test_type_is_kept(self, name, dtype):
        y = corrupt(self.x.to(dtype), name, 2)
        assert y.dtype == dtype
        expected = corrupt(self.x.to(dtype).float(), name, 2)
        assert (y.float() - expected).abs().mean() < {torch.float64: 1e-4}.get(dtype, 5e-3)

    def test_same_seed_same_pixels_whatever_the_global_generator(self, name):
        first = corrupt(self.x, name, 3, seed=5)
        torch.manual_seed(99)
        state = torch.get_rng_state()
        assert torch.equal(corrupt(self.x, name, 3, seed=5), first)
        assert torch.equal(torch.get_rng_state(), state)

    def test_other_seed_other_pixels_where_numbers_are_drawn(self, name):
        same = torch.equal(corrupt(self.x, name, 3, seed=0), corrupt(self.x, name, 3, seed=1))
        assert same == (not CORRUPTIONS[name].random)

    def test_equal_examples_get_random_numbers_of_their_own(self, name):
        y = corrupt(self.x[:1].repeat(2, 1, 1, 1), name, 3)
        assert torch.equal(y[0], y[1]) == (not CORRUPTIONS[name].random)

    def test_an_example_does_not_depend_on_its_batch(self, name):
        whole = corrupt(self.x, name, 4, seed=2)
        parts = [corrupt(self.x[:1], name, 4, seed=2), corrupt(self.x[1:], name, 4, seed=2, start=1)]
        assert torch.allclose(torch.cat(parts), whole, atol=1e-6)
        assert torch.allclose(corrupt(torch.rand_like(self.x).index_copy(0, torch.tensor([2]), self.x[2:3]),
                                      name, 4, seed=2)[2], whole[2], atol=1e-6)  # fmt: skip

    def test_a_grey_image_is_corrupted_as_its_colour_copy_where_no_channel_has_numbers_of_its_own(self, name):
        if "noise" in name:
            return
        grey = self.x.mean(1, keepdim=True)
        grey = (grey * 255).round() / 255
        weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
        colour = (corrupt(grey.expand(-1, 3, -1, -1), name, 3) * weights).sum(1, keepdim=True)
        assert (corrupt(grey, name, 3) - colour).abs().max() < 3 / 255

    def test_no_examples(self, name):
        assert corrupt(torch.zeros(0, 3, 32, 32), name, 1).shape == (0, 3, 32, 32)

    def test_black_and_white_images(self, name):
        for value in (0.0, 1.0):
            y = corrupt(torch.full((2, 3, 32, 32), value), name, 5)
            assert torch.isfinite(y).all() and y.min() >= 0 and y.max() <= 1
