"""What the check of parameters costs a training step: the same session with and without it, in turns.

    python benchmarks/check.py [--ranks 2] [--pairs 30] [--widths 128,512,2048]

A model of four square layers trains on random numbers, with SGD, on loopback. A pair is one turn with the
check and one without, in changing order, each of several steps between two barriers; the slowest rank counts.
The table has the median ratio of all pairs (with the check over without it) with its 95 % interval
(bootstrap), the same for the CPU time of all ranks, and the speed of the hash against a copy of the same
memory.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as distributed
import torch.multiprocessing as processes

import optireduce
from optireduce import _core

_DRAWS = 2_000
_TURN_SECONDS = 0.4
_WARMUP_STEPS = 12


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--widths", default="128,512,2048", help="of the layers")
    options = parser.parse_args()
    print("| ranks | parameters | step | time, with / without | CPU, with / without | hash / copy |")
    print("|---|---|---|---|---|---|")
    for width in map(int, options.widths.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            processes.spawn(run_rank, (options.ranks, directory, width, options.pairs), options.ranks)


def run_rank(rank: int, size: int, directory: str, width: int, pairs: int) -> None:
    """One rank of one row; rank 0 prints it."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size
    )
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    model = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with optireduce.attach(model, optireduce.Config(interface="lo"), optimizer=optimizer) as session:

        def turn(steps: int, is_on: bool) -> tuple[float, float]:
            session._check._is_on = is_on
            distributed.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.randn(8, width)).square().mean().backward()
                optimizer.step()
            found = torch.tensor([(time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps])
            slowest, all_cpu = found[:1].clone(), found[1:].clone()
            distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
            distributed.all_reduce(all_cpu)
            return float(slowest), float(all_cpu)

        seconds, _ = turn(_WARMUP_STEPS, True)
        seconds, _ = turn(_WARMUP_STEPS, True)
        steps = max(3, int(_TURN_SECONDS / seconds))
        rounds: list[dict[bool, tuple[float, float]]] = []
        for pair in range(pairs):
            rounds.append({is_on: turn(steps, is_on) for is_on in ((True, False), (False, True))[pair % 2]})
        assert session.stats()["parameter_checks"] > 0
        assert session.stats()["parameter_differences"] == 0
    if rank == 0:
        count = sum(parameter.numel() for parameter in module.parameters())
        usual = median(each[False][0] for each in rounds) * 1e3
        time_ratio, cpu_ratio = (
            interval([each[True][which] / each[False][which] for each in rounds]) for which in (0, 1)
        )
        print(
            f"| {size} | {count:,} | {usual:.1f} ms | {time_ratio} | {cpu_ratio} | {hash_speed(count):.2f} |"
        )
    distributed.destroy_process_group()


def interval(ratios: list[float]) -> str:
    """The median, and where it lies in 95 % of draws."""
    draws = sorted(median(random.choices(ratios, k=len(ratios))) for _ in range(_DRAWS))
    return f"{median(ratios):.3f} ({draws[_DRAWS // 40]:.3f} to {draws[-_DRAWS // 40]:.3f})"


def hash_speed(count: int) -> float:
    """Of a model's parameters, against copying them."""
    values, room = torch.ones(count), torch.empty(count)
    piece = [(values.data_ptr(), values.nbytes)]

    def best(work: Any) -> float:
        took = []
        for _ in range(9):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        return median(took)

    return best(lambda: room.copy_(values)) / best(lambda: _core.fingerprint(piece))


if __name__ == "__main__":
    main()
