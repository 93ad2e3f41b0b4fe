"""Two builds of optireduce against each other, in turns, in one run.

    python benchmarks/builds.py OLD_PYTHON NEW_PYTHON [--ranks 2,4,8] [--sizes 64K,1M,25M,100M] [--pairs 30]

The first two arguments are the interpreters of two environments with one build each. What is timed is
`torch.distributed.all_reduce` of float32 zeros after a barrier, as in `optireduce bench`. For each number of
ranks, both builds start their ranks once: on loopback, or with --rate on the hosts of a lab whose links have
that rate. Then they take turns. A pair is one turn of each build, in changing order, while the ranks of the
other build wait. The ratio of a pair is new over old. The table has the median ratio of all pairs with its
95 % interval (bootstrap), and the same for the CPU time of all ranks, given for each GB that an all-reduce
moves (2(N-1)S bytes).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import torch.distributed as distributed

from optireduce.lab import Lab

_DRAWS = 2_000
_TURN_BYTES = 256 * 2**20  # of one rank's tensor, at most, in one turn
_MOST_OPERATIONS = 50


def operations_for(size: int) -> int:
    """Timed operations of one turn."""
    return max(3, min(_MOST_OPERATIONS, _TURN_BYTES // size))


def main() -> None:
    """Print one table."""
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        run_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="interpreter of the build before")
    parser.add_argument("new", help="interpreter of the build after")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="64K,1M,25M,100M")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--rate", help="on hosts of a lab with links of this rate, e.g. 200mbit")
    options = parser.parse_args()
    print(f"{'ranks':>5} {'size':>6} {'old ms':>9} {'new ms':>9} {'new/old':>8} {'95 % interval':>16}"
          f" {'old CPU s/GB':>13} {'new CPU s/GB':>13} {'new/old':>8} {'95 % interval':>16}")  # fmt: skip
    for ranks in map(int, options.ranks.split(",")):
        with Lab(hosts=ranks, rate=options.rate) if options.rate else nullcontext() as lab:
            builds = [Build(python, ranks, lab) for python in (options.old, options.new)]
            for size in options.sizes.split(","):
                print_row(ranks, size, compare(builds, bytes_of(size), options.pairs))
            for build in builds:
                build.close()


def compare(builds: list[Build], size: int, pairs: int) -> list[list[dict[str, float]]]:
    """The turns of each build."""
    turns: list[list[dict[str, float]]] = [[], []]
    for build in builds:
        build.turn(size)  # not counted: memory, windows
    for pair in range(pairs):
        for index in (0, 1) if pair % 2 == 0 else (1, 0):
            turns[index].append(builds[index].turn(size))
        print(f"\r{pair + 1}/{pairs} pairs", end="\r", file=sys.stderr, flush=True)
    return turns


def print_row(ranks: int, size: str, turns: list[list[dict[str, float]]]) -> None:
    """Medians of the turns, and of the ratios of pairs."""
    gigabytes = 2 * (ranks - 1) * bytes_of(size) * operations_for(bytes_of(size)) / 1e9
    times = [[turn["seconds"] * 1e3 for turn in each] for each in turns]
    cpu = [[turn["cpu"] / gigabytes for turn in each] for each in turns]
    print(f"{ranks:>5} {size:>6} {median(times[0]):>9.3f} {median(times[1]):>9.3f} {ratio_of(*times)}"
          f" {median(cpu[0]):>13.3f} {median(cpu[1]):>13.3f} {ratio_of(*cpu)}", flush=True)  # fmt: skip


def ratio_of(old: list[float], new: list[float]) -> str:
    """The median ratio of the pairs, and its interval."""
    ratios = [after / before for before, after in zip(old, new, strict=True)]
    draws = random.Random(1)
    medians = sorted(median(draws.choices(ratios, k=len(ratios))) for _ in range(_DRAWS))
    low, high = medians[int(0.025 * _DRAWS)], medians[int(0.975 * _DRAWS)]
    return f"{median(ratios):>8.3f} {f'{low:.3f} to {high:.3f}':>16}"


def bytes_of(size: str) -> int:
    """64K, 1M."""
    return int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]]


class Build:
    """All ranks of one build."""

    def __init__(self, python: str, ranks: int, lab: Lab | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        store = f"{lab.addresses[0] if lab else '127.0.0.1'}:{port}"
        variables = os.environ | {"GLOO_SOCKET_IFNAME": lab.interface if lab else "lo"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        pipes["env"] = variables
        self._ranks = []
        for rank in range(ranks):
            command = [python, __file__, "--rank", str(rank), str(ranks), store]
            started = lab.popen(rank, command, **pipes) if lab else subprocess.Popen(command, **pipes)
            self._ranks.append(started)
        for each in self._ranks:
            self._read(each)

    def turn(self, size: int) -> dict[str, float]:
        """The slowest rank's median time, and the CPU time of all."""
        for rank in self._ranks:
            assert rank.stdin is not None
            print(size, file=rank.stdin, flush=True)
        told = [self._read(rank) for rank in self._ranks]
        return {"seconds": max(each["seconds"] for each in told), "cpu": sum(each["cpu"] for each in told)}

    def close(self) -> None:
        """End the ranks."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self._ranks:
            rank.wait(60)

    @staticmethod
    def _read(rank: subprocess.Popen[str]) -> dict[str, Any]:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise SystemExit(f"a rank ended with code {rank.wait()}")
        return dict(json.loads(line))


def run_rank(rank: int, ranks: int, store: str) -> None:
    """Make the operations of a turn whenever a size is read."""
    torch.set_num_threads(1)
    distributed.init_process_group("optireduce", init_method=f"tcp://{store}", rank=rank, world_size=ranks)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        tensor = torch.zeros(int(line) // 4)
        before, times = cpu_seconds(), []
        for _ in range(operations_for(int(line))):
            distributed.barrier()
            began = time.perf_counter()
            distributed.all_reduce(tensor)
            times.append(time.perf_counter() - began)
        print(json.dumps({"seconds": median(times), "cpu": cpu_seconds() - before}), flush=True)
    distributed.destroy_process_group()


def cpu_seconds() -> float:
    """Of this process and its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
