"""Trains a small transformer on Python's own documentation, byte by byte; total batch and result don't depend on the ranks.

horovodrun -np 2 python examples/torch_text.py --checkpoint text.pt
python examples/torch_text.py                                          # one process, the same script

With --checkpoint, training goes on from the file where there is one, also with another number of ranks; rank 0 writes it
after each epoch.  It holds nothing but torch's own types.
"""

from __future__ import annotations

import argparse
import math
import os
import pydoc_data.topics
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

BYTES = 256


class Text(Dataset[torch.Tensor]):
    """Pieces of ``length`` bytes and the one that follows, as integers (length + 1,)."""

    def __init__(self, text: bytes, length: int) -> None:
        self.values = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64)
        self.length = length

    def __len__(self) -> int:
        return (len(self.values) - 1) // self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self.length
        return self.values[start : start + self.length + 1]


class Transformer(nn.Module):
    """Guesses the next byte from those before it; the embedding is also the last layer (tied weights)."""

    def __init__(self, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        for embedding in (self.bytes, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.head.weight = self.bytes.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Bytes (n, length) -> scores (n, length, 256)."""
        hidden = self.bytes(x) + self.places.weight[: x.shape[1]]
        scores: torch.Tensor = self.head(self.encoder(hidden, mask=self.mask, is_causal=True))
        return scores


def load_data(limit: int, length: int) -> tuple[Dataset[torch.Tensor], Dataset[torch.Tensor]]:
    """Pieces to train with, and every tenth to test with; the same on every rank."""
    text = "\n".join(pydoc_data.topics.topics.values()).encode()[:limit]
    pieces = Text(text, length)
    held_out = range(0, len(pieces), 10)
    return Subset(pieces, [i for i in range(len(pieces)) if i not in held_out]), Subset(pieces, held_out)


def losses_of(model: nn.Module, pieces: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each next byte, shape (n * length,)."""
    scores = model(pieces[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten(), reduction="none")


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset[torch.Tensor], epoch: int, batch: int
) -> None:
    """One epoch; the ranks together see ``batch`` pieces in a step, the same ones whatever their number."""
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank(), seed=3, drop_last=True
    )
    sampler.set_epoch(epoch)
    model.train()
    for pieces in DataLoader(data, batch_size=batch // hvd.size(), sampler=sampler, drop_last=True):
        optimizer.zero_grad()
        losses_of(model, pieces).mean().backward()
        optimizer.synchronize()  # clipping needs the gradients of all ranks
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()


def evaluate(model: nn.Module, data: Dataset[torch.Tensor]) -> tuple[float, float]:
    """Perplexity and share of bytes guessed right: every rank looks at its part, sums are added up once at the end."""
    part = Subset(data, range(hvd.rank(), len(data), hvd.size()))
    total = torch.zeros(3, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for pieces in DataLoader(part, batch_size=64):
            scores = model(pieces[:, :-1]).flatten(0, 1)
            wanted = pieces[:, 1:].flatten()
            total[0] += F.cross_entropy(scores, wanted, reduction="sum")
            total[1] += (scores.argmax(1) == wanted).sum()
            total[2] += len(wanted)
    loss, right, count = hvd.allreduce(total, name="evaluation", op=hvd.Sum).tolist()
    return math.exp(loss / count), right / count


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Rank 0 writes, beside the old file and then over it: who is killed meanwhile leaves the old one whole."""
    if hvd.rank() == 0:
        unfinished = path.with_name(path.name + ".new")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, unfinished)
        os.replace(unfinished, path)


def restore(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The epoch to begin with: rank 0 looks for the file and tells the others, who need not see it."""
    epoch = 0
    if path is not None and hvd.rank() == 0 and path.exists():
        saved: dict[str, Any] = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch = saved["epoch"] + 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    begin: int = hvd.broadcast_object(epoch, root_rank=0)
    return begin


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="in all, those of a checkpoint included")
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
    parser.add_argument("--bytes", type=int, default=400_000, help="how much text")
    parser.add_argument("--length", type=int, default=64, help="bytes that the model sees at once")
    parser.add_argument("--width", type=int, default=64, help="size of the model, a multiple of 4")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model")
    parser.add_argument("--checkpoint", type=Path, help="file to go on from, and to write")
    return parser.parse_args()


def main() -> None:
    """Trains, prints perplexity and accuracy after each epoch on rank 0."""
    arguments = parse_arguments()
    hvd.init()
    if arguments.batch_size % hvd.size():
        raise SystemExit(f"--batch-size {arguments.batch_size} can't be divided among {hvd.size()} ranks")
    torch.manual_seed(42)
    torch.set_num_threads(1)  # ranks share the cores
    training, test = load_data(arguments.bytes, arguments.length)
    if len(training) < arguments.batch_size:
        raise SystemExit(
            f"--bytes {arguments.bytes} are only {len(training)} pieces to train with, less than one batch"
        )
    model = Transformer(arguments.length, arguments.width, arguments.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(restore(arguments.checkpoint, model, optimizer), arguments.epochs):
        start = time.perf_counter()
        train(model, optimizer, training, epoch, arguments.batch_size)
        seconds = time.perf_counter() - start
        perplexity, share = evaluate(model, test)
        if arguments.checkpoint is not None:
            save(arguments.checkpoint, model, optimizer, epoch)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch}: perplexity {perplexity:.4f}, {share:.2%} of bytes right, {seconds:.1f} s", flush=True
            )
    hvd.shutdown()


if __name__ == "__main__":
    main()
