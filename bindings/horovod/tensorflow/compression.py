"""Smaller dtypes for the way: gradients are cast before they are reduced, and cast back afterwards.

``Compression.fp16`` keeps 11 significant bits and a range up to 65504: a larger gradient becomes inf, which a loss
scaler notices and nothing else does.  ``Compression.bf16`` keeps 8 significant bits and the range of fp32.  Integers
pass untouched, and so do tensors that a cast would not make smaller.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.exceptions import UsageError
from horovod.tensorflow.dtypes import is_floating

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "check_compression"]


class Compressor:
    """Turns a tensor into what is sent, and back; subclasses must keep the shape."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what decompress needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was, with the values received."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The same tensor."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The same tensor."""
        return tensor


def _cast(tensor: Any, dtype: Any) -> tuple[Any, Any]:
    if is_floating(tensor.dtype) and tf.as_dtype(tensor.dtype).size > dtype.size:
        return tf.cast(tensor, dtype), tensor.dtype
    return tensor, None


def _cast_back(tensor: Any, dtype: Any) -> Any:
    return tensor if dtype is None else tf.cast(tensor, dtype)


class FP16Compressor(Compressor):
    """Sends fp32 and fp64 as fp16; values beyond 65504 become inf."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor in half precision."""
        return _cast(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in the dtype that it had."""
        return _cast_back(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends fp32 and fp64 as bf16: less precise than fp16, never out of range."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor in bfloat16."""
        return _cast(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in the dtype that it had."""
        return _cast_back(tensor, ctx)


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def check_compression(compression: object, what: str) -> None:
    """UsageError for what is no compressor, such as its name."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise UsageError(
            f"{what}: compression={compression!r} is no compressor: use hvd.Compression.none, hvd.Compression.fp16 or "
            "hvd.Compression.bf16, or a class with compress and decompress."
        )
