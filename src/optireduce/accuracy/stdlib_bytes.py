"""The next byte of Python's own source, a small transformer, Adam: the gradients of a language model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

from ..trials.training.data import sample_batch
from ..trials.training.model import VOCABULARY, Block, ModelConfig
from .task import Batch, Task

# Modules that every supported Python has. Whole modules are held out: training never sees their neighbours.
TRAINING_MODULES = (
    "_pydecimal", "_pyio", "argparse", "ast", "bdb", "codecs", "configparser", "contextlib", "dataclasses",
    "datetime", "difflib", "dis", "doctest", "enum", "fractions", "ftplib", "functools", "imaplib", "inspect",
    "ipaddress", "locale", "mailbox", "optparse", "os", "pdb", "pickle", "pickletools", "platform",
    "plistlib", "pstats", "pydoc", "random", "shutil", "smtplib", "socket", "socketserver", "ssl",
    "statistics", "subprocess", "tarfile", "tempfile", "threading", "trace", "traceback", "turtle", "typing",
    "uuid",
)  # fmt: skip
HELD_OUT_MODULES = ("calendar", "csv", "gettext", "heapq", "pprint", "textwrap", "tokenize", "weakref")

_MODEL = ModelConfig(layers=2, heads=4, width=64, context=64)
_BATCH = 2  # windows of each rank
_HELD_OUT_WINDOWS = 128
_HELD_OUT_SEED = 0


class Predictor(nn.Module):
    """The mean cross entropy of the next bytes. The demo's blocks, as torch initialises them."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, _MODEL.width)
        self.position = nn.Embedding(_MODEL.context, _MODEL.width)
        self.blocks = nn.Sequential(*(Block(_MODEL) for _ in range(_MODEL.layers)))
        self.norm = nn.LayerNorm(_MODEL.width)
        self.head = nn.Linear(_MODEL.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """In nats a byte."""
        x = self.blocks(self.token(tokens) + self.position.weight)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def stdlib_bytes() -> Task:
    """The task; the held-out windows are the same for every seed."""
    training, held_out = read_modules(TRAINING_MODULES), read_modules(HELD_OUT_MODULES)
    windows = _windows(held_out, _HELD_OUT_WINDOWS, torch.Generator().manual_seed(_HELD_OUT_SEED))
    return Task(
        name="bytes",
        steps=400,
        learning_rate=2.5e-3,
        model=Predictor,
        optimizer=lambda parameters: torch.optim.Adam([parameters]),
        draw=lambda generator: _windows(training, _BATCH, generator),
        evaluation=windows,
        payload_bytes=1344,
        threads=2,
    )


def read_modules(names: Iterable[str]) -> torch.Tensor:
    """The source of modules of the running interpreter, one after the other, as a flat uint8 tensor."""
    library = Path(os.__file__).parent
    return torch.frombuffer(bytearray().join(_source(library, name) for name in names), dtype=torch.uint8)


def _source(library: Path, name: str) -> bytes:
    return (library / f"{name}.py").read_bytes()


def _windows(text: torch.Tensor, count: int, generator: torch.Generator) -> Batch:
    return sample_batch(text, count, _MODEL.context, generator)
