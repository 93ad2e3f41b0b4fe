"""The text every Python installation has: the source of its own standard library, as bytes."""

from __future__ import annotations

import os
from pathlib import Path

import torch

# Every tenth file is held out: whole files, so that training never sees the neighbours of a held-out line.
_HELD_OUT_EVERY = 10
_MOST_BYTES = 8 << 20
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


def standard_library_files() -> list[Path]:
    """The library's source files, in the same order on every run."""
    files = []
    for folder, inner, names in os.walk(Path(os.__file__).parent):
        inner[:] = [
            name for name in inner if name not in _SKIPPED_FOLDERS
        ]  # not entered at all: site-packages is large
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def is_held_out(index: int) -> bool:
    """Whether the file at this place of the sorted list is kept from training."""
    return index % _HELD_OUT_EVERY == 0


def load_text() -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes to train on and the held-out bytes, as two flat uint8 tensors."""
    training, held_out = bytearray(), bytearray()
    for index, path in enumerate(standard_library_files()):
        (held_out if is_held_out(index) else training).extend(path.read_bytes())
        if len(training) >= _MOST_BYTES:
            break
    return torch.frombuffer(training, dtype=torch.uint8), torch.frombuffer(held_out, dtype=torch.uint8)


def sample_batch(
    text: torch.Tensor, batch: int, context: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random windows of the text, and the same windows one byte later: what the model has to predict."""
    starts = torch.randint(len(text) - context - 1, (batch,), generator=generator)
    windows = torch.stack([text[start : start + context + 1] for start in starts.tolist()]).long()
    return windows[:, :-1], windows[:, 1:]
