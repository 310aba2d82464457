"""Trains a small convolutional network on scikit-learn's handwritten digits, one shard of the data per rank.

python examples/torch_digits.py
horovodrun -np 2 python examples/torch_digits.py
"""

from __future__ import annotations

import argparse
import os
import time

import horovod.torch as hvd
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from tqdm import tqdm

Arrays = tuple[torch.Tensor, torch.Tensor]


def load_data(seed: int) -> tuple[Arrays, Arrays]:
    """Training and test images with their labels, the same split on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    held_out, rest = order[:360], order[360:]
    return (images[rest], labels[rest]), (images[held_out], labels[held_out])


def make_model() -> nn.Module:
    """Two convolutions and two dense layers, about 80,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Arrays, batch: int, seed: int, bar: tqdm[None]
) -> None:
    """One pass over this rank's shard: every rank takes as many steps."""
    images, labels = data
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    steps = len(labels) // (batch * hvd.size())
    model.train()
    for step in range(steps):
        mine = order[(step * hvd.size() + hvd.rank()) * batch :][:batch]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        bar.update(batch * hvd.size())
    bar.set_postfix(loss=f"{loss.item():.3f}")


def test_accuracy(model: nn.Module, data: Arrays) -> float:
    """Each rank tests its share of the held-out images; sums over ranks make the accuracy exact."""
    images, labels = (part[hvd.rank() :: hvd.size()] for part in data)
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    totals = hvd.allreduce(torch.tensor([float(right), float(len(labels))]), name="accuracy", op=hvd.Sum)
    return float(totals[0] / totals[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64, help="images per step, all ranks together")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    hvd.init()
    # Ranks share the cores of their host.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.manual_seed(args.seed + hvd.rank())
    training, held_out = load_data(args.seed)

    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    batch = max(1, args.batch // hvd.size())
    seen = args.epochs * (len(training[1]) // (batch * hvd.size())) * batch * hvd.size()
    started = time.perf_counter()
    with tqdm(total=seen, unit=" images", disable=hvd.rank() != 0) as bar:
        for epoch in range(args.epochs):
            train_epoch(model, optimizer, training, batch, args.seed + epoch, bar)
    seconds = time.perf_counter() - started

    accuracy = test_accuracy(model, held_out)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: test accuracy {accuracy:.2%}, {seen / seconds:,.0f} images/s")
    hvd.shutdown()


if __name__ == "__main__":
    main()
