"""Programs whose lives the tests in test_lifecycle.py follow from outside."""

from __future__ import annotations

_JOIN = """
import os, signal, sys, threading, time
import numpy as np, torch, torch.distributed as dist
import optireduce
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
CONFIG = optireduce.Config(interface="lo", linger_seconds=30.0)
def join(file, timeout=120.0):
    from datetime import timedelta
    dist.init_process_group("optireduce", init_method=f"file://{file}", rank=rank, world_size=2,
                            timeout=timedelta(seconds=timeout), pg_options=CONFIG)
rank, file = int(sys.argv[1]), sys.argv[2]
"""

# Workers are forked while the engine's threads run and operations are in flight, again in every epoch.
DATA_LOADER = (
    _JOIN
    + """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.full((4,), float(index + 100 * rank))
join(file)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
session = optireduce.attach(model, CONFIG, optimizer=optimizer)
for epoch in range(3):
    loader = torch.utils.data.DataLoader(Numbers(), 3, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
other = parameters.clone()
dist.all_reduce(other)
assert torch.allclose(other, 2 * parameters), (other, parameters)
dist.destroy_process_group()
print("end of script")
"""
)

MANY_LIVES = (
    _JOIN
    + """
def held():
    threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    with open("/proc/self/statm") as statm:
        return threads, files, int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def live(number):
    join(f"{file}-{number}")
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor)
    assert tensor[0] == 2
    dist.all_reduce(tensor, async_op=True).get_future().wait()  # which needs a thread
    assert tensor[0] == 4
    dist.destroy_process_group()
for number in range(5):
    live(number)
before = held()
for number in range(5, 25):
    live(number)
limit = time.monotonic() + 60
while (after := held())[:2] > before[:2] and time.monotonic() < limit:
    time.sleep(0.01)  # threads that have been joined stay in the list for a moment
print("before", *before)
print("after", *after)
"""
)

# One rank's own mistake: the other must hear of it, and both must end.
RAISES = (
    _JOIN
    + """
join(file)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
session = optireduce.attach(model, CONFIG)
for step in range(50):
    model(torch.ones(2, 4)).sum().backward()
    if rank == 1 and step == 5:
        raise ValueError("a mistake of rank 1")
print("all steps")
"""
)

# Rank 1 never answers; rank 0 is in the middle of an all-reduce when the signal comes.
INTERRUPTED = (
    _JOIN
    + """
def tell_when_waiting():
    "Said before the all-reduce, the signal might come before it too."
    while sys._current_frames()[threading.main_thread().ident].f_code.co_qualname != "Operation.poll":
        time.sleep(0.01)
    print("waiting", flush=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what runs in the background ignore it
join(file, timeout=300.0)
dist.all_reduce(torch.ones(10))
if rank == 0:
    threading.Thread(target=tell_when_waiting, daemon=True).start()
    dist.all_reduce(torch.ones(1000))
else:
    sys.stdin.readline()
"""
)

# Attempt 0 loses rank 1 in the middle of its steps; torchrun ends rank 0 and starts both again.
RESTARTED = """
import os, signal, sys
import torch, torch.distributed as dist
import optireduce
torch.set_num_threads(1)
config = optireduce.Config(interface="lo", linger_seconds=30.0)
dist.init_process_group("optireduce", pg_options=config)
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank()
for step in range(20):
    tensor = torch.full((5000,), float(rank + step))
    dist.all_reduce(tensor)
    assert (tensor == 1 + 2 * step).all()
    if attempt == 0 and rank == 1 and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
print(f"rank {rank} is through in attempt {attempt}", flush=True)
dist.destroy_process_group()
"""

# In a network namespace of its own: every packet on its loopback is this script's.
REPLAY = """
import socket, struct, sys
import numpy as np
import optireduce
sys.path.insert(0, sys.argv[1])
from ranks import LOOPBACK, MemoryStore, results

IP_HEADER, UDP_HEADER, ETHERNET = 20, 8, 14
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
sniffer.bind(("lo", 0))
sniffer.settimeout(0.2)
forger = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

def heard():
    "Ports and payloads of the UDP packets since the last call."
    found = []
    while True:
        try:
            frame = sniffer.recv(70_000)[ETHERNET:]
        except TimeoutError:
            return found
        if frame[9] == socket.IPPROTO_UDP:
            ports = struct.unpack("!HH", frame[IP_HEADER : IP_HEADER + 4])
            found.append((ports, frame[IP_HEADER + UDP_HEADER :]))

def forge(ports, payload):
    udp = struct.pack("!HHHH", *ports, UDP_HEADER + len(payload), 0) + payload
    local = socket.inet_aton("127.0.0.1")
    fields = (0x45, 0, IP_HEADER + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0, local, local)
    ip = struct.pack("!BBHHHBBH4s4s", *fields)
    forger.sendto(ip + udp, ("127.0.0.1", 0))

def session(store, do):
    def run(rank):
        with optireduce.Communicator(rank, 2, store, LOOPBACK) as group:
            return do(group, rank)
    return results(2, run)

def reduce(group, rank):
    array = np.full(4000, rank + 1.0, np.float32)
    group.all_reduce(array, "sum")
    assert (array == 3).all(), array
    return group.stats()

session(MemoryStore(), reduce)
old = [payload for ports, payload in heard() if len(payload) >= 56]
assert len(old) > 8, len(old)

import threading
meeting = threading.Barrier(2)
def reduce_among_echoes(group, rank):
    reduce(group, rank)
    meeting.wait(100)
    if rank == 0:
        routes = {ports for ports, payload in heard()}
        for payload in old:
            for ports in routes:
                forge(ports, payload)
        # Addressed to nobody's peer: the kernel keeps these away from connected sockets.
        for source, target in routes:
            forge((target ^ 1, target), old[0])
    meeting.wait(100)
    return len(old), reduce(group, rank)
for recorded, stats in session(MemoryStore(), reduce_among_echoes):
    print(recorded, stats["forged_packets"], stats["invalid_packets"], stats["failed_operations"])
"""
