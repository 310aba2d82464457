"""The native engine: typed access to libhvd_native.so and the path of the hvd-warden program.

``lib`` holds the raw functions of hvd.h with their types set; pointers are plain integers there.  ``Board`` and
``Arena`` are the agent's and the rank's handles on shared memory; statuses below zero become exceptions.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from pathlib import Path

from horovod.native._abi import ABI_VERSION, lib, library_path
from horovod.native.arena import Arena, ArenaBuffer
from horovod.native.board import Board, BoardTime, PlanSpec, RankInfo, RoundInfo
from horovod.native.errors import (
    EpochClosed,
    EpochFailed,
    InvalidArgument,
    NativeError,
    OpCancelled,
    OutOfMemory,
    Status,
    check,
)
from horovod.native.net import Net, NetAlgorithm, NetEvent, NetEventKind, NetInfo, NetPeerInfo, NetSpec, NetTime

__all__ = [
    "ABI_VERSION",
    "Arena",
    "ArenaBuffer",
    "Board",
    "BoardTime",
    "DType",
    "EpochClosed",
    "EpochFailed",
    "InvalidArgument",
    "NativeError",
    "Net",
    "NetAlgorithm",
    "NetEvent",
    "NetEventKind",
    "NetInfo",
    "NetPeerInfo",
    "NetSpec",
    "NetTime",
    "OpCancelled",
    "OutOfMemory",
    "PlanFlag",
    "PlanKind",
    "PlanSpec",
    "RankInfo",
    "ReduceOp",
    "RoundInfo",
    "Status",
    "check",
    "copy_past_caches",
    "dtype_bytes",
    "kernel_name",
    "lib",
    "warden_path",
]


class DType(IntEnum):
    """Numbers of the element types, as in hvd.h."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9
    BFLOAT16 = 10


class ReduceOp(IntEnum):
    """Numbers of the reductions, as in hvd.h; Average is Sum with a post-scale."""

    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class PlanKind(IntEnum):
    """How a plan's rounds run: reduced together in place, or pulled by each member."""

    COOPERATIVE = 0
    PULL = 1


class PlanFlag(IntFlag):
    """What else is true of a plan: members on other hosts take part."""

    REMOTE = 1


def dtype_bytes(dtype: int) -> int:
    """Bytes of one element, 0 for an unknown type."""
    return int(lib.hvd_dtype_bytes(dtype))


def kernel_name() -> str:
    """The instruction set of the reduction kernels: ``avx512``, ``avx2`` or ``baseline`` (HVD_SIMD overrides)."""
    name: bytes = lib.hvd_kernel_name()
    return name.decode()


def copy_past_caches(to: int, source: int, nbytes: int) -> None:
    """Like ``ctypes.memmove`` between places that don't overlap, but past the caches: for large data that are not read soon."""
    lib.hvd_copy_past_caches(to, source, nbytes)


def warden_path() -> Path:
    """The hvd-warden program, under which agents start ranks; it lies beside the library."""
    return library_path().with_name("hvd-warden")
