"""One rank of an elastic job, as a program: tests start it, kill it, and start it again.

Orders come by standard input, one JSON object in a line: ``{"end": step}`` ends the loop before that step,
``{"end": null}`` exits without closing the session, ``{"leave": true}`` leaves between two steps. With the
option ``hold`` it does nothing before the first order, for tests in which no time may pass while a process
starts. What happens goes to standard output in the same form.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import optireduce
from optireduce.rendezvous import TcpStore, parse_address

WIDTH = 64
_lock = threading.Lock()


def tell(**facts: Any) -> None:
    with _lock:
        print(json.dumps(facts), flush=True)


class Orders:
    def __init__(self) -> None:
        self.end: float | None = float("inf")
        self.leave = False
        self.go = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            self.end = order.get("end", self.end)
            self.leave = order.get("leave", self.leave)
            self.go.set()


def module_of(seed: int) -> nn.Module:
    """Buffers of several types; no batch statistics, which belong to each rank alone."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).to(torch.float32))
    module.register_buffer("counts", torch.randint(1 << 40, (5,)))
    module.register_buffer("flags", torch.randint(2, (3,)).bool())
    module.register_buffer("odd", torch.randn(7, dtype=torch.float64))
    return module


def digest_of(*states: Any) -> str:
    digest = hashlib.sha256()
    for state in states:
        digest.update(repr(_plain(state)).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.contiguous().reshape(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def run(rank: int, size: int, store: Any, options: dict[str, Any]) -> None:
    orders = Orders()
    torch.set_num_threads(1)
    if options.get("hold"):
        tell(ready=True)
        orders.go.wait()
    if store == "env":
        group = optireduce.ElasticGroup.from_env(timeout_seconds=120.0)
        rank, size = group.rank, group.size
    else:
        timeout = options.get("timeout", 120.0)
        group = optireduce.ElasticGroup(
            rank, size, store, options.get("job", "test"), timeout_seconds=timeout
        )
    model = DistributedDataParallel(
        module_of(rank),
        process_group=group.local,
        bucket_cap_mb=0.01,
        static_graph=options.get("static_graph", False),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1_000)
    config = optireduce.Config(interface="lo", **options.get("config", {}))
    session = optireduce.attach(model, config, group, optimizer=optimizer)
    session.keep(scheduler)
    events: list[tuple[int, str]] = []
    session.on_membership(lambda event: events.append((event.rank, event.kind)))
    tell(begun=session.stats()["incarnation"], start=digest_of(model.module.state_dict()))
    while orders.end is not None and session.step < orders.end:
        if orders.leave:
            session.leave()
            tell(left=session.step)
            sys.exit(0)
        began = time.monotonic()
        time.sleep(options.get("compute", 0.01))
        torch.manual_seed(session.step * size + rank)
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        last = session.last_step
        whole = last is not None and last.step == session.step - 1
        tell(
            step=session.step,
            members=list(last.members) if last is not None and whole else [],
            seconds=time.monotonic() - began,
        )
    if orders.end is None:
        tell(left=session.step)
        sys.exit(0)
    session.flush(optimizer)
    result = {
        "step": session.step,
        "bits": digest_of(model.state_dict(), optimizer.state_dict(), scheduler.state_dict()),
        "events": events,
        "stats": {name: value for name, value in session.stats().items() if isinstance(value, int)},
    }
    session.close()
    tell(result=result)


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    try:
        store = told["store"]
        if not told.get("serves", True):
            store = TcpStore(*parse_address(store))
        run(told["rank"], told["size"], store, told["options"])
    except Exception as error:
        tell(error=type(error).__name__, text=str(error))
        raise
