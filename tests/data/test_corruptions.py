"""Single corruptions in their details; what holds for every one of the table is in tests/contract."""

import numpy as np
import published
import pytest
import torch
from corruption_cases import SEVERITIES, STEP, Replay, arrays, photographs, recorded, tensor

from pluribus.data.corruptions import CORRUPTIONS, corrupt
from pluribus.data.corruptions.catalogue import glass_blur, jpeg_compression, trace_copies

# ---------------------------------------------------------------- single corruptions


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("grey", [0.0, 0.02, 0.3, 0.77, 1.0])
def test_shot_noise_has_the_mean_and_variance_of_poisson_counts(grey, severity):
    photons = [60, 25, 12, 5, 3][severity - 1]
    counts = CORRUPTIONS["shot_noise"].function(torch.full((20, 3, 40, 40), grey), recorded(20), photons) * photons
    rate = grey * photons
    error = (rate / counts.numel()) ** 0.5
    assert counts.mean().item() == pytest.approx(rate, abs=5 * error)
    assert counts.var().item() == pytest.approx(rate, abs=5 * (2 * rate**2 + rate) ** 0.5 / counts.numel() ** 0.5)
    assert torch.allclose(counts, counts.round(), atol=1e-4)


@pytest.mark.parametrize("quality", [7, 25, 50, 80, 100])
@pytest.mark.parametrize("shape", [(32, 32), (28, 28), (17, 31), (40, 9), (225, 231)])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_gives_exactly_the_pixels_of_the_codec(quality, shape, channels):
    images = photographs(231, 2)[:, : shape[0], : shape[1], :channels]
    ours = arrays(jpeg_compression(tensor(images), None, quality)) * 255
    theirs = [published.jpeg(image[..., 0] if channels == 1 else image, quality) for image in images]
    assert np.array_equal(ours.round(), np.stack(theirs).reshape(images.shape) * 255)


@pytest.mark.parametrize("settings", [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.5, 4, 2)])
def test_glass_blur_of_large_images_copies_in_the_published_order(settings):
    images, numbers = photographs(48, 2)[:, :40], recorded(2)
    ours = arrays(glass_blur(tensor(images), numbers, *settings))
    for row, image in enumerate(images):
        assert abs(ours[row] - published.glass(image, *settings, Replay(numbers, row))).max() <= STEP


def test_copies_are_those_of_a_loop_from_the_last_place_to_the_first():
    place, source = torch.arange(2, 40), torch.randint(0, 45, (7, 38))
    origin = trace_copies(place, source, 45)
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
    images, numbers = photographs(96, 2), recorded(2)
    ours = arrays(CORRUPTIONS["elastic_transform"].function(tensor(images), numbers, *shares))
    for row, image in enumerate(images):
        theirs = published.elastic(image, *(share * 96 for share in shares), Replay(numbers, row))
        assert abs(ours[row] - theirs).max() <= STEP


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
