"""What three ways to average gradients make of lost packets, when nothing is sent again.

All take ``gradients`` of shape (ranks, shards, packets, floats) with as many shards as ranks, lose every
packet on every hop with the same probability, put zeros where nothing came and divide by the number of ranks,
as the papers do. They return what every rank has in the end, in the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Topology: TypeAlias = Callable[[Floats, float, np.random.Generator], Floats]


def transpose(gradients: Floats, loss: float, rng: np.random.Generator) -> Floats:
    """TAR: rank j adds up shard j and sends it straight to all. A lost packet harms one pair, once."""
    ranks, shards, packets, _ = gradients.shape
    owner = np.arange(shards)
    sent = _arrived((ranks, shards, packets), loss, rng)
    sent[owner, owner] = 1  # one's own part does not travel
    reduced: Floats = (gradients * sent).mean(axis=0)
    returned = _arrived((ranks, shards, packets), loss, rng)
    returned[owner, owner] = 1
    return reduced * returned


def parameter_server(
    gradients: Floats, loss: float, rng: np.random.Generator, server_loss: float | None = None
) -> Floats:
    """Rank 0 adds up everything and sends it to all. ``server_loss``: on the way to the server, if its port
    loses more than others."""
    ranks, shards, packets, _ = gradients.shape
    sent = _arrived((ranks, shards, packets), loss if server_loss is None else server_loss, rng)
    sent[0] = 1
    reduced: Floats = (gradients * sent).mean(axis=0)
    returned = _arrived((ranks, shards, packets), loss, rng)
    returned[0] = 1
    return reduced * returned


def ring(gradients: Floats, loss: float, rng: np.random.Generator) -> Floats:
    """Shard s begins at rank s and goes round twice, to be summed and to be spread. A packet that is lost
    takes with it all that was summed so far; when it is being spread, all ranks further on miss it."""
    ranks, shards, packets, _ = gradients.shape
    shard = np.arange(shards)
    moving = gradients[shard, shard]
    for hop in range(1, ranks):
        moving = moving * _arrived((shards, packets), loss, rng) + gradients[(shard + hop) % ranks, shard]
    moving = moving / ranks
    results = np.empty_like(gradients)
    results[(shard - 1) % ranks, shard] = moving
    for hop in range(ranks - 1):
        moving = moving * _arrived((shards, packets), loss, rng)
        results[(shard + hop) % ranks, shard] = moving
    return results


TOPOLOGIES: Mapping[str, Topology] = {"TAR": transpose, "parameter server": parameter_server, "ring": ring}


def relative_error(results: Floats, gradients: Floats) -> float:
    """The mean squared error against the exact mean, over all ranks and entries, relative to its mean
    square: 1 is as wrong as all zeros."""
    exact = gradients.mean(axis=0)
    return float(np.mean((results - exact) ** 2) / np.mean(exact**2))


def draw_gradients(ranks: int, packets: int, floats: int, alike: bool, rng: np.random.Generator) -> Floats:
    """Normally distributed, either the same on all ranks or each on its own.

    Real ones lie between, nearer to the latter: in small models of ours the square of the mean of 8 was 0.12
    to 0.25 of the mean of their squares. Independent ones have 0.125, equal ones 1."""
    shape = (ranks, packets, floats)
    if alike:
        return np.broadcast_to(rng.standard_normal(shape), (ranks, *shape)).copy()
    return rng.standard_normal((ranks, *shape))


def _arrived(shape: tuple[int, ...], loss: float, rng: np.random.Generator) -> Floats:
    """1 for every packet that comes, 0 for every other; one axis more, for the floats in it."""
    return (rng.random(shape) >= loss).astype(np.float64)[..., None]
