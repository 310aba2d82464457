"""A device for tests on machines that have none: ``torch.device("standin")``, with memory that the host can't touch.

Its tensors are plain ``torch.Tensor`` of torch's own slot for other devices (PrivateUse1), made over addresses that are
reserved and never readable: whoever reads them, in Python or in the engine, ends with a segmentation fault, as with a GPU.
The same memory is mapped a second time, elsewhere and readable; every kernel works there, on aliases on the host, through
torch's own CPU kernels, so results have the same bits.  Views are torch's own and share storage and version counters, and
backward passes run on a thread of the device.  New memory is full of ones (NaN), and is never used again.

What differs from a GPU: kernels are done when they return, and an exception that a hook raises on the device's thread ends
the process (torch's guard for such devices can't switch streams while one is on its way).
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree

__all__ = ["NAME", "missing", "set_up", "without_doubles"]

NAME = "standin"
SIZE = 1 << 30
ALIGNMENT = 256
_DL_EXTERNAL, _DL_UINT = 12, 1


def missing() -> str | None:
    """Why there can be no such device here; None if there can."""
    if not hasattr(getattr(torch._C, "_acc", None), "register_python_privateuseone_device_guard"):
        return f"torch {torch.__version__} can't be given a device by Python code"
    return None


class _DLTensor(ctypes.Structure):
    """A tensor of bytes in DLPack's form, as torch takes it from others."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


class _Memory:
    """One file mapped twice: where nobody can look, and where kernels do."""

    def __init__(self) -> None:
        file = os.memfd_create("standin")
        os.ftruncate(file, SIZE)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.start: int = libc.mmap(None, SIZE, 0, mmap.MAP_SHARED, file, 0)
        assert self.start != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        self.storage = torch.frombuffer(mmap.mmap(file, SIZE), dtype=torch.uint8).untyped_storage()
        self._places = itertools.count()
        self._used = 0
        self._kept: list[Any] = []
        self._capsule = ctypes.pythonapi.PyCapsule_New
        self._capsule.restype = ctypes.py_object
        self._capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def take(self, nbytes: int) -> torch.Tensor:
        """New bytes on the device."""
        place, self._used = self._used, self._used - (-nbytes // ALIGNMENT) * ALIGNMENT
        assert self._used <= SIZE, "The stand-in device is full."
        sizes = (ctypes.c_int64 * 2)(nbytes, 1)
        address = ctypes.addressof(sizes)
        tensor = _DLTensor(self.start + place, _DL_EXTERNAL, 0, 1, _DL_UINT, 8, 1, address, address + 8)
        self._kept += [sizes, tensor]
        taken: torch.Tensor = torch._C._from_dlpack(self._capsule(ctypes.addressof(tensor), b"dltensor", None))  # type: ignore[attr-defined]
        alias(taken).fill_(255)
        return taken

    def offset(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr() - self.start


_memory: _Memory
_unknown: set[torch.dtype] = set()


@contextmanager
def without_doubles() -> Iterator[None]:
    """Inside, the device has no fp64, as with Apple's."""
    _unknown.update((torch.float64, torch.complex128))
    try:
        yield
    finally:
        _unknown.clear()


def _is_here(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as kernels see it."""
    item = tensor.element_size()
    flat = torch.empty(0, dtype=tensor.dtype, device="cpu")
    offset = _memory.offset(tensor) // item + tensor.storage_offset()
    flat.set_(_memory.storage, offset, tensor.size(), tensor.stride())  # type: ignore[call-overload]
    torch._C._set_conj(flat, tensor.is_conj())  # type: ignore[attr-defined]
    torch._C._set_neg(flat, tensor.is_neg())  # type: ignore[attr-defined]
    return flat


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, both counted."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _new(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype in _unknown:
        raise TypeError(f"The device {NAME} has no {dtype}.")
    flat = _memory.take(_reach(shape, strides) * dtype.itemsize).view(dtype)
    return _on_host_code(torch.ops.aten.as_strided.default, flat, shape, strides)


def _on_host_code(op: Any, *args: Any, sparse: bool = False, **kwargs: Any) -> Any:
    """Runs a CPU kernel that changes how memory is seen, not what is in it."""
    return op._op_dk(torch._C.DispatchKey.SparseCPU if sparse else torch._C.DispatchKey.CPU, *args, **kwargs)


# ---- storages, which torch copies and saves by itself


def _moved(storage: torch.UntypedStorage, _: object = None) -> torch.UntypedStorage:
    """A copy on the device, of a storage of any device."""
    result = _memory.take(storage.nbytes())
    source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    alias(result).copy_(alias(source) if _is_here(source) else source)
    return result.untyped_storage()


def _teach_storages() -> None:
    usual = torch.UntypedStorage.clone

    def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return _moved(storage) if storage.device.type == NAME else usual(storage)

    torch.UntypedStorage.clone = clone  # type: ignore[method-assign]
    torch.serialization.register_package(
        5,
        lambda storage: f"{NAME}:0" if storage.device.type == NAME else None,
        lambda storage, location: _moved(storage) if location.startswith(NAME) else None,
    )


# ---- what kernels do


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    assert not (non_blocking and target.is_cpu), "a copy to the host that nobody waits for"
    (alias(target) if _is_here(target) else target).copy_(alias(source) if _is_here(source) else source)
    return target


def _empty(
    size: Sequence[int], *, dtype: Any = None, memory_format: Any = torch.contiguous_format, **_: Any
) -> torch.Tensor:
    like = torch.empty(size, dtype=dtype, memory_format=memory_format, device="meta")
    return _new(like.shape, like.stride(), like.dtype)


def _empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return _new(size, stride, dtype or torch.get_default_dtype())


def _resize(tensor: torch.Tensor, size: Sequence[int], **_: Any) -> torch.Tensor:
    like = torch.empty(size, dtype=tensor.dtype, device="meta")
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    source = tensor if room >= like.numel() else _new(like.shape, like.stride(), like.dtype)
    _set(tensor, source.untyped_storage(), source.storage_offset(), like.shape, like.stride())
    return tensor


def _set_whole(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
    return _set(tensor, storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))


def _set(
    tensor: torch.Tensor, storage: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    _on_host_code(torch.ops.aten.set_.source_Storage_storage_offset, tensor, storage, offset, size, stride)
    return tensor


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is torch.sparse_coo:
        parts = alias(tensor._indices()), alias(tensor._values())
        return _sparse(*parts, tensor.shape, tensor.is_coalesced())
    # What has no elements may be the place of a result, which gets its size from the kernel.
    return (
        alias(tensor)
        if tensor.numel()
        else torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    )


def _to_device(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is torch.sparse_coo:
        parts = _to_device(tensor._indices()), _to_device(tensor._values())
        return _sparse(*parts, tensor.shape, tensor.is_coalesced())
    result = _new(tensor.shape, tensor.stride(), tensor.dtype)
    alias(result).copy_(tensor)
    return result


def _sparse(indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int], is_coalesced: bool) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False, is_coalesced=is_coalesced)


def _refuse_mixed(op: Any, args: Any, kwargs: Any) -> None:
    """As on a GPU: numbers and indices may be on the host, other tensors may not."""
    tensors = [value for value in _pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    if any(map(_is_here, tensors)) and any(t.is_cpu and t.dim() for t in tensors) and "index" not in op._opname:
        raise RuntimeError(f"Expected all tensors to be on the same device, found {NAME} and cpu ({op})")


def _with_tensors(op: Any, args: Sequence[Any]) -> list[Any]:
    """Numbers that torch has taken for tensors, and gives to kernels in Python as numbers, are tensors again."""
    first = next((value for value in args if isinstance(value, torch.Tensor)), torch.tensor(0, device="cpu"))
    return [
        torch.tensor(value, dtype=torch.result_type(first, value), device="cpu")
        if isinstance(value, (bool, int, float, complex)) and isinstance(argument.type, torch.TensorType)
        else value
        for value, argument in zip(args, op._schema.arguments, strict=False)
    ]


def _anything_else(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs the CPU kernel on aliases; results that are no aliases are moved to the device."""
    known: list[tuple[torch.Tensor, torch.Tensor]] = []

    def to_host(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        if not _is_here(value):
            return value
        known.append((value, _to_host(value)))
        return known[-1][1]

    def to_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for tensor, seen in known:
            if value is seen:
                return tensor
        return _to_device(value)

    _refuse_mixed(op, args, kwargs)
    args, kwargs = _pytree.tree_map(to_host, (args, kwargs))
    result = op(*_with_tensors(op, args), **kwargs)
    for tensor, seen in known:
        if tensor.layout is torch.sparse_coo:
            if op._schema.is_mutable and result is seen:
                _on_host_code(torch.ops.aten.copy_sparse_to_sparse_.default, tensor, _to_device(seen), sparse=True)
        elif seen.shape != tensor.shape:
            _resize(tensor, seen.shape)
            alias(tensor).copy_(seen)
    return _pytree.tree_map(to_device, result)


def _convolution(*args: Any) -> Any:
    return _anything_else(torch.ops.aten.convolution.default, *args)


def _convolution_backward(grad: Any, source: Any, weight: Any, *args: Any) -> Any:
    return _anything_else(torch.ops.aten.convolution_backward.default, grad, source, weight, [grad.shape[1]], *args)


_libraries: list[Any] = []

_VIEWS = ("view", "as_strided", "_reshape_alias", "unfold")
_KERNELS = {
    "_copy_from": _copy_from,
    "convolution_backward_overrideable": _convolution_backward,
    "convolution_overrideable": _convolution,
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "resize_": _resize,
    "set_.source_Storage": _set_whole,
    "set_.source_Storage_storage_offset": _set,
}


_SPARSE_VIEWS = (
    "_coalesced_", "copy_", "copy_sparse_to_sparse_", "_dimI", "_dimV", "_indices", "_nnz", "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors", "_values", "dense_dim", "indices", "is_coalesced", "sparse_dim", "values",
)  # fmt: skip


def _view_kernel(name: str, sparse: bool = False) -> Any:
    op = getattr(torch.ops.aten, name).default
    return lambda *args, **kwargs: _on_host_code(op, *args, sparse=sparse, **kwargs)


def set_up() -> torch.device:
    """Makes the device known to torch in this process, once."""
    global _memory
    if not _libraries:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME)
        _memory = _Memory()
        _teach_storages()
        anything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        anything.fallback(_anything_else, "PrivateUse1")
        anything.fallback(_anything_else, "SparsePrivateUse1")
        for name, kernel in (*_KERNELS.items(), *((name, _view_kernel(name)) for name in _VIEWS)):
            aten.impl(name, kernel, "PrivateUse1")
        for key in ("Conjugate", "Negative"):  # a copy does what they stand for
            aten.impl("_copy_from", torch.library.fallthrough_kernel, key)
        for name in _SPARSE_VIEWS:
            aten.impl(name, _view_kernel(name, sparse=True), "SparsePrivateUse1")
        _libraries.extend((anything, aten))
    return torch.device(NAME, 0)
