"""Corruptions of batches, against tests/published.py: one image at a time in numpy, scipy and Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import published
from pluribus import corruptions
from pluribus.corruptions import BENCHMARK, CORRUPTIONS, copied, corrupt, glass_blur
from pluribus.filters import Chance
from pluribus.jpeg import jpeg
from pluribus.weather import frost_pictures

RANDOM = [name for name, entry in CORRUPTIONS.items() if entry.random]
FIXED = [name for name, entry in CORRUPTIONS.items() if not entry.random]
SEVERITIES = range(1, 6)
STEP = 1 / 255 + 1e-6
PHOTOGRAPHS = load_sample_images().images


def photographs(size, count):
    """Pieces of the two photographs that scikit-learn ships, (count, size, size, 3) uint8."""
    pieces = []
    for place in range(count):
        photograph = Image.fromarray(PHOTOGRAPHS[place % 2])
        left, top = 37 * (place // 2) % 400, 53 * (place // 2) % 200
        pieces.append(np.asarray(photograph.crop((left, top, left + 224, top + 224)).resize((size, size))))
    return np.stack(pieces)


def tensor(images):
    return torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).double() / 255


def arrays(x):
    return x.permute(0, 2, 3, 1).double().numpy()


SMALL = photographs(32, 16)


class Recorded(Chance):
    """Remembers what it drew, as numpy draws for one image: channels last."""

    def __init__(self, *args):
        super().__init__(*args)
        self.drawn = {"normal": [], "uniform": []}

    def normal(self, *shape):
        return self.remember("normal", super().normal(*shape))

    def uniform(self, *shape):
        return self.remember("uniform", super().uniform(*shape))

    def remember(self, kind, numbers):
        drawn = numbers.permute(0, 2, 3, 1) if kind == "normal" and numbers.dim() == 4 else numbers
        self.drawn[kind].append(drawn.reshape(len(numbers), -1).double().numpy().copy())
        return numbers


class Replay:
    """What one example of a batch was given by chance, as a numpy Generator."""

    def __init__(self, chance, row):
        self.left = {kind: np.concatenate([a[row] for a in drawn] or [[]]) for kind, drawn in chance.drawn.items()}

    def take(self, kind, size):
        count = int(np.prod(size))
        taken, self.left[kind] = self.left[kind][:count], self.left[kind][count:]
        return taken.reshape(size) if size else taken.item()

    def normal(self, mean, scale, size=()):
        return mean + scale * self.take("normal", size)

    def uniform(self, low, high, size=()):
        return low + (high - low) * self.take("uniform", size)

    def integers(self, low, high, size=()):
        return np.floor(low + (high - low) * self.take("uniform", size)).astype(int)


def others(name):
    return {"pictures": frost_pictures(96, 3).permute(0, 2, 3, 1).double().numpy()} if name == "frost" else {}


# ---------------------------------------------------------------- equal to the published definitions


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", FIXED)
def test_what_chance_has_no_part_in_equals_the_published_definition(name, severity):
    ours = arrays(corrupt(tensor(SMALL), name, severity))
    theirs = np.stack([published.corrupt(image, name, severity, None) for image in SMALL])
    assert abs(ours - theirs).max() <= STEP


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", [name for name in RANDOM if name not in ("shot_noise", "impulse_noise")])
def test_what_chance_has_a_part_in_equals_the_published_definition_given_the_same_numbers(name, severity, monkeypatch):
    made = []
    monkeypatch.setattr(corruptions, "Chance", lambda *args: made.append(Recorded(*args)) or made[0])
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


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("grey", [0.0, 0.02, 0.3, 0.77, 1.0])
def test_shot_noise_has_the_mean_and_variance_of_poisson_counts(grey, severity):
    photons = [60, 25, 12, 5, 3][severity - 1]
    counts = CORRUPTIONS["shot_noise"].function(torch.full((20, 3, 40, 40), grey), chance(20), photons) * photons
    rate = grey * photons
    error = (rate / counts.numel()) ** 0.5
    assert counts.mean().item() == pytest.approx(rate, abs=5 * error)
    assert counts.var().item() == pytest.approx(rate, abs=5 * (2 * rate**2 + rate) ** 0.5 / counts.numel() ** 0.5)
    assert torch.allclose(counts, counts.round(), atol=1e-4)


def test_impulse_noise_changes_its_share_of_values_to_black_and_white_evenly():
    noisy = corrupt(torch.full((50, 3, 32, 32), 0.5), "impulse_noise", 5)
    spread = (0.035 / noisy.numel()) ** 0.5
    assert (noisy == 0).double().mean().item() == pytest.approx(0.035, abs=5 * spread)
    assert (noisy == 1).double().mean().item() == pytest.approx(0.035, abs=5 * spread)
    assert set(noisy.unique().tolist()) == {0.0, 0.5, 1.0}


def chance(batch, dtype=torch.float64):
    return Recorded("key", range(batch), torch.zeros(1, dtype=dtype))


@pytest.mark.parametrize("quality", [7, 25, 50, 80, 100])
@pytest.mark.parametrize("shape", [(32, 32), (28, 28), (17, 31), (40, 9), (225, 231)])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_gives_exactly_the_pixels_of_the_codec(quality, shape, channels):
    images = photographs(231, 2)[:, : shape[0], : shape[1], :channels]
    ours = arrays(jpeg(tensor(images), quality)) * 255
    theirs = [published.jpeg(image[..., 0] if channels == 1 else image, quality) for image in images]
    assert np.array_equal(ours.round(), np.stack(theirs).reshape(images.shape) * 255)


@pytest.mark.parametrize("settings", [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.5, 4, 2)])
def test_glass_blur_of_large_images_copies_in_the_published_order(settings):
    images, numbers = photographs(48, 2)[:, :40], chance(2)
    ours = arrays(glass_blur(tensor(images), numbers, *settings))
    for row, image in enumerate(images):
        assert abs(ours[row] - published.glass(image, *settings, Replay(numbers, row))).max() <= STEP


def test_copies_are_those_of_a_loop_from_the_last_place_to_the_first():
    place, source = torch.arange(2, 40), torch.randint(0, 45, (7, 38))
    origin = copied(place, source, 45)
    for row in range(7):
        values = list(range(45))
        for k in reversed(range(38)):
            values[int(place[k])] = values[int(source[row, k])]
        assert origin[row].tolist() == values


@pytest.mark.parametrize("settings", [(3, 0.1), (4, 0.5), (8, 0.5), (10, 0.5)])
def test_defocus_blur_of_large_images_is_the_published_disk(settings):
    images = photographs(64, 2)
    ours = arrays(CORRUPTIONS["defocus_blur"].function(tensor(images), None, *settings))
    assert abs(ours - np.stack([published.defocus(image, *settings) for image in images])).max() <= STEP


@pytest.mark.parametrize("shares", [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.12, 0.01, 0.02)])
def test_elastic_transform_of_large_images_is_the_published_one(shares):
    images, numbers = photographs(96, 2), chance(2)
    ours = arrays(CORRUPTIONS["elastic_transform"].function(tensor(images), numbers, *shares))
    for row, image in enumerate(images):
        theirs = published.elastic(image, *(share * 96 for share in shares), Replay(numbers, row))
        assert abs(ours[row] - theirs).max() <= STEP


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


def test_severer_frost_leaves_less_of_the_image():
    x = tensor(SMALL).repeat(6, 1, 1, 1)
    kept = []
    for severity in SEVERITIES:
        pairs = zip(x.flatten(1), corrupt(x, "frost", severity).flatten(1), strict=True)
        kept.append(np.mean([np.corrcoef(one, two)[0, 1] for one, two in pairs]))
    assert kept == sorted(kept, reverse=True)


# ---------------------------------------------------------------- every entry of the table


def test_the_table_has_the_19_corruptions_in_the_papers_order():
    assert len(CORRUPTIONS) == 19
    assert BENCHMARK[0] == "gaussian_noise" and BENCHMARK[-1] == "jpeg_compression" and len(BENCHMARK) == 15
    assert list(CORRUPTIONS)[15:] == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
    assert all(len(entry.small) == len(entry.large) == 5 for entry in CORRUPTIONS.values())


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

    def test_other_seed_other_pixels_where_chance_has_a_part(self, name):
        same = torch.equal(corrupt(self.x, name, 3, seed=0), corrupt(self.x, name, 3, seed=1))
        assert same == (not CORRUPTIONS[name].random)

    def test_equal_examples_get_chances_of_their_own(self, name):
        y = corrupt(self.x[:1].repeat(2, 1, 1, 1), name, 3)
        assert torch.equal(y[0], y[1]) == (not CORRUPTIONS[name].random)

    def test_an_example_does_not_depend_on_its_batch(self, name):
        whole = corrupt(self.x, name, 4, seed=2)
        parts = [corrupt(self.x[:1], name, 4, seed=2), corrupt(self.x[1:], name, 4, seed=2, start=1)]
        assert torch.allclose(torch.cat(parts), whole, atol=1e-6)
        assert torch.allclose(corrupt(torch.rand_like(self.x).index_copy(0, torch.tensor([2]), self.x[2:3]),
                                      name, 4, seed=2)[2], whole[2], atol=1e-6)  # fmt: skip

    def test_a_grey_image_is_corrupted_as_its_colour_copy_where_no_channel_has_chances_of_its_own(self, name):
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


def test_large_images_of_224_get_the_published_constants_and_others_scaled_lengths():
    entry = CORRUPTIONS["motion_blur"]
    assert entry.constants(5, 224) == [20, 15]
    assert entry.constants(5, 112) == [10, 7.5]
    assert entry.constants(5, 64) == [9, 2.5]


def test_pictures_of_frost_are_always_the_same():
    first = frost_pictures(96, 3).clone()
    frost_pictures.cache_clear()
    assert torch.equal(frost_pictures(96, 3), first)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "x, name, severity, error, words",
    [
        (torch.rand(1, 3, 32, 32), "rain", 1, ValueError, "'rain' is unknown. Choose from gaussian_noise, .*saturate"),
        (torch.rand(1, 3, 32, 32), "fog", 0, ValueError, "must be 1, 2, 3, 4 or 5, but it is 0"),
        (torch.rand(1, 3, 32, 32), "fog", 2.5, ValueError, "but it is 2.5"),
        (torch.rand(3, 32, 32), "fog", 1, ValueError, r"its shape is \(3, 32, 32\).*x\[None\]"),
        (torch.rand(2, 32, 32, 3), "fog", 1, ValueError, r"permute\(0, 3, 1, 2\)"),
        (torch.rand(2, 3, 4, 4), "fog", 1, ValueError, "at least 8 x 8"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 1, TypeError, "Divide by 255"),
        (torch.rand(1, 3, 32, 32) * 255, "fog", 1, ValueError, r"reaches from .* divide values up to 255 by 255"),
        (torch.rand(1, 3, 32, 32) - 0.5, "fog", 1, ValueError, "normalise afterwards"),
        (torch.full((1, 3, 32, 32), torch.nan), "fog", 1, ValueError, "it has NaN"),
        (np.zeros((1, 3, 32, 32)), "fog", 1, TypeError, "ndarray"),
    ],
)
def test_bad_input_is_told_with_the_way_out(x, name, severity, error, words):
    with pytest.raises(error, match=words):
        corrupt(x, name, severity)
