"""Ranks that use Open MPI through mpi4py, with NumPy buffers."""

from __future__ import annotations

import argparse
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI as _MPI

from benchmarks.cases import Case, Unsupported
from benchmarks.drivers import Task

MPI: Any = _MPI


class Blocking:
    """One buffer, reduced in place."""

    def __init__(self, buffers: list[Any]) -> None:
        self.buffers = buffers
        self.comm = MPI.COMM_WORLD

    def check(self) -> None:
        """The sum is exact; leaves zeros, on which sums never overflow."""
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        for buffer in self.buffers:
            buffer[:] = np.arange(buffer.size) % 7 + rank
        self.run(1)
        for buffer in self.buffers:
            assert np.array_equal(buffer, (np.arange(buffer.size) % 7) * size + sum(range(size))), "the sum is wrong"
            buffer[:] = 0

    def run(self, count: int) -> None:
        """Back to back."""
        buffer, allreduce, in_place = self.buffers[0], self.comm.Allreduce, MPI.IN_PLACE
        for _ in range(count):
            allreduce(in_place, buffer)


class Async(Blocking):
    """Many buffers: submit all, then wait for all."""

    def run(self, count: int) -> None:
        """With non-blocking collectives."""
        for _ in range(count):
            MPI.Request.Waitall([self.comm.Iallreduce(MPI.IN_PLACE, buffer) for buffer in self.buffers])


class OpenMpiDriver:
    """One rank."""

    def __init__(self) -> None:
        self.rank: int = MPI.COMM_WORLD.Get_rank()
        self.size: int = MPI.COMM_WORLD.Get_size()

    def make(self, case: Case) -> Task:
        """Prepares a case."""
        if case.dtype not in ("float32", "float64"):
            raise Unsupported(f"Open MPI has no {case.dtype}")
        if case.kind not in ("blocking", "async") or case.place != "plain":
            raise Unsupported(f"Open MPI has no {case.kind} in {case.place} memory")
        buffers = [np.zeros(int(np.prod(shape)), case.dtype) for shape in case.shapes]
        return (Blocking if case.kind == "blocking" else Async)(buffers)

    def settle(self) -> None:
        """Messages move only inside MPI calls, so a rank that slept would leave the others waiting."""
        MPI.COMM_WORLD.Barrier()

    def versions(self) -> dict[str, str]:
        """Of the library and of its Python face."""
        return {"mpi": MPI.Get_library_version().split(",")[0], "mpi4py": mpi4py.__version__}

    def close(self) -> None:
        """mpi4py finalizes MPI at exit."""


def connect(arguments: argparse.Namespace) -> OpenMpiDriver:
    """mpirun has said who the others are."""
    return OpenMpiDriver()
