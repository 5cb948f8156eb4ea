"""ResNet-18 with the ImageNet stem (He et al., 2016), under torchvision's parameter names so that its weights load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

from ffalm.errors import require
from ffalm.settings import typed


@typed
@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 with the ImageNet stem, randomly initialised.

    The head "fairalm" is the pooling of the paper's released code: it averages windows of 7 with padding 2 and flattens
    what is left. On the 4x4 map of a 128 px image this replicates the global mean, scaled by 16/49, four times; it is
    offered for comparison only.
    """

    name: ClassVar[str] = "resnet18"

    head: Literal["pooled", "fairalm"] = field(
        default="pooled", metadata={"about": "Pooling before the last layer: global, or that of the paper's code."}
    )

    def build(self, shape: tuple[int, ...], labels: int) -> nn.Module:
        """The network for images of shape (channels, height, width)."""
        require(len(shape) == 3, f"The model 'resnet18' takes images of shape (channels, height, width); got {shape}.")
        require(min(shape[1:]) >= 32, f"The model 'resnet18' needs images of 32 px or more; got {shape[1]}x{shape[2]}.")
        windows = 1
        if self.head == "fairalm":
            sides = [-(-side // 32) + 4 - 7 + 1 for side in shape[1:]]
            require(min(sides) >= 1, f"The head 'fairalm' needs images of at least 65 px; got {shape[1]}x{shape[2]}.")
            windows = sides[0] * sides[1]
        return _ResNet(shape[0], labels, windows, self.head)


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(x)) + shortcut)


class _ResNet(nn.Module):
    """Stem, four stages of two blocks, pooling and a linear layer."""

    def __init__(self, channels: int, labels: int, windows: int, head: str) -> None:
        super().__init__()
        self.head = head
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(_BasicBlock(64, 64, 1), _BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(_BasicBlock(64, 128, 2), _BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(_BasicBlock(128, 256, 2), _BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(_BasicBlock(256, 512, 2), _BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512 * windows, labels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # Normal(0, sqrt(2 / (k * k * out_channels)))
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = x.mean((-2, -1)) if self.head == "pooled" else avg_pool2d(x, 7, stride=1, padding=2)
        return cast(Tensor, self.fc(torch.flatten(x, 1)))
