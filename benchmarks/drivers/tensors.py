"""What the drivers that use torch have in common: tensors, and a training step to add a reduction to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import SEED, Case

Tensors = list[torch.Tensor]
Loss = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def plain_tensors(case: Case) -> Tensors:
    """The tensors of a case in ordinary memory, written to so that their pages exist."""
    return [torch.zeros(shape, dtype=getattr(torch, case.dtype)).fill_(0) for shape in case.shapes]


def check_sum(tensors: Tensors, rank: int, size: int, reduce: Callable[[], None]) -> None:
    """One reduction of small integers, exact in every dtype; leaves zeros, on which sums never overflow."""
    for tensor in tensors:
        pattern = torch.arange(tensor.numel()).remainder_(7).reshape(tensor.shape)
        tensor.copy_(pattern + rank)
    reduce()
    for tensor in tensors:
        pattern = torch.arange(tensor.numel()).remainder_(7).reshape(tensor.shape)
        expected = (pattern * size + sum(range(size))).to(tensor.dtype)
        assert torch.equal(tensor, expected), "the sum is wrong"
        tensor.zero_()


def build_model(case: Case, rank: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Fully connected layers as the shapes say, with this rank's inputs and targets."""
    torch.manual_seed(SEED)
    weights = [shape for shape in case.shapes if len(shape) == 2]
    modules = [torch.nn.Linear(columns, rows) for rows, columns in weights]
    torch.manual_seed(SEED + rank)
    inputs = torch.randn(case.batch, weights[0][1])
    return torch.nn.Sequential(*modules), inputs, torch.randn(case.batch, weights[-1][0])


def build_training(case: Case, rank: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, Loss]:
    """What a case trains: model, this rank's inputs and targets, loss."""
    if case.kind != "train":
        return *build_model(case, rank), mean_square
    from examples import torch_synthetic_benchmark as networks

    torch.manual_seed(SEED)
    model = networks.build_model(case.model)
    torch.manual_seed(SEED + rank)
    return model, *networks.build_batch(case.model, case.batch, case.size, case.size), networks.loss_of


def mean_square(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of fully connected layers."""
    return torch.nn.functional.mse_loss(model(inputs), targets)


class StepTask:
    """Training steps of a model with an optimizer, whoever reduces the gradients."""

    def __init__(
        self, model: Any, optimizer: Any, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss = mean_square
    ) -> None:
        self.model, self.optimizer, self.inputs, self.targets, self.loss = model, optimizer, inputs, targets, loss
        self.parameters = list(model.parameters())

    def check(self) -> None:
        """A step gives finite numbers."""
        self.run(1)
        assert all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters)

    def run(self, count: int) -> None:
        """That many steps."""
        for _ in range(count):
            self.optimizer.zero_grad()
            self.loss(self.model, self.inputs, self.targets).backward()
            self.optimizer.step()


def step_alone(case: Case, rank: int) -> StepTask:
    """The step with nobody to reduce with."""
    model, inputs, targets = build_model(case, rank)
    return StepTask(model, make_optimizer(model), inputs, targets)


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer that all peers use."""
    return torch.optim.SGD(model.parameters(), lr=1e-4)
