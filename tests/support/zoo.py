"""Models that nobody wrote for Pluribus: what any method must work on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from small import Encoder
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A model, an example of two rows, and a pattern for the end of the model."""

    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    branch: str


def images(size: int) -> Callable[[], Tensor]:
    """Two colour images."""
    return lambda: torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def tokens() -> Tensor:
    """Two sentences of seven words."""
    return torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(1))


def timm_model(name: str) -> Callable[[], nn.Module]:
    """A timm model without pretrained weights and without blocks that only repeat others."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return copy.deepcopy(_remembered(name))

    return build


@lru_cache(maxsize=1)  # of the model whose turn it is
def _remembered(name: str) -> nn.Module:
    import timm

    return shorten_(timm.create_model(name, pretrained=False, num_classes=CLASSES, **SMALLER.get(name, {})))


def shorten_(model: nn.Module) -> nn.Module:
    """Take out each block that follows two of its class, the second of which has its shapes: it brings no new code."""
    for row in model.modules():
        if isinstance(row, nn.Sequential) or type(row).__name__ == "RegStage":
            _shorten_row_(row)
    return model


def _shorten_row_(row: nn.Module) -> None:
    kept: list[nn.Module] = []
    for name, block in list(row.named_children()):
        shapes = [tensor.shape for tensor in block.state_dict().values()]
        alike = len(kept) > 1 and type(kept[-2]) is type(kept[-1]) is type(block)
        if alike and shapes and shapes == [tensor.shape for tensor in kept[-1].state_dict().values()]:
            delattr(row, name)
        else:
            kept.append(block)


TIMM = {  # name: (image size, branch)
    "resnet18": (64, "layer4|fc"),
    "resnet50": (64, "layer4|fc"),
    "wide_resnet50_2": (64, "layer4|fc"),
    "resnext50_32x4d": (64, "layer4|fc"),
    "seresnet18": (64, "layer4|fc"),
    "densenet121": (64, "features.denseblock4|features.norm5|classifier"),
    "vgg11_bn": (64, "head|pre_logits"),
    "mobilenetv2_100": (64, "conv_head|bn2|classifier"),
    "mobilenetv3_small_100": (64, "conv_head|classifier"),
    "efficientnet_b0": (64, "conv_head|bn2|classifier"),
    "regnetx_002": (64, "s4|final_conv|head"),
    "regnety_002": (64, "s4|final_conv|head"),
    "convnext_atto": (64, "stages.3|head"),
    "resnetv2_50": (64, "stages.3|norm|head"),
    "res2net50_26w_4s": (64, "layer4|fc"),
    "dla34": (64, "level5|fc"),
    "hrnet_w18_small": (64, "final_layer|classifier"),
    "ghostnet_100": (64, "conv_head|classifier"),
    "inception_v3": (128, "Mixed_7c|fc"),
    "xception41": (96, "blocks.11|head"),
    "repvgg_a0": (64, "stages.3|head"),
    "cspresnet50": (64, "stages.3|head"),
    "darknet53": (64, "stages.4|head"),
    "poolformer_s12": (64, "stages.3|head"),
    "vit_tiny_patch16_224": (224, "blocks.1|norm|head"),
    "deit_tiny_patch16_224": (224, "blocks.1|norm|head"),
    "mixer_s32_224": (224, "blocks.1|norm|head"),
    "swin_tiny_patch4_window7_224": (112, "layers.3|norm|head"),
    "pit_ti_224": (224, "transformers.2|norm|head"),
    "levit_128s": (224, "head|head_dist"),
}

SMALLER: dict[str, dict[str, Any]] = {  # options for fewer blocks, narrower layers
    "wide_resnet50_2": {"channels": (32, 64, 128, 256)},
    "densenet121": {"block_config": (3, 3, 3, 3)},
    "vgg11_bn": {"mlp_ratio": 1 / 16},
    "swin_tiny_patch4_window7_224": {"img_size": 112, "embed_dim": 48},
}


def bert() -> nn.Module:
    """A small BERT classifier."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=CLASSES,
    )
    return BertForSequenceClassification(config)


class Recurrent(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Class scores from the last state."""
        return self.head(self.lstm(self.embedding(words))[0][:, -1])


class UNet(nn.Module):
    """Down and up again, with concatenations; one class score per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True))
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, (batch, classes, height, width)."""
        high = self.enter(x)
        return self.head(self.merge(torch.cat([high, self.up(self.down(high))], 1)))


class Tied(nn.Module):
    """A language model whose output layer is its embedding, with two more layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
        self.two.weight = self.one.weight
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the next word."""
        x = self.embedding(words).mean(1)
        return self.head(self.norm(x + self.two(torch.relu(self.one(x)))))


ZOO: dict[str, Case] = {
    **{name: Case(timm_model(name), images(size), branch) for name, (size, branch) in TIMM.items()},
    "bert": Case(
        bert, lambda: {"input_ids": tokens(), "attention_mask": torch.ones(2, 7, dtype=torch.long)}, "classifier"
    ),
    "lstm": Case(Recurrent, tokens, "head"),
    "transformer_encoder": Case(
        lambda: Encoder(2, CLASSES), lambda: torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1)), "head"
    ),
    "unet": Case(UNet, images(16), "head"),
    "tied": Case(Tied, tokens, "two|norm"),
}
