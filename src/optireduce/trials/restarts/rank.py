"""One rank, a process on its own host: ``python -m optireduce.trials.restarts.rank '<json of Seat>'``. It
trains in an elastic group until it is killed, or told after which step to end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from zlib import crc32

import torch
from torch.nn.parallel import DistributedDataParallel

from ... import Config, ElasticGroup, attach
from ..soak.loop import resident_bytes
from ..voice import Voice
from .plan import Seat

_TELL_SECONDS = 0.5
_LAYERS = 4
_BUCKET_MB = 0.1


def parameters_of(model: torch.nn.Module) -> int:
    """A checksum, the same on ranks with the same bits."""
    found = 0
    for parameter in model.parameters():
        found = crc32(parameter.detach().numpy().data, found)
    return found


def main() -> None:
    """Join, train, leave."""
    seat = Seat.from_json(sys.argv[1])
    voice = Voice()
    torch.set_num_threads(1)
    group = ElasticGroup(seat.rank, seat.size, seat.store, "restarts")
    side = max(8, int((seat.values / _LAYERS) ** 0.5))
    layers = torch.nn.Sequential(*(torch.nn.Linear(side, side) for _ in range(_LAYERS)))
    model = DistributedDataParallel(layers, process_group=group.local, bucket_cap_mb=_BUCKET_MB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = attach(model, Config(interface=seat.interface), group, optimizer=optimizer)
    voice.tell("ready")
    voice.tell("began", incarnation=session.stats()["incarnation"])
    told, times, checks, own = 0.0, [], [], 0
    while not _is_over(seat.end, session.step):
        began = time.monotonic()
        time.sleep(seat.step_seconds)
        torch.manual_seed(session.step * seat.size + seat.rank)
        optimizer.zero_grad()
        model(torch.randn(4, side)).square().mean().backward()
        optimizer.step()
        own += 1
        times.append(round(time.monotonic() - began, 4))
        last = session.last_step
        is_member = last is not None and last.step == session.step - 1 and seat.rank in last.members
        if last is not None and is_member:
            checks.append((last.step, parameters_of(model), list(last.members)))
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            voice.tell("progress", own=own, times=times, checks=checks, resident=resident_bytes())
            times, checks = [], []
    voice.tell("progress", own=own, times=times, checks=checks, resident=resident_bytes())
    session.close()
    voice.tell("done", step=session.step)


def _is_over(end: str, step: int) -> bool:
    path = Path(end)
    return path.exists() and step >= int(path.read_text())


if __name__ == "__main__":
    main()
