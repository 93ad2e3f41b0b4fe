"""Ranks that form a group begin with the parameters and buffers of rank 0. DDP would broadcast them, but its
process group has only this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import MismatchError
from ..exchange import Exchange, agree
from ..snapshot.state import memory_of

_BATCH_BYTES = 64 * 1024 * 1024  # copied at once
_WORD_BYTES = 4


def begin_alike(
    exchange: Exchange, model: torch.nn.Module, all_reduce: Callable[..., Any], timeout_seconds: float
) -> None:
    """MismatchError on every rank if a model has other tensors than that of rank 0."""
    tensors = _tensors(model)
    _check(
        agree(exchange, lambda: _description(tensors), timeout_seconds),
        "has other parameters or buffers than that of rank 0",
    )
    weight = int(exchange.rank == 0)
    with torch.no_grad():
        for batch in _batches(tensors):
            _send(batch, lambda words: all_reduce(words, "mean", weight=weight).wait())
    _check(
        agree(exchange, lambda: [_digest(tensors)], timeout_seconds), "could not be made equal to rank 0's"
    )


def _tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _description(tensors: list[tuple[str, torch.Tensor]]) -> list[Any]:
    text = "".join(f"{name} {list(each.shape)} {each.dtype}\n" for name, each in tensors)
    values = sum(each.numel() for _, each in tensors)
    return [len(tensors), values, hashlib.sha256(text.encode()).hexdigest()]


def _digest(tensors: list[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for _, each in tensors:
        digest.update(memory_of(_bytes_of(each)))
    return digest.hexdigest()


def _check(answers: list[list[Any]], trouble: str) -> None:
    odd = [rank for rank, answer in enumerate(answers) if answer != answers[0]]
    if odd:
        shown = [f"{each[0]} tensors with {each[1]} values" for each in answers if len(each) > 1]
        more = f" ({shown[odd[0]]} there, {shown[0]} on rank 0)" if shown else ""
        raise MismatchError(f"the model of rank {odd[0]} {trouble}{more}", odd)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _batches(tensors: list[tuple[str, torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    batch: list[torch.Tensor] = []
    size = 0
    for _, each in tensors:
        batch.append(each)
        size += each.numel() * each.element_size()
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _send(batch: list[torch.Tensor], reduce: Callable[[torch.Tensor], None]) -> None:
    """The mean of one rank's words is these words, bit by bit, whatever they stand for."""
    flat = torch.cat([_bytes_of(each) for each in batch])
    used = flat.numel()
    words = torch.zeros(-(-used // _WORD_BYTES), dtype=torch.float32)
    carried = words.view(torch.uint8)
    carried[:used] = flat
    if used:
        reduce(words)
    begin = 0
    for each in batch:
        end = begin + each.numel() * each.element_size()
        aligned = carried[begin:end].clone()
        each.copy_(aligned.view(each.dtype).reshape(each.shape))
        begin = end
