"""Operations on real ranks, eagerly and in graphs; every expected value is computed from the formula of the inputs."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from horovod.common.calls import rows_of

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTEGERS = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (33, 1025)]


def ranks() -> range:
    return range(hvd.size())


def numbers(rank: int, shape: tuple[int, ...]) -> Any:
    """Small integers that differ by rank and place, exact in every dtype."""
    return ((np.arange(int(np.prod(shape))) * 3 + rank * 5) % 7).reshape(shape).astype(np.float64)


def mine(shape: tuple[int, ...], dtype: Any = tf.float32) -> Any:
    return tf.cast(numbers(hvd.rank(), shape), dtype)


def total(shape: tuple[int, ...]) -> Any:
    return np.sum([numbers(r, shape) for r in ranks()], axis=0)


def same(got: Any, expected: Any) -> bool:
    return got.shape == np.shape(expected) and bool(np.all(tf.cast(got, tf.float64).numpy() == expected))


def both(call: Any, *inputs: Any) -> list[Any]:
    """The results of a call, eager and inside a tf.function."""
    return [call(*inputs), tf.function(call)(*inputs)]


def check_allreduce_dtypes_and_shapes() -> None:
    for dtype in FLOATS + INTEGERS:
        for shape in SHAPES:
            x = mine(shape, dtype)
            got = hvd.allreduce(x, op=hvd.Sum)
            assert got.dtype == dtype
            assert same(got, total(shape)), (dtype, shape)
            assert same(x, numbers(hvd.rank(), shape))


def check_allreduce_in_graphs() -> None:
    for dtype in (tf.float32, tf.bfloat16, tf.int64):
        for shape in SHAPES:
            got = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))(mine(shape, dtype))
            assert got.dtype == dtype
            assert same(got, total(shape)), (dtype, shape)


def check_allreduce_ops() -> None:
    stacked = np.stack([numbers(r, (5, 3)) + 1 for r in ranks()])
    x = mine((5, 3)) + 1
    for op, expected in [
        (hvd.Average, stacked.mean(0)), (hvd.Sum, stacked.sum(0)), (hvd.Min, stacked.min(0)),
        (hvd.Max, stacked.max(0)), (hvd.Product, stacked.prod(0)),
    ]:  # fmt: skip
        for got in both(lambda t, op=op: hvd.allreduce(t, op=op), x):
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
    np.testing.assert_allclose(scaled.numpy(), stacked.sum(0))
    flags = tf.constant([hvd.rank() == 0, False, True])
    assert hvd.allreduce(flags, op=hvd.Sum).numpy().tolist() == [True, False, True]
    assert hvd.allreduce(flags, op=hvd.Min).numpy().tolist() == [hvd.size() == 1, False, True]


def check_a_variable_and_a_list_can_be_given() -> None:
    assert same(hvd.allreduce(tf.Variable(mine((4,))), op=hvd.Sum), total((4,)))
    assert same(hvd.allreduce(mine((4,)).numpy().tolist(), op=hvd.Sum), total((4,)))


def check_average_argument_warns() -> None:
    with pytest.warns(DeprecationWarning, match="average"):
        got = hvd.allreduce(mine((3,)), average=False)
    assert same(got, total((3,)))
    with pytest.raises(ValueError, match="average"):
        hvd.allreduce(mine((3,)), average=True, op=hvd.Sum)


def check_grouped_allreduce() -> None:
    shapes = [(2, 3), (), (5,), (0, 4)]
    x = [mine(shape) for shape in shapes]
    for results in both(lambda *t: hvd.grouped_allreduce(list(t), op=hvd.Sum), *x):
        assert all(same(got, total(shape)) for got, shape in zip(results, shapes, strict=True))
    mixed = hvd.grouped_allreduce([mine((3,), tf.float64), mine((3,), tf.int32)], op=hvd.Sum, name="mixed")
    assert [t.dtype for t in mixed] == [tf.float64, tf.int32]
    assert all(same(got, total((3,))) for got in mixed)
    assert hvd.grouped_allreduce([]) == []


def check_compression_keeps_dtypes() -> None:
    x = mine((8,))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for got in both(lambda t, c=compression: hvd.allreduce(t, op=hvd.Sum, compression=c), x):
            assert got.dtype == tf.float32
            assert same(got, total((8,)))
    whole = hvd.allreduce(mine((8,), tf.int32), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert whole.dtype == tf.int32


def check_allgather() -> None:
    shape = lambda r: (r + 1, 2)  # noqa: E731
    expected = np.concatenate([numbers(r, shape(r)) for r in ranks()])
    for dtype in (tf.float32, tf.bool, tf.uint16):
        for got in both(hvd.allgather, mine(shape(hvd.rank()), dtype)):
            assert got.dtype == dtype
            assert same(got, expected != 0 if dtype == tf.bool else expected)
    several = hvd.grouped_allgather([mine(shape(hvd.rank())), mine((1,), tf.int64)])
    assert same(several[0], expected)
    assert same(several[1], np.concatenate([numbers(r, (1,)) for r in ranks()]))
    empty = mine((0, 2)) if hvd.rank() == 0 else mine((2, 2))
    assert hvd.allgather(empty).shape == (2 * (hvd.size() - 1), 2)


def check_broadcast() -> None:
    for root in ranks():
        for dtype in (tf.float32, tf.bool, tf.int8, tf.bfloat16):
            for shape in SHAPES[:-1]:
                x = mine(shape, dtype)
                expected = tf.cast(tf.cast(numbers(root, shape), dtype), tf.float64).numpy()
                assert same(hvd.broadcast(x, root), expected)
        (got,) = both(lambda t, r=root: hvd.broadcast(t, r), mine((4,)))[1:]
        assert same(got, numbers(root, (4,)))


def check_broadcast_in_place() -> None:
    root = hvd.size() - 1
    variables = [tf.Variable(mine((3,))), tf.Variable(mine((2, 2), tf.float64))]
    got = hvd.broadcast_(variables, root, name="in place")
    assert same(variables[0], numbers(root, (3,)))
    assert same(variables[1], numbers(root, (2, 2)))
    assert same(got[0], numbers(root, (3,)))
    variables[0].assign(mine((3,)) + 1)
    hvd.broadcast_variables(variables, root)
    assert same(variables[0], numbers(root, (3,)) + 1)

    @tf.function
    def send() -> None:
        hvd.broadcast_variables(variables, 0)

    send()
    assert same(variables[0], numbers(root, (3,)) + 1)
    with pytest.raises(ValueError, match="entry 0 is a int"):
        hvd.broadcast_variables([1], 0)


def check_alltoall() -> None:
    size, me = hvd.size(), hvd.rank()
    x = tf.range(size * 2) + 100 * me
    for got in both(hvd.alltoall, x):
        assert got.numpy().tolist() == [100 * r + 2 * me + i for r in ranks() for i in range(2)]
    splits = [r + 1 for r in ranks()]
    y = tf.range(sum(splits) + 1) + 100 * me  # one row is not sent
    expected = [100 * r + sum(splits[:me]) + i for r in ranks() for i in range(me + 1)]
    for output, received in both(lambda t: hvd.alltoall(t, splits), y):
        assert output.numpy().tolist() == expected
        assert received.numpy().tolist() == [me + 1] * size
        assert received.dtype == tf.int32


def check_reducescatter() -> None:
    size, me = hvd.size(), hvd.rank()
    for rows in (size, size + 1, 1):
        first, count = rows_of(rows, size, me)
        expected = total((rows, 3))[first : first + count]
        for got in both(lambda t: hvd.reducescatter(t, op=hvd.Sum), mine((rows, 3))):
            assert same(got, expected)
    parts = hvd.grouped_reducescatter([mine((size, 2)), mine((size,))], op=hvd.Sum)
    assert same(parts[0], total((size, 2))[me : me + 1])
    assert same(parts[1], total((size,))[me : me + 1])


def check_indexed_slices() -> None:
    me = hvd.rank()
    slices = tf.IndexedSlices(tf.ones((2, 3)) * (me + 1), tf.constant([me, 5], tf.int64), dense_shape=(9, 3))
    got = hvd.allreduce(slices, op=hvd.Average)
    assert isinstance(got, tf.IndexedSlices)
    dense = np.zeros((9, 3))
    for r in ranks():
        dense[[r, 5]] += (r + 1) / hvd.size()
    np.testing.assert_allclose(tf.convert_to_tensor(got).numpy(), dense, rtol=1e-6)
    mixed = hvd.grouped_allreduce([mine((2,)), slices], op=hvd.Sum)
    assert same(mixed[0], total((2,)))
    np.testing.assert_allclose(tf.convert_to_tensor(mixed[1]).numpy(), dense * hvd.size(), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="Sum and Average"):
        hvd.allreduce(slices, op=hvd.Max)
    with pytest.raises(NotImplementedError, match="prescale"):
        hvd.allreduce(slices, prescale_factor=2.0)


def gradient_of(call: Any, x: Any, weights: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(call(x) * weights)
    return tape.gradient(loss, x)


def check_gradients() -> None:
    """Row S34: the conventions of all bindings."""
    size, me = hvd.size(), hvd.rank()
    x = mine((size, 2))
    ones = tf.ones((size, 2)) * (me + 1)
    summed = float(sum(r + 1 for r in ranks()))
    for wrap in (lambda f: f, tf.function):
        grad = wrap(gradient_of)
        assert same(grad(lambda t: hvd.allreduce(t, op=hvd.Sum), x, ones), np.full((size, 2), summed))
        np.testing.assert_allclose(grad(hvd.allreduce, x, ones).numpy(), summed / size, rtol=1e-6)
        scaled = grad(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=2.0), x, ones)
        assert same(scaled, np.full((size, 2), 2 * summed))
        gathered = grad(lambda t: hvd.allgather(t), x, tf.ones((size * size, 2)) * (me + 1))
        np.testing.assert_allclose(gathered.numpy(), summed / size, rtol=1e-6)
        sent = grad(lambda t: hvd.broadcast(t, 0), x, ones)
        np.testing.assert_allclose(sent.numpy(), summed / size if me == 0 else 0.0, rtol=1e-6)
        back = grad(lambda t: hvd.alltoall(t, [1] * size)[0], x, ones)
        assert same(back, np.array([[r + 1.0] * 2 for r in ranks()]))
        part = grad(lambda t: hvd.reducescatter(t, op=hvd.Sum), x, tf.ones((1, 2)) * (me + 1))
        assert same(part, np.array([[(r + 1.0) * size] * 2 for r in ranks()]))


def check_grouped_gradients() -> None:
    x = [mine((2,)), mine((3,))]
    with tf.GradientTape() as tape:
        for t in x:
            tape.watch(t)
        a, b = hvd.grouped_allreduce(x, op=hvd.Sum)
        loss = tf.reduce_sum(a) + tf.reduce_sum(b)
    grads = tape.gradient(loss, x)
    assert all(same(grad, np.full(grad.shape, hvd.size())) for grad in grads)


def check_objects() -> None:
    me = hvd.rank()
    assert hvd.broadcast_object({"rank": me, "text": "x" * 1000 * me}, hvd.size() - 1)["rank"] == hvd.size() - 1
    assert hvd.broadcast_object_fn(0)([me]) == [0]
    assert hvd.allgather_object((me, "a" * me)) == [(r, "a" * r) for r in ranks()]


def check_numbers_asked_for_in_graphs() -> None:
    @tf.function
    def ask() -> Any:
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()

    assert [int(n) for n in ask()] == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), 1]
    assert int(hvd.process_set_included_op(77)) == -3
    with pytest.raises(tf.errors.InvalidArgumentError, match="no process set with id 77"):
        hvd.size_op(77)


def check_barrier_and_join() -> None:
    hvd.barrier()
    tf.function(lambda: (hvd.barrier(), tf.constant(1))[1])()
    if hvd.rank() == hvd.size() - 1:
        for _ in range(2):
            np.testing.assert_allclose(hvd.allreduce(tf.constant(8.0)).numpy(), 8.0 / hvd.size())
    last = hvd.join()
    assert last.dtype == tf.int32
    assert int(last) in ranks()
    assert len(set(hvd.allgather_object(int(last)))) == 1


def check_a_loop_in_a_graph() -> None:
    @tf.function
    def loop(x: Any) -> Any:
        for _ in tf.range(5):
            x = hvd.allreduce(x, op=hvd.Sum, name="in a loop")
        return x

    assert same(loop(tf.ones(3)), np.full(3, float(hvd.size() ** 5)))


def check_sizes_that_change_are_retraced() -> None:
    call = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), reduce_retracing=True)
    for rows in (4, 4, 3, 5, 4, 1):
        assert same(call(mine((rows, 2))), total((rows, 2)))
