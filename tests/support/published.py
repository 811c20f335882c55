"""The corruptions of Hendrycks and Dietterich (2019) one image at a time, in numpy, scipy and Pillow.

An independent implementation of what `pluribus.data.corruptions` does to batches: the published definitions with the
published constants of CIFAR-10-C. An image is (height, width, 3) uint8; the result is float, from 0 to 1, before it is
cut to 8 bits. `rng` is a numpy Generator, or gives numbers that were recorded.
"""

import io
import math

import numpy as np
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage


def corrupt(image, name, severity, rng, **others):
    return np.clip(globals()[name](image, severity, rng, **others), 0, 1)


def gaussian_noise(image, severity, rng):
    scale = [0.04, 0.06, 0.08, 0.09, 0.10][severity - 1]
    return image / 255 + rng.normal(0, scale, image.shape)


def shot_noise(image, severity, rng):
    photons = [500, 250, 100, 75, 50][severity - 1]
    return rng.poisson(image / 255 * photons) / photons


def impulse_noise(image, severity, rng):
    amount = [0.01, 0.02, 0.03, 0.05, 0.07][severity - 1]
    noisy = image / 255
    flipped, salted = rng.random(image.shape) <= amount, rng.random(image.shape) <= 0.5
    noisy[flipped & salted] = 1
    noisy[flipped & ~salted] = 0
    return noisy


def speckle_noise(image, severity, rng):
    scale = [0.06, 0.1, 0.12, 0.16, 0.2][severity - 1]
    x = image / 255
    return x + x * rng.normal(0, scale, x.shape)


def gaussian(x, sigma):
    return ndimage.gaussian_filter(x, (sigma, sigma, 0)[: x.ndim], mode="nearest", truncate=4)


def gaussian_blur(image, severity, rng):
    return gaussian(image / 255, [0.4, 0.6, 0.7, 0.8, 1][severity - 1])


def glass_blur(image, severity, rng):
    sigma, delta, times = [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)][severity - 1]
    return glass(image, sigma, delta, times, rng)


def glass(image, sigma, delta, times, rng):
    height, width = image.shape[:2]
    x = np.uint8(gaussian(image / 255, sigma) * 255 + 1e-6)
    for _ in range(times):
        # The published loop draws for each pixel; at once is the same and kinder to what it is timed against.
        dx, dy = rng.integers(-delta, delta, size=(2, height - 2 * delta, width - 2 * delta))
        for h in range(height - delta, delta, -1):
            for w in range(width - delta, delta, -1):
                down, right = h + dy[h - delta - 1, w - delta - 1], w + dx[h - delta - 1, w - delta - 1]
                x[h, w], x[down, right] = x[down, right], x[h, w]  # two views: the first becomes the second
    return gaussian(x / 255, sigma)


def disk(radius, softness):
    reach, soft = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    at = np.arange(-reach, reach + 1)
    kernel = (at**2 + at[:, None] ** 2 <= radius**2).astype(float)
    window = np.exp(-(np.arange(-soft, soft + 1) ** 2) / (2 * softness**2))
    window /= window.sum()
    kernel = ndimage.correlate1d(kernel / kernel.sum(), window, axis=0, mode="mirror")
    return ndimage.correlate1d(kernel, window, axis=1, mode="mirror")


def defocus_blur(image, severity, rng):
    return defocus(image, *[(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][severity - 1])


def defocus(image, radius, softness):
    return ndimage.correlate(image / 255, disk(radius, softness)[:, :, None], mode="mirror")


def motion(x, radius, sigma, degrees):
    """ImageMagick's: pixel (row, column) is a weighted sum along a line that starts there, edges repeated."""
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
    weights /= weights.sum()
    point = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    height, width = x.shape[:2]
    reach = len(steps)
    padded = np.pad(x, [(reach, reach), (reach, reach), (0, 0)][: x.ndim], mode="edge")
    blurred = np.zeros_like(x)
    for step, weight in zip(steps, weights, strict=True):
        top, left = (reach + math.ceil(step * part - 0.5) for part in point)
        blurred += weight * padded[top : top + height, left : left + width]
    return blurred


def motion_blur(image, severity, rng):
    radius, sigma = [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)][severity - 1]
    return motion(image / 255, radius, sigma, rng.uniform(-45, 45))


def clipped_zoom(x, factor):
    size = x.shape[0]
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    large = ndimage.zoom(x[top : top + crop, top : top + crop], (factor, factor, 1)[: x.ndim], order=1)
    top = (large.shape[0] - size) // 2
    return large[top : top + size, top : top + size]


def zoom_blur(image, severity, rng):
    factors = np.arange(1, [1.06, 1.11, 1.16, 1.21, 1.26][severity - 1], 0.01)
    x = image / 255
    return (x + sum(clipped_zoom(x, factor) for factor in factors)) / (len(factors) + 1)


def plasma(size, decay, rng):
    cloud, wibble, step = np.zeros((size, size)), 100, size

    def wibbled(total):
        return total / 4 + wibble * rng.uniform(-wibble, wibble, total.shape)

    while step >= 2:
        half = step // 2
        corner = cloud[::step, ::step]
        total = corner + np.roll(corner, -1, 0)
        cloud[half::step, half::step] = wibbled(total + np.roll(total, -1, 1))
        middle = cloud[half::step, half::step]
        cloud[::step, half::step] = wibbled(middle + np.roll(middle, 1, 0) + corner + np.roll(corner, -1, 1))
        cloud[half::step, ::step] = wibbled(middle + np.roll(middle, 1, 1) + corner + np.roll(corner, -1, 0))
        step, wibble = half, wibble / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def fog(image, severity, rng):
    amount, decay = [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)][severity - 1]
    x, size = image / 255, image.shape[0]
    return (x + amount * plasma(32, decay, rng)[:size, :size, None]) * x.max() / (x.max() + amount)


def frost(image, severity, rng, frost_images):
    """Where the published script has photographs it takes `frost_images`, (5, side, side, 3)."""
    own, ice = [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)][severity - 1]
    frozen = frost_images[rng.integers(0, len(frost_images))]
    height, width = image.shape[:2]
    top, left = rng.integers(0, len(frozen) - height), rng.integers(0, frozen.shape[1] - width)
    return own * image / 255 + ice * frozen[top : top + height, left : left + width]


def snow(image, severity, rng):
    mean, scale, zoom, least, radius, sigma, keep = [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ][severity - 1]
    x = image / 255
    layer = clipped_zoom(rng.normal(mean, scale, x.shape[:2]), zoom)
    layer[layer < least] = 0
    layer = motion(np.floor(np.clip(layer, 0, 1) * 255) / 255, radius, sigma, rng.uniform(-135, -45))[..., None]
    x = keep * x + (1 - keep) * np.maximum(x, (x @ [0.299, 0.587, 0.114])[..., None] * 1.5 + 0.5)
    return x + layer + np.rot90(layer, 2)


def spatter(image, severity, rng):
    mean, scale, sigma, least, amount, mud = [
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ][severity - 1]
    x = image / 255
    liquid = gaussian(rng.normal(mean, scale, x.shape[:2]), sigma)
    liquid[liquid < least] = 0
    if mud:
        cover = gaussian((liquid > least).astype(float), amount)[..., None]
        cover[cover < 0.8] = 0
        return x * (1 - cover) + cover * np.array([63, 42, 20]) / 255
    drops = (np.clip(liquid, 0, 1) * 255).astype(np.uint8)
    shine = drops * emboss(drops)
    return x + amount * (shine / max(shine.max(), 1e-12))[..., None] * np.array([175, 238, 238]) / 255


def emboss(drops):
    found = canny(drops.astype(float), 50, 150)
    far = np.full(drops.shape, 20.0)
    distance = np.minimum(ndimage.distance_transform_edt(~found), 20) if found.any() else far
    distance = equalise(np.floor(ndimage.uniform_filter(distance, 3, mode="mirror") + 1e-9).astype(int))
    kernel = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
    light = np.clip(ndimage.correlate(distance.astype(float), kernel, mode="mirror"), 0, 255)
    return np.round(ndimage.uniform_filter(light, 3, mode="mirror"))


def canny(x, low, high):
    """OpenCV's with the sum of the two gradients: thinned in four directions, kept where joined to a strong one."""
    right, down = ndimage.sobel(x, 1, mode="nearest"), ndimage.sobel(x, 0, mode="nearest")
    size = abs(right) + abs(down)
    around = np.pad(size, 1)
    angle = np.degrees(np.arctan2(abs(down), abs(right)))
    ridge = np.zeros(x.shape, bool)
    for row, column in np.argwhere(size > low):
        if angle[row, column] < 22.5:
            ahead, behind, strict = (0, 1), (0, -1), False
        elif angle[row, column] > 67.5:
            ahead, behind, strict = (1, 0), (-1, 0), False
        else:
            sign = -1 if right[row, column] * down[row, column] < 0 else 1
            ahead, behind, strict = (1, sign), (-1, -sign), True
        own = size[row, column]
        after = around[row + 1 + ahead[0], column + 1 + ahead[1]]
        before = around[row + 1 + behind[0], column + 1 + behind[1]]
        ridge[row, column] = own > before and (own > after if strict else own >= after)
    groups, _ = ndimage.label(ridge, np.ones((3, 3)))
    return ridge & np.isin(groups, np.unique(groups[ridge & (size > high)]))


def equalise(x):
    counts = np.bincount(x.ravel(), minlength=256)
    first = counts[x.min()]
    if first == x.size:
        return x
    return np.round((np.cumsum(counts) - first) * (255 / (x.size - first)))[x]


def contrast(image, severity, rng):
    factor = [0.75, 0.5, 0.4, 0.3, 0.15][severity - 1]
    x = image / 255
    means = x.mean((0, 1), keepdims=True)
    return (x - means) * factor + means


def brightness(image, severity, rng):
    hsv = rgb_to_hsv(image / 255)
    hsv[..., 2] = np.clip(hsv[..., 2] + [0.05, 0.1, 0.15, 0.2, 0.3][severity - 1], 0, 1)
    return hsv_to_rgb(hsv)


def saturate(image, severity, rng):
    factor, more = [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)][severity - 1]
    hsv = rgb_to_hsv(image / 255)
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + more, 0, 1)
    return hsv_to_rgb(hsv)


def jpeg_compression(image, severity, rng):
    return jpeg(image, [80, 65, 58, 50, 40][severity - 1])


def jpeg(image, quality):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file)) / 255


def pixelate(image, severity, rng):
    share = [0.95, 0.9, 0.85, 0.75, 0.65][severity - 1]
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX)) / 255


def elastic_transform(image, severity, rng):
    size = image.shape[0]
    amount, sigma, shift = [
        (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ][severity - 1]  # fmt: skip
    return elastic(image, amount * size, sigma * size, shift * size, rng)


def elastic(image, amount, sigma, shift, rng):
    x, (height, width) = image / 255, image.shape[:2]
    third = min(height, width) // 3
    before = np.array([[1, 1], [1, -1], [-1, -1]]) * third + np.array([width // 2, height // 2])
    after = before + rng.uniform(-shift, shift, before.shape)
    back = np.linalg.solve(np.c_[after, np.ones(3)], before)  # from a pixel of the result to one of the image
    down, right = np.mgrid[:height, :width].astype(float)
    source = np.stack([right, down, np.ones_like(down)], -1) @ back
    x = sample_at(x, source[..., 1], source[..., 0], "mirror")
    fields = [
        ndimage.gaussian_filter(rng.uniform(-1, 1, (height, width)), sigma, mode="reflect", truncate=3) * amount
        for _ in range(2)
    ]
    return sample_at(x, down + fields[1], right + fields[0], "reflect")


def sample_at(x, down, right, border):
    channels = [
        ndimage.map_coordinates(channel, [down, right], order=1, mode=border) for channel in np.moveaxis(x, 2, 0)
    ]
    return np.stack(channels, -1)
