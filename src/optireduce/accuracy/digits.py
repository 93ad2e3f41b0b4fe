"""Handwritten digits, a network with one hidden layer, SGD with momentum: milliseconds a step."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from .task import Batch, Task

_PIXELS, _HIDDEN, _CLASSES = 64, 128, 10
_BRIGHTEST = 16.0
_TEST_IMAGES = 360  # of 1,797
_SPLIT_SEED = 0
_BATCH = 16  # of each rank


class Classifier(nn.Module):
    """The mean cross entropy of a batch of images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(_PIXELS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _CLASSES))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """In nats."""
        return F.cross_entropy(self.layers(images), labels)


class Accuracy(Classifier):
    """The share of the images that the same network names rightly."""

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """From 0 to 1."""
        named: torch.Tensor = self.layers(images).argmax(-1)
        return (named == labels).float().mean()


def digits() -> Task:
    """The task; the split into training and test images is the same for every seed."""
    training, test = load_images()
    return Task(
        name="digits",
        steps=600,
        learning_rate=0.05,
        model=Classifier,
        optimizer=lambda parameters: torch.optim.SGD([parameters], momentum=0.9),
        draw=lambda generator: _draw(training, generator),
        evaluation=training,
        payload_bytes=256,
        threads=1,
        score=Accuracy(),
        test=test,
    )


def load_images() -> tuple[Batch, Batch]:
    """Images to train on and images to test with, shuffled once and for all."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    pixels = (torch.from_numpy(images).float() / _BRIGHTEST)[order]
    targets = torch.from_numpy(labels).long()[order]
    return (pixels[_TEST_IMAGES:], targets[_TEST_IMAGES:]), (pixels[:_TEST_IMAGES], targets[:_TEST_IMAGES])


def _draw(training: Batch, generator: torch.Generator) -> Batch:
    images, labels = training
    chosen = torch.randint(len(labels), (_BATCH,), generator=generator)
    return images[chosen], labels[chosen]
