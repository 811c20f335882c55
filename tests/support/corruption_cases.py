"""Photographs to corrupt, and random numbers that are recorded for a batch and played again for one image."""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from pluribus.data.corruptions.filters import ExampleRng
from pluribus.data.corruptions.weather import frost_images

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


class Recorded(ExampleRng):
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
    """The numbers that one example of a batch was given, as a numpy Generator gives them."""

    def __init__(self, rng, row):
        self.left = {kind: np.concatenate([a[row] for a in drawn] or [[]]) for kind, drawn in rng.drawn.items()}

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
    return {"frost_images": frost_images(96, 3).permute(0, 2, 3, 1).double().numpy()} if name == "frost" else {}


def recorded(batch, dtype=torch.float64):
    return Recorded("key", range(batch), torch.zeros(1, dtype=dtype))
