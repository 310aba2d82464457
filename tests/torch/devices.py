"""The device that checks run on in a rank: HVD_TESTS_DEVICE is ``standin`` or ``cuda``."""

from __future__ import annotations

import os

import horovod.torch as hvd
import torch

from tests.torch import standin

__all__ = ["DEVICE", "NOT_BY_DEFAULT", "is_exact", "same", "skip_reason"]

_RAISES = "a hook raises, which the stand-in can't survive"
NOT_BY_DEFAULT = {
    "tests.torch.checks_tensors.check_sparse_tensors": "the stand-in has no CSR tensors",
    "tests.torch.checks_numerics.check_digest": "makes arrays of NumPy from tensors",
    "tests.torch.checks_optimizer.check_accumulation": _RAISES,
    "tests.torch.checks_optimizer.check_gradients_live_in_their_slots": "gradients of a device don't",
    "tests.torch.checks_optimizer.check_tied_weights_and_checkpointing": "the stand-in has no autocast",
    "tests.torch.checks_copies.check_options_are_copied": _RAISES,
    "tests.torch.checks_refusals.check_a_parameter_that_has_changed_its_shape": _RAISES,
}
"""Checks that can't run where the stand-in is torch's default device, and why."""


def skip_reason(kind: str) -> str | None:
    """Why checks can't run on such a device here."""
    if kind == standin.NAME:
        return standin.missing()
    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device here"


def _device() -> torch.device:
    kind = os.environ.get("HVD_TESTS_DEVICE")
    if kind is None:
        return torch.device("meta")  # no rank: the checks are only counted
    if kind == standin.NAME:
        return standin.set_up()
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # read by CUDA's libraries when they are loaded
    index = hvd.local_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


DEVICE = _device()


def is_exact() -> bool:
    """Whether the device computes with the bits of the CPU."""
    return DEVICE.type == standin.NAME


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether a tensor is on the device and has the values of one on the host, in a dtype of its own or not."""
    assert got.device == DEVICE, f"on {got.device}, not {DEVICE}"
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), (got.dtype, got.shape, wanted.dtype, wanted.shape)
    return torch.equal(got.detach().cpu(), wanted.detach())
