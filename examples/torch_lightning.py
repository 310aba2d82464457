"""Trains a small CNN on scikit-learn's scans of handwritten digits with Lightning (``pip install lightning``).

horovodrun -np 2 python examples/torch_lightning.py
python examples/torch_lightning.py                    # one process, the same script

Lightning has no strategy for Horovod any more, and needs none: every rank runs a Trainer with one device, and the optimizer
is wrapped in configure_optimizers.  What follows from that:

* Give the Trainer devices=1 and no strategy; shard the data yourself, with a DistributedSampler or another.
* Every Trainer takes itself for the only one: let rank 0 alone log, write checkpoints and show progress.
* self.log(sync_dist=True) does nothing: average what you log with hvd.allreduce.  Then callbacks that look at it, such as
  EarlyStopping, decide the same on all ranks.
* on_before_optimizer_step must call optimizer.synchronize() when the Trainer clips gradients: it clips what all have reduced.
* accumulate_grad_batches is told to the optimizer, too, as backward_passes_per_step.
* fit(ckpt_path=...) reads the file on every rank, so all must see it; here all then get what rank 0 has read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import horovod.torch as hvd
import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Digits(lightning.LightningModule):
    """A convolution and two dense layers for 8 x 8 images."""

    def __init__(self, rate: float = 3e-3) -> None:
        super().__init__()
        self.rate = rate
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(),
            nn.Linear(64, 10),
        )  # fmt: skip
        self.right, self.seen = 0, 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Horovod's optimizer around the usual one."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.rate * hvd.size() ** 0.5)
        passes = self.trainer.accumulate_grad_batches
        return hvd.DistributedOptimizer(optimizer, self.named_parameters(), backward_passes_per_step=passes)

    def on_train_start(self) -> None:
        """All ranks begin with what rank 0 has, from a checkpoint or not."""
        hvd.broadcast_parameters(self.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.trainer.optimizers[0], root_rank=0)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clipping comes next: it needs the gradients of all ranks."""
        optimizer.synchronize()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss of this rank's batch."""
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def on_validation_epoch_start(self) -> None:
        """Counts from zero."""
        self.right = self.seen = 0

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Counts on this rank's part."""
        images, labels = batch
        self.right += int((self.net(images).argmax(1) == labels).sum())
        self.seen += len(labels)

    def on_validation_epoch_end(self) -> None:
        """One reduction gives the exact share, equal on all ranks."""
        right, seen = hvd.allreduce(torch.tensor([self.right, self.seen], dtype=torch.float64), op=hvd.Sum)
        self.log("accuracy", right / seen, prog_bar=True)


def load_data(batch: int) -> tuple[DataLoader[tuple[torch.Tensor, ...]], DataLoader[tuple[torch.Tensor, ...]]]:
    """This rank's shards of training and test images."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    data = TensorDataset(images, torch.tensor(digits.target, dtype=torch.int64))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1)).tolist()
    train, test = Subset(data, order[360:]), Subset(data, order[:360][hvd.rank() :: hvd.size()])
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(train, hvd.size(), hvd.rank(), seed=3)
    return DataLoader(train, batch_size=batch, sampler=sampler), DataLoader(test, batch_size=64)


def main() -> None:
    """Trains, prints the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients are summed before a step")
    parser.add_argument("--precision", default="32-true", help="as Lightning has it, such as bf16-mixed")
    parser.add_argument("--folder", type=Path, help="where rank 0 writes the checkpoint of the best epoch")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    arguments = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)  # ranks share the cores
    lightning.seed_everything(42, verbose=False)
    is_first = hvd.rank() == 0
    writes = is_first and arguments.folder is not None
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=arguments.epochs,
        gradient_clip_val=1.0,
        accumulate_grad_batches=arguments.accumulate,
        precision=arguments.precision,
        logger=False,
        enable_checkpointing=writes,
        callbacks=[ModelCheckpoint(arguments.folder, "best", monitor="accuracy", mode="max")] if writes else [],
        enable_progress_bar=is_first,
        enable_model_summary=is_first,
    )
    train, test = load_data(arguments.batch_size)
    trainer.fit(Digits(), train, test, ckpt_path=arguments.resume)
    if is_first:
        print(f"test accuracy {trainer.callback_metrics['accuracy']:.2%} on {hvd.size()} rank(s)", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
