"""Elastic scripts as users wrote them for Horovod, run by test_elastic.py on real ranks."""

from __future__ import annotations

__all__ = ["FAILS", "TUTORIAL"]

# The pattern of Horovod's elastic guide and its example for PyTorch; the data are made up, and results are printed.
TUTORIAL = """
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)

lr, epochs, batch_size, batches_per_commit = 0.01, 3, 4, 2
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(45, 5, generator=generator)
targets = inputs @ torch.tensor([[1.0], [2.0], [0.5], [-1.0], [0.0]])
dataset = torch.utils.data.TensorDataset(inputs, targets)
sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=lr * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, epochs):
        state.batch = 0
        for batch_idx, (data, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(batch_idx, batch_size)
            state.batch = batch_idx
            if state.batch % batches_per_commit == 0:
                state.commit()
            else:
                state.check_host_updates()
        state.sampler.set_epoch(state.epoch + 1)
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
        state.losses.append(float(hvd.allreduce(loss, name="loss")))
        state.commit()
    return "trained"


def on_state_reset():
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr * hvd.size()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, losses=[])
state.register_reset_callbacks([on_state_reset])
outcome = train(state)

weights = torch.cat([p.detach().flatten() for p in model.parameters()])
everywhere = hvd.allgather_object(weights.tolist(), name="weights")
print("RESULT", outcome, hvd.size(), state.epoch, len(state.losses), all(w == everywhere[0] for w in everywhere),
      state.losses[-1] < state.losses[0])
"""

# Rank 1 dies in the second epoch; what rank 0 says and does then is printed.
FAILS = """
import os, signal
import torch
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
attempts = []


@hvd.elastic.run
def train(state):
    attempts.append(state.epoch)
    while state.epoch < 4:
        if state.epoch == 2 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        state.epoch += 1
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, epoch=0)
try:
    train(state)
except hvd.HorovodInternalError as error:
    state.epoch = -1
    state.restore()
    print("CAUGHT", type(error).__name__, attempts, state.epoch, error, flush=True)
    raise
"""
