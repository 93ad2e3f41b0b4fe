"""Train a small classifier with DDP. Read from top to bottom; run with

    torchrun --nproc-per-node 2 examples/train_ddp.py --backend optireduce
    torchrun --nproc-per-node 2 examples/train_ddp.py --backend gloo --hook

Without --hook everything goes through the chosen backend. With it, only the gradients go through optireduce,
and everything else stays with the backend you already use.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description="Train a small classifier with DDP.")
parser.add_argument("--backend", default="optireduce", help="optireduce or gloo")
parser.add_argument("--hook", action="store_true", help="send only the gradients through optireduce")
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

# 1. Join the group. torchrun has told every process its rank and where the others are. Nothing of ours is
#    imported: an installed optireduce makes itself known to torch.
torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group(args.backend)
rank = dist.get_rank()

# 2. Data: 1,797 handwritten digits of 8x8 pixels, or invented ones where scikit-learn is not installed.
try:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
except ImportError:
    centres = torch.randn(10, 64)
    labels = torch.randint(10, (1797,))
    images = centres[labels] + torch.randn(1797, 64)

train = TensorDataset(images[:1500], labels[:1500])
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
    train, seed=1
)  # a different part for each rank
loader = DataLoader(train, batch_size=32, sampler=sampler)

# 3. Model. 0.6 million parameters, so that there are gradients worth sending.
model = DDP(
    torch.nn.Sequential(
        torch.nn.Linear(64, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 10),
    )
)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# 4. Optional: keep your backend, and move only the gradients.
session = None
if args.hook:
    import optireduce

    session = optireduce.attach(model, optimizer=optimizer)

# 5. Train as always.
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        with torch.no_grad():
            accuracy = (model.module(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy on unseen images {accuracy:.3f}")

# 6. Apply the contributions that missed the deadline of their own step, and see what the transport did.
if session is not None:
    session.flush(optimizer)
    if rank == 0:
        print(f"last step: {session.last_step}")
    session.close()
dist.destroy_process_group()
