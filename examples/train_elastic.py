"""Train a small classifier in a group whose ranks may be restarted one by one. Start it once for each rank:

    RANK=0 WORLD_SIZE=3 OPTIREDUCE_STORE=127.0.0.1:29500 python examples/train_elastic.py

Kill one of the processes and start it again with the same variables: the others train on, and the new process
takes over their training state and joins them.
"""

import argparse
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import optireduce

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that every step computes longer")
parser.add_argument("--tell", action="store_true", help="print every epoch")
args = parser.parse_args()

# 1. The group. group.local is a process group of this process alone: DDP's own collectives go nowhere.
torch.set_num_threads(1)
group = optireduce.ElasticGroup.from_env()
model = DistributedDataParallel(torch.nn.Linear(64, 10), process_group=group.local)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)

# 2. Data. The sampler is told the size and the rank: torch.distributed knows of no other rank here.
torch.manual_seed(1)
labels = torch.randint(10, (1500,))
images = torch.randn(10, 64)[labels] + torch.randn(1500, 64)
data = TensorDataset(images, labels)
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, group.size, group.rank)
loader = DataLoader(data, batch_size=32, sampler=sampler)

# 3. Meet the other ranks. They begin with the parameters of rank 0; a restarted rank gets the group's.
with optireduce.attach(model, process_group=group, optimizer=optimizer) as session:
    session.keep(scheduler)
    print(f"rank {group.rank} was restarted {session.stats()['incarnation']} time(s)")
    while session.step < args.epochs * len(loader):  # the step of the group, also after a restart
        sampler.set_epoch(session.step // len(loader))
        for images, labels in session.batches(loader):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            time.sleep(args.pause)
        if args.tell and session.step % len(loader) == 0:  # not in epochs that a snapshot jumped over
            print(f"rank {group.rank}: epoch {session.step // len(loader) - 1}, loss {loss.item():.4f}")
    session.flush(optimizer)
    total = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    print(f"rank {group.rank}: step {session.step}, the parameters add up to {total:.12f}")
