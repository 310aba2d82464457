"""Trains a small CNN on scikit-learn's scans of handwritten digits, one shard per rank.

horovodrun -np 2 python examples/torch_digits.py
python examples/torch_digits.py                    # one process, the same script
"""

from __future__ import annotations

import argparse
import time

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm


class Net(nn.Module):
    """Two convolutions and two dense layers for 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dense1 = nn.Linear(32 * 4 * 4, 64)
        self.dense2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits, shape (n, 10)."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(x.flatten(1), 0.5, self.training)
        return self.dense2(F.relu(self.dense1(x)))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Training and test images; the split is the same on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    train, test = order[360:], order[:360]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset, epochs: int, batch: int) -> float:
    """Trains on this rank's shard; the images that all ranks together saw in a second."""
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank(), seed=3
    )
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    bar = tqdm(total=epochs * len(loader), disable=hvd.rank() != 0, desc="training")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    start, seen = time.perf_counter(), 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()
            seen += len(labels)
            bar.update()
    bar.close()
    return seen * hvd.size() / (time.perf_counter() - start)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Share of test images that are right; every rank looks at its part, the counts are summed."""
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        right = (model(images[hvd.rank() :: hvd.size()]).argmax(1) == labels[hvd.rank() :: hvd.size()]).sum()
    return hvd.allreduce(right, name="right", op=hvd.Sum).item() / len(labels)


def main() -> None:
    """Parses the arguments, trains, prints accuracy and throughput on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)  # ranks share the cores
    model = Net()
    # Each step sees size() times as many images: the rate grows with it, here by the square root, which suits Adam.
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3 * hvd.size() ** 0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    training, test = load_data()
    speed = train(model, optimizer, training, arguments.epochs, arguments.batch_size)
    share = accuracy(model, test)
    if hvd.rank() == 0:
        print(f"test accuracy {share:.2%}, {speed:.0f} images/s on {hvd.size()} rank(s)")
    hvd.shutdown()


if __name__ == "__main__":
    main()
