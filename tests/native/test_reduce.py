"""hvd_reduce against a NumPy twin with exact rounding, and the instruction sets against each other, bit by bit."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from horovod import native
from horovod.native import DType, ReduceOp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.twin import FLOATS, NUMPY, OPS, Array, random_array, twin

EXTREMES = {
    DType.FLOAT16: [
        0x0001,
        0x8001,
        0x03FF,
        0x0400,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E00,
        0x7D01,
        0xFE55,
        0x0000,
        0x8000,
    ],
    DType.BFLOAT16: [
        0x0001,
        0x8001,
        0x007F,
        0x0080,
        0x7F7F,
        0xFF7F,
        0x7F80,
        0xFF80,
        0x7FC0,
        0x7F81,
        0xFFD5,
        0x0000,
        0x8000,
    ],
}


def reduce(dtype: DType, op: ReduceOp, arrays: list[Array], pre: float = 1.0, post: float = 1.0) -> Array:
    """The result; every member gets its own output, and all of them must be the same."""
    outputs = [np.empty_like(a) for a in arrays]
    pointers = ctypes.c_void_p * len(arrays)
    sources, targets = pointers(*(a.ctypes.data for a in arrays)), pointers(*(a.ctypes.data for a in outputs))
    native.check(native.lib.hvd_reduce(dtype, op, pre, post, sources, targets, len(arrays), arrays[0].size), "Reducing")
    assert all(out.tobytes() == outputs[0].tobytes() for out in outputs)
    return outputs[0]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.name)
def test_any_bits(dtype: DType, op: ReduceOp) -> None:
    generator = np.random.default_rng(7)
    for n, count in [(1, 65), (2, 1025), (3, 7), (4, 130), (5, 31), (8, 257)]:
        arrays = [random_array(dtype, count, generator) for _ in range(n)]
        for pre, post in [(1.0, 1.0), (1.0, 1.0 / n), (0.3, 1.0), (-2.5, 1e3)]:
            assert reduce(dtype, op, arrays, pre, post).tobytes() == twin(dtype, op, arrays, pre, post).tobytes()


special_floats = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 3.4e38])
)


@given(
    values=st.lists(st.lists(special_floats, min_size=3, max_size=3), min_size=1, max_size=5),
    op=st.sampled_from(OPS),
    post=st.sampled_from([1.0, 0.5, 1 / 3, 1e-38, 1e38]),
)
@settings(max_examples=200, deadline=None)
def test_special_floats(values: list[list[float]], op: ReduceOp, post: float) -> None:
    for dtype, kind in [(DType.FLOAT32, np.float32), (DType.FLOAT64, np.float64)]:
        arrays: list[Array] = [np.array(row, kind) for row in values]
        assert reduce(dtype, op, arrays, 1.0, post).tobytes() == twin(dtype, op, arrays, 1.0, post).tobytes()


@given(data=st.data(), dtype=st.sampled_from([DType.FLOAT16, DType.BFLOAT16]), op=st.sampled_from(OPS))
@settings(max_examples=200, deadline=None)
def test_special_small_floats(data: st.DataObject, dtype: DType, op: ReduceOp) -> None:
    bits = st.one_of(st.integers(0, 0xFFFF), st.sampled_from(EXTREMES[dtype]))
    rows = data.draw(st.lists(st.lists(bits, min_size=3, max_size=3), min_size=1, max_size=5))
    arrays: list[Array] = [np.array(row, np.uint16).view(NUMPY[dtype]) for row in rows]
    assert reduce(dtype, op, arrays).tobytes() == twin(dtype, op, arrays).tobytes()


@given(
    rows=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4), min_size=1, max_size=4),
    dtype=st.sampled_from([d for d in DType if d not in FLOATS and d != DType.BOOL]),
    op=st.sampled_from(OPS),
    post=st.sampled_from([1.0, 0.5, 1 / 3, -1.0, 1e20, 1e-20]),
)
@settings(max_examples=200, deadline=None)
def test_integers_wrap_and_are_clamped_when_scaled(
    rows: list[list[int]], dtype: DType, op: ReduceOp, post: float
) -> None:
    arrays: list[Array] = [np.array(row, np.int64).astype(NUMPY[dtype]) for row in rows]
    assert reduce(dtype, op, arrays, 1.0, post).tobytes() == twin(dtype, op, arrays, 1.0, post).tobytes()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
def test_nan_wins_in_any_place(dtype: DType, op: ReduceOp) -> None:
    arrays: list[Array] = [np.arange(9, dtype=NUMPY[dtype]) for _ in range(3)]
    for place, array in enumerate(arrays):
        array[place] = np.nan
    result = reduce(dtype, op, arrays).astype(np.float64)
    assert np.isnan(result[:3]).all()
    assert (result[3:] == np.arange(3, 9)).all()


def test_missing_input_stands_for_zeros() -> None:
    array = np.array([-2.0, 3.0], np.float32)
    sources, targets = (ctypes.c_void_p * 2)(array.ctypes.data, None), (ctypes.c_void_p * 2)(array.ctypes.data, None)
    native.check(native.lib.hvd_reduce(DType.FLOAT32, ReduceOp.MAX, 1.0, 1.0, sources, targets, 2, 2), "Reducing")
    assert array.tolist() == [0.0, 3.0]


def adasum_pair(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = a * (1 - a @ b / (2 * (a @ a))) + b * (1 - a @ b / (2 * (b @ b)))
    return result


def adasum_twin(vectors: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """By definition: halves first, so the first pairs are neighbours; what is beyond a power of two goes in before."""
    power = 1 << (len(vectors).bit_length() - 1)
    beyond = vectors[power:]
    vectors = [adasum_pair(a, b) for a, b in zip(vectors, beyond, strict=False)] + vectors[len(beyond) : power]
    if power == 1:
        return vectors[0]
    return adasum_pair(adasum_twin(vectors[: power // 2]), adasum_twin(vectors[power // 2 :]))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize(("dtype", "tolerance"), [(DType.FLOAT16, 4e-3), (DType.FLOAT32, 1e-5), (DType.FLOAT64, 1e-12)])
def test_adasum(n: int, dtype: DType, tolerance: float) -> None:
    generator = np.random.default_rng(n)
    arrays: list[Array] = [generator.standard_normal(37).astype(NUMPY[dtype]) for _ in range(n)]
    expected = adasum_twin([a.astype(np.float64) for a in arrays])
    found = reduce(dtype, ReduceOp.ADASUM, arrays).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [DType.INT32, DType.BOOL])
def test_adasum_refuses(dtype: DType) -> None:
    arrays: list[Array] = [np.zeros(4, NUMPY[dtype]) for _ in range(2)]
    with pytest.raises(native.InvalidArgument):
        reduce(dtype, ReduceOp.ADASUM, arrays)


PROGRAM = """
import sys
import numpy as np
from horovod import native
from tests.native.test_reduce import reduce
from tests.native.twin import FLOATS, OPS, random_array
generator = np.random.default_rng(11)
print(native.kernel_name(), flush=True)
for dtype in native.DType:
    for op in [*OPS, *([native.ReduceOp.ADASUM] if dtype in FLOATS else [])]:
        for n in (1, 2, 4, 8):
            arrays = [random_array(dtype, 513, generator) for _ in range(n)]
            for pre, post in [(1.0, 1.0), (0.3, 1.0 / n)]:
                sys.stdout.buffer.write(reduce(dtype, op, arrays, pre, post).tobytes())
"""


def results_with(simd: str) -> tuple[str, bytes]:
    environment = {**os.environ, "HVD_SIMD": simd}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True, timeout=50)
    name, _, results = done.stdout.partition(b"\n")
    return name.decode(), results


def test_all_instruction_sets_agree() -> None:
    """A wish that the processor can't fulfil falls back, so that this runs everywhere."""
    name, expected = results_with("baseline")
    assert name == "baseline"
    assert len(expected) > 100_000
    for wish in ("avx2", "avx512", "no-such-thing"):
        name, found = results_with(wish)
        assert name in {"baseline", "avx2", "avx512"}
        assert found == expected, f"{name} differs from baseline"
