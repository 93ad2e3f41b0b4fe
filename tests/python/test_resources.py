"""What a group costs beyond its callers' buffers, and while nobody uses it.

In a process of its own: the peak of this one's memory tells of other tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, threading, time
import numpy as np
import optireduce
sys.path.insert(0, sys.argv[1])
from ranks import LOOPBACK, MemoryStore, results

def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

store, groups = MemoryStore(), [None, None]
def join(rank):
    groups[rank] = optireduce.Communicator(rank, 2, store, LOOPBACK)
results(2, join)
arrays = [np.full(MIB << 18, 1.0, np.float32) for _ in groups]
before = peak_bytes()
extra = []
for _ in range(6):
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # the peak from now on
    # A rank that begins late keeps what has come for it, so that they begin together.
    for handle in [group.all_reduce_async(array, "mean") for group, array in zip(groups, arrays)]:
        handle.wait()
    extra.append(peak_bytes() - before)

def idle_share():
    busy, began = time.process_time(), time.monotonic()
    threading.Event().wait(1.0)
    return (time.process_time() - busy) / (time.monotonic() - began)

shares = [idle_share()]
while shares[-1] >= 0.25 and len(shares) < 10:
    shares.append(idle_share())  # until the ranks have told each other that they are through
print(min(extra), shares[-1])
"""
MIB = 64


def test_little_memory_beyond_the_buffers_and_no_spinning_when_idle() -> None:
    output = subprocess.run(
        [sys.executable, "-c", f"MIB = {MIB}\n{SCRIPT}", str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    extra_bytes, busy_share = map(float, output.split())
    # Far below what is promised (1.5 times the bytes in flight and 64 MiB): a copy of a shard would show.
    assert extra_bytes < (MIB << 20) / 4
    assert busy_share < 0.25  # one spinning thread: 1.0


HOLDS = """
import os, sys, time
import numpy  # has threads of its own
import optireduce
sys.path.insert(0, sys.argv[1])
from ranks import LOOPBACK, MemoryStore, results

def held():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

before, store, groups = held(), MemoryStore(), [None] * RANKS
def join(rank):
    groups[rank] = optireduce.Communicator(rank, RANKS, store, LOOPBACK)
results(RANKS, join)
limit = time.monotonic() + 60
while held()[0] - before[0] > RANKS and time.monotonic() < limit:
    time.sleep(0.01)  # a thread that has been joined stays in the list for a moment
print(*(now - then for now, then in zip(held(), before)))
"""


def test_a_rank_has_one_thread_and_a_socket_for_each_peer() -> None:
    ranks = 4
    output = subprocess.run(
        [sys.executable, "-c", f"RANKS = {ranks}\n{HOLDS}", str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    threads, files = map(int, output.split())
    waiting = 2  # what a rank waits with: an epoll and an eventfd
    assert threads == ranks
    assert files == ranks * (ranks - 1 + waiting)
