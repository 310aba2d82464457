"""Reduces the gradients of one optimizer: from the hook of a parameter to the end of ``synchronize``.

A gradient that is due is copied into its slot once, and ``.grad`` becomes the slot.  When the last gradient of a bucket
has come, the bucket is submitted.  ``finish`` hands over what is missing (as zeros, so that ranks never diverge), waits
for all buckets and checks that nobody changed a gradient meanwhile.

Parameters that are new - at the first step, after ``add_param_group``, when a frozen one is thawed - get slots at the
next ``finish``, after all ranks have agreed on the list and on which gradients are sparse.  Until then their gradients
stay where they are.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError, MismatchError, NotInitializedError, UsageError
from horovod.common.process_sets import ProcessSet
from horovod.common.solo import plain_buffer
from horovod.common.types import Client, CollectiveKind, ReduceOp, Signature
from horovod.native import OutOfMemory
from horovod.torch.buckets import Bucket, Memory, Slot, cut_into_buckets
from horovod.torch.compression import Compression
from horovod.torch.dtypes import wire_form
from horovod.torch.functions import allgather_object
from horovod.torch.layouts import copy_dense, lay_as, memory_order
from horovod.torch.pending import require_client, synchronize, wait_all
from horovod.torch.reduce_ops import allreduce_async
from horovod.torch.settings import Settings
from horovod.torch.signatures import set_id_of
from horovod.torch.sparse import sparse_allreduce_async
from horovod.torch.unused import UnusedParameters

__all__ = ["Reducer"]

# How many optimizers each process set has had in this epoch: outsiders of a set don't count its optimizers.
_numbers: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)
basics.on_new_epoch(_numbers.clear)


class Reducer:
    """Slots and buckets of one optimizer in one epoch; a new epoch starts them anew."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.slots: dict[torch.Tensor, Slot] = {}
        self._by_id: dict[int, Slot] = {}  # torch hashes tensors in Python
        self._buckets: list[Bucket] = []
        self._client: Client | None = None
        self._unused = UnusedParameters()
        self._number = 0
        self._agreements = 0
        self._handing_over = threading.RLock()  # backward passes may run in several threads

    # ---- parameters

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Gives the parameter a place at the next ``finish``."""
        self.slots[parameter] = self._by_id[id(parameter)] = Slot(parameter, name)

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter was added."""
        return id(parameter) in self._by_id

    def is_pending(self) -> bool:
        """Whether a gradient was handed over and not finished, or waits for the agreement of the first step."""
        due = self.settings.passes
        return self._running() is self._client and any(s.given or s.passes >= due for s in self.slots.values())

    @staticmethod
    def _running() -> Client | None:
        try:
            return basics.client()
        except NotInitializedError:
            return None

    def is_started(self) -> bool:
        """Whether any gradient of the next step has come."""
        return any(slot.passes for slot in self.slots.values())

    def forget_step(self) -> None:
        """Drops what was handed over; memory that may still be read by others is not used again."""
        for bucket in self._buckets:
            if bucket.op is not None or bucket.missing < len(bucket.slots):
                bucket.memory = None
            bucket.forget_step()
        for slot in self.slots.values():
            slot.forget_step()

    def use_client(self) -> Client:
        """The running client; in a new epoch all agreements are void, and the optimizer takes a new number.

        All ranks of the set must come here in the same order of optimizers: when they wrap them.
        """
        client = require_client()
        if client is not self._client:
            self.forget_step_keeping_passes()
            self._client = client
            self._buckets = []
            self._agreements = 0
            self._number = next(_numbers[set_id_of(self._set)])
            for slot in self.slots.values():
                slot.bucket, slot.sparse = None, False
        return client

    def forget_step_keeping_passes(self) -> None:
        """A gradient that came in the old epoch, but was not handed over, still counts."""
        for slot in self.slots.values():
            slot.given, slot.waiter = False, None

    # ---- a gradient has come

    def arrive(self, parameter: torch.Tensor) -> None:
        """Called by the hook when the parameter's gradient has been accumulated."""
        slot, client = self._by_id[id(parameter)], self._running()
        if client is None or client.size == 1:
            return
        passes = self.settings.passes
        if slot.given or slot.passes >= passes:
            raise AssertionError(
                f"The gradient of {slot.name} was computed more than backward_passes_per_step={passes} times before "
                "step() or synchronize(). Call step() or synchronize() between backward passes, or raise "
                "backward_passes_per_step to accumulate gradients over several of them."
            )
        slot.passes += 1
        if slot.passes == passes and (slot.bucket is not None or slot.sparse) and client is self._client:
            with self._handing_over:
                self._hand_over(slot)

    def _hand_over(self, slot: Slot) -> None:
        if slot.sparse and not self.settings.sparse_as_dense:
            self._hand_over_sparse(slot)
            return
        bucket = slot.bucket
        assert bucket is not None
        if bucket.missing == len(bucket.slots):
            bucket.begin(self._alloc)
        # Hooks run without recording unless the backward pass itself is recorded, and leaving the switch alone is cheaper.
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._fill(slot, bucket)
        else:
            self._fill(slot, bucket)
        slot.given = True
        bucket.missing -= 1
        if not bucket.missing:
            self._submit(bucket)

    def _alloc(self, nbytes: int) -> Any:
        """Shared memory; without room there, ordinary memory, from which the engine copies.

        A rank must not fail by itself here: others wait for its part.  What the engine has no room for it refuses on all.
        """
        assert self._client is not None
        try:
            return self._client.alloc(nbytes)
        except OutOfMemory:
            return plain_buffer(nbytes)

    def _fill(self, slot: Slot, bucket: Bucket) -> None:
        """Writes the gradient into its slot; without compression the slot becomes the gradient."""
        parameter, memory = slot.parameter, bucket.memory
        gradient = parameter.grad
        assert memory is not None
        if gradient is None:
            bucket.view(slot).zero_()
            memory.presence[slot.index] = 0
            return
        if gradient.layout is not torch.strided:
            gradient = parameter.grad = lay_as(gradient.to_dense(), parameter)
        slot.check_shape(gradient)
        strides = gradient.stride()
        if bucket.dtype is not gradient.dtype or self.settings.compression is not Compression.none:
            self._fill_compressed(slot, bucket, gradient)
        elif strides != slot.strides and not slot.has_layout(strides := slot.strides_of(gradient)):
            gradient = bucket.fill_apart(slot, gradient, strides)
        elif gradient.data_ptr() != memory.addresses[slot.index] or gradient.stride() != strides:
            view = bucket.view(slot, strides)
            copy_dense(view, gradient, slot.nbytes)
            if parameter.is_cpu:
                gradient = parameter.grad = view
        slot.gradient, slot.version = gradient.data_ptr(), gradient._version

    def _fill_compressed(self, slot: Slot, bucket: Bucket, gradient: torch.Tensor) -> None:
        compressed, _ = self.settings.compression.compress(gradient)
        if compressed.shape != gradient.shape:
            raise UsageError(
                f"{self.settings.compression.__name__} changes the shape of {slot.name}: an optimizer's compressor must "
                "keep shapes."
            )
        bucket.view(slot).copy_(compressed)

    def _hand_over_sparse(self, slot: Slot) -> None:
        parameter = slot.parameter
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64), parameter.new_empty((0, *parameter.shape[1:])),
                parameter.shape, device=parameter.device, check_invariants=False,
            )  # fmt: skip
        elif gradient.layout is not torch.sparse_coo:
            gradient = gradient.to_sparse(1)
        name = f"optimizer.{self._number}.{slot.name}"
        slot.waiter = sparse_allreduce_async(gradient, name, self.settings.op, self.settings.process_set)
        slot.given = True

    def _submit(self, bucket: Bucket) -> None:
        memory, client = bucket.memory, self._client
        assert memory is not None
        assert client is not None
        if bucket.signature is None:
            bucket.signature = self._signature(bucket)
        bucket.op = client.reduce(bucket.signature, memory.buffers, blocking=False, keep=memory.buffer)

    def _signature(self, bucket: Bucket) -> Signature:
        settings = self.settings
        names = tuple(_order_name(slot) for slot in bucket.slots)
        number, shapes = wire_form(bucket.dtype, bucket.shapes(), bucket.name)
        return Signature(
            CollectiveKind.ALLREDUCE, bucket.name, False, number, shapes, (*names, f"{bucket.name}.presence"),
            int(settings.op), settings.prescale, settings.postscale, -1, set_id_of(settings.process_set),
        )  # fmt: skip

    # ---- the end of a step

    def finish(self) -> None:
        """Hands over what is missing, waits for everything, and leaves the reduced gradients in ``.grad``."""
        self.use_client()
        try:
            self._agree()
            for slot in self.slots.values():
                if not slot.given:
                    self._hand_over(slot)
            wait_all([bucket.op for bucket in self._buckets])
            with torch.no_grad():
                changed = [slot.name for slot in self.slots.values() if not self._take_back(slot)]
        except BaseException:
            self.forget_step()
            raise
        self._end_step()
        if changed:
            raise UsageError(
                f"The gradient of {', '.join(changed[:5])} was changed or replaced after it was handed over for reduction. "
                "Call optimizer.synchronize() after backward() and before gradients are clipped, unscaled or cleared; "
                "then step() inside `with optimizer.skip_synchronize():`."
            )
        if self._unused.unreported:
            self._unused.report(self._members()[0] == require_client().rank)

    def _end_step(self) -> None:
        for bucket in self._buckets:
            bucket.forget_step()
        for slot in self.slots.values():
            slot.forget_step()

    def _take_back(self, slot: Slot) -> bool:
        """Puts the result where the optimizer looks for it; False where the gradient is not what was handed over."""
        bucket, gradient = slot.bucket, slot.parameter.grad
        if slot.waiter is not None:
            self._take_back_sparse(slot, slot.waiter())
            return True
        assert bucket is not None
        assert bucket.memory is not None
        handed_over, slot.gradient = slot.gradient, 0
        is_unchanged = not handed_over or (
            gradient is not None
            and gradient.layout is torch.strided
            and gradient.data_ptr() == handed_over
            and gradient._version == slot.version
        )
        if is_unchanged and (gradient is None or handed_over != bucket.memory.addresses[slot.index]):
            self._copy_out(slot, bucket)
        if slot.sparse and slot.parameter.grad is not None:
            slot.parameter.grad = slot.parameter.grad.to_sparse(1)
        return is_unchanged

    def _take_back_sparse(self, slot: Slot, reduced: torch.Tensor) -> None:
        if slot.parameter.grad is not None or reduced._nnz():
            slot.parameter.grad = reduced
        else:
            self._unused.note(slot.name)

    def _copy_out(self, slot: Slot, bucket: Bucket) -> None:
        """Where the gradient does not live in its slot: compressed, on another device, or missing on this rank.

        A gradient that is part of a graph (``create_graph=True``) stays what it is.
        """
        parameter, memory = slot.parameter, bucket.memory
        assert memory is not None
        if parameter.grad is not None and not parameter.grad.requires_grad:
            parameter.grad.copy_(bucket.view(slot))
        elif parameter.grad is None and self._is_nowhere(slot, memory):
            self._unused.note(slot.name)
        else:
            reduced = bucket.view(slot).to(device=parameter.device, dtype=parameter.dtype)
            parameter.grad = lay_as(reduced, parameter)

    def _is_nowhere(self, slot: Slot, memory: Memory) -> bool:
        """Whether no rank had a gradient: only sums of flags tell."""
        return self.settings.op in (ReduceOp.AVERAGE, ReduceOp.SUM) and not bool(memory.presence[slot.index])

    # ---- agreement on new parameters

    def _agree(self) -> None:
        new = [slot for slot in self.slots.values() if slot.bucket is None and not slot.sparse]
        if not new:
            return
        name = f"optimizer.{self._number}.agreement.{self._agreements}"
        self._agreements += 1
        self._check_same(new, name)
        sparse = self._sparse_anywhere(new, name)
        for slot, is_sparse in zip(new, sparse, strict=True):
            slot.sparse = is_sparse
        dense = [slot for slot in new if not slot.sparse or self.settings.sparse_as_dense]
        for run in self._runs(dense):
            bucket_name = f"allreduce.optimizer.{self._number}.{len(self._buckets)}"
            self._buckets.append(Bucket(run, self._wire_dtype(run[0]), bucket_name))

    def _check_same(self, new: Sequence[Slot], name: str) -> None:
        """Sums of digests, so that a rank that has joined counts for nothing."""
        lines = [slot.describe() for slot in new]
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        words = [int.from_bytes(digest[i : i + 5], "little") for i in range(0, 30, 5)]
        mine = torch.tensor([1, *words], dtype=torch.int64, device="cpu")
        total = synchronize(allreduce_async(mine, name=f"{name}.digest", op=int(ReduceOp.SUM), process_set=self._set))
        everywhere = torch.tensor([1, torch.equal(mine * total[0], total)], dtype=torch.int64, device="cpu")
        votes = synchronize(
            allreduce_async(everywhere, name=f"{name}.votes", op=int(ReduceOp.SUM), process_set=self._set)
        )
        if votes[0] != votes[1]:
            raise MismatchError(_first_difference(allgather_object(lines, name, self._set), self._members()))

    @property
    def _set(self) -> ProcessSet:
        return self.settings.process_set

    def _members(self) -> list[int]:
        return list(require_client().process_sets()[set_id_of(self._set)])

    def _sparse_anywhere(self, new: Sequence[Slot], name: str) -> list[bool]:
        def is_sparse(gradient: torch.Tensor | None) -> bool:
            return gradient is not None and gradient.layout is not torch.strided

        flags = torch.tensor([is_sparse(slot.parameter.grad) for slot in new], dtype=torch.int32, device="cpu")
        handle = allreduce_async(flags, name=f"{name}.sparse", op=int(ReduceOp.SUM), process_set=self._set)
        return [bool(flag) for flag in synchronize(handle).tolist()]

    def _wire_dtype(self, slot: Slot) -> torch.dtype:
        probe = torch.zeros(1, dtype=slot.parameter.dtype, device="cpu")
        return self.settings.compression.compress(probe)[0].dtype

    def _runs(self, slots: Sequence[Slot]) -> list[list[Slot]]:
        """Explicit groups first, then the rest by dtype; every run has one dtype."""
        groups, rest = _split_groups(slots, self.settings.groups)
        runs = [run for group in groups for run in _by_key(group, self._wire_dtype)]
        for same in _by_key(rest, self._wire_dtype):
            runs += cut_into_buckets(same, lambda slot: self._wire_dtype(slot).itemsize)
        return runs


def _order_name(slot: Slot) -> str:
    """The parameter's name, with its order of dimensions in memory where that is not the usual one."""
    order = memory_order(slot.parameter.shape, slot.strides)
    usual = memory_order(slot.parameter.shape, torch.empty(slot.parameter.shape, device="meta").stride())
    return slot.name if order == usual else f"{slot.name} (memory order {list(order)})"


def _by_key(slots: Sequence[Slot], key: Callable[[Slot], Any]) -> list[list[Slot]]:
    found: dict[Any, list[Slot]] = {}
    for slot in slots:
        found.setdefault(key(slot), []).append(slot)
    return list(found.values())


def _split_groups(
    slots: Sequence[Slot], groups: Sequence[Sequence[torch.Tensor]] | int | None
) -> tuple[list[list[Slot]], list[Slot]]:
    """Slots of each group, and those that are in none."""
    if groups is None:
        return [], list(slots)
    if isinstance(groups, int):
        count = min(groups, len(slots))
        return [list(slots[i * len(slots) // count : (i + 1) * len(slots) // count]) for i in range(count)], []
    by_parameter = {slot.parameter: slot for slot in slots}
    chosen = [[by_parameter.pop(p) for p in group if p in by_parameter] for group in groups]
    return [group for group in chosen if group], list(by_parameter.values())


def _first_difference(lists: Sequence[Sequence[str]], ranks: Sequence[int]) -> str:
    """Names the first parameter in which some rank differs from the first one."""
    for rank, lines in zip(ranks, lists, strict=True):
        for mine, theirs in itertools.zip_longest(lists[0], lines, fillvalue="nothing"):
            if mine != theirs:
                return (
                    "Mismatched parameters of the optimizers: "
                    f"rank {ranks[0]} has {mine}, rank {rank} has {theirs}. All ranks must wrap the same model."
                )
    raise HorovodInternalError("The optimizers of the ranks differ, but their parameters are described alike.")
