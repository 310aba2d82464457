"""What users have reported of other systems, tried here; each check names its row."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf


def ranks() -> range:
    return range(hvd.size())


def check_half_precision_of_odd_sizes() -> None:
    """Row S10: alone, grouped, and as gradients."""
    sizes = (1, 2, 3, 7, 1023, 1025)
    mean = np.mean([r + 1.0 for r in ranks()])
    for dtype in (tf.float16, tf.bfloat16):
        given = [tf.cast(tf.fill(size, hvd.rank() + 1.0), dtype) for size in sizes]
        for tensor, grouped in zip(given, hvd.grouped_allreduce(given), strict=True):
            for got in (hvd.allreduce(tensor), grouped):
                assert got.dtype == dtype
                np.testing.assert_array_equal(tf.cast(got, tf.float64).numpy(), np.full(tensor.shape, mean))


def check_half_precision_neither_overflows_nor_vanishes() -> None:
    """Row P30."""
    for value in (30000.0, 6e-8):
        given = tf.constant([value] * 3, tf.float16)
        for got in (hvd.allreduce(given), *hvd.grouped_allreduce([given, given])):
            assert got.numpy().tolist() == given.numpy().tolist()


def check_compression_of_large_values() -> None:
    """Row C03: fp16 overflows, as documented; bf16 does not; integers and smaller floats pass as they are."""
    large = tf.constant([1e6, 1.0])
    assert np.isinf(hvd.allreduce(large, compression=hvd.Compression.fp16).numpy()[0])
    kept = hvd.allreduce(large, compression=hvd.Compression.bf16)
    assert kept.dtype == tf.float32
    np.testing.assert_allclose(kept.numpy(), large.numpy(), rtol=1e-2)
    for dtype in (tf.int32, tf.int64, tf.bfloat16, tf.float16):
        got = hvd.allreduce(tf.constant([3], dtype), op=hvd.Max, compression=hvd.Compression.fp16)
        assert (got.dtype, got.numpy().tolist()) == (dtype, [3])


class Negated(hvd.Compression.none):
    """A compressor of a user."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return -tensor, "kept"

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        assert ctx == "kept"
        return -2.0 * tensor


def check_a_compressor_of_ones_own() -> None:
    given = tf.constant([1.0, 2.0])
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), dense_shape=tf.constant([3, 2]))
    for wrap in (lambda f: f, tf.function):
        assert wrap(hvd.allreduce)(given, compression=Negated).numpy().tolist() == [2.0, 4.0]
        gathered = wrap(hvd.allreduce)(slices, op=hvd.Sum, compression=Negated)
        assert gathered.values.numpy().tolist() == [[2.0, 2.0]] * hvd.size()


def check_nothing_to_send_to_some() -> None:
    """Rows S04 and S05: each rank sends (receiver + sender) % 3 rows; gradients flow back to the senders."""
    me, size = hvd.rank(), hvd.size()
    splits = [(receiver + me) % 3 for receiver in ranks()]
    x = tf.cast(tf.range(2 * sum(splits)), tf.float32)
    x = tf.reshape(x, (-1, 2)) + 100.0 * me
    for wrap in (lambda f: f, tf.function):
        for given in (splits, tf.constant(splits, tf.int32), tf.constant(splits, tf.int64)):
            with tf.GradientTape() as tape:
                tape.watch(x)
                rows, received = wrap(hvd.alltoall)(x, given)
                loss = tf.reduce_sum(rows) * (me + 1.0)
            assert received.numpy().tolist() == [(me + sender) % 3 for sender in ranks()]
            assert rows.shape == (sum((me + sender) % 3 for sender in ranks()), 2)
            wanted = [[receiver + 1.0] * 2 for receiver in ranks() for _ in range(splits[receiver])]
            got = tape.gradient(loss, x)
            np.testing.assert_array_equal(got.numpy(), np.array(wanted).reshape(-1, 2))
    empty = tf.zeros((0, 4))
    rows, received = hvd.alltoall(empty, [0] * size)
    assert rows.shape == (0, 4)
    assert received.numpy().tolist() == [0] * size


def check_a_joined_rank_gives_zeros() -> None:
    """Row S31: the average divides by all ranks, joined or not."""
    last = hvd.size() - 1
    if hvd.rank() != last:
        others = hvd.size() - 1
        for wrap in (lambda f: f, tf.function):
            assert float(wrap(hvd.allreduce)(tf.constant(6.0))) == 6.0 * others / hvd.size()
            assert float(wrap(lambda t: hvd.allreduce(t, op=hvd.Sum))(tf.constant(4.0))) == 4.0 * others
            assert float(wrap(lambda t: hvd.allreduce(t, op=hvd.Min))(tf.constant(4.0))) == 0.0
            several = wrap(lambda t: hvd.grouped_allreduce([t, tf.zeros(0)], op=hvd.Sum))(tf.constant([4.0]))
            assert several[0].numpy().tolist() == [4.0 * others]
    assert int(hvd.join()) in ranks()


def check_groups_of_several_dtypes() -> None:
    """Row S33: in one group, and a gradient that one rank does not have."""
    variables = [
        tf.Variable(tf.zeros(2, dtype), name=f"v{index}")
        for index, dtype in enumerate([tf.float32, tf.float16, tf.float32, tf.float64])
    ]
    for groups in (1, [variables], [variables[1:3]]):
        for wrap in (lambda f: f, tf.function):

            def step(groups: Any = groups) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.add_n([tf.cast(tf.reduce_sum(v), tf.float64) * i for i, v in enumerate(variables)])
                return hvd.DistributedGradientTape(tape, groups=groups).gradient(loss, variables)

            grads = wrap(step)()
            assert [g.dtype for g in grads] == [v.dtype for v in variables]
            assert [g.numpy().tolist() for g in grads] == [[i, i] for i in range(4)]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variables[0]) + (tf.reduce_sum(variables[2]) if hvd.rank() else 0.0)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"rank 0 has 1 and rank 1 has 2.*'v2'"):
        hvd.DistributedGradientTape(tape, groups=2).gradient(loss, variables)


def check_process_sets_that_come_and_go() -> None:
    """Row S48."""
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    me = hvd.rank()
    for turn in range(50):
        group = hvd.add_process_set([0, 1] if turn % 2 and hvd.size() > 2 else [turn % 2])
        if group.included() and turn % 10 < 2:
            assert group.ranks is not None
            got = hvd.allreduce(tf.constant(float(me)), process_set=group, name="same name")
            assert float(got) == np.mean(group.ranks)
        assert hvd.remove_process_set(group)
    with pytest.raises(TypeError, match="not registered"):
        hvd.allreduce(tf.constant(1.0), process_set=group)
    hvd.shutdown()
    hvd.init()


def check_batch_norm_of_an_empty_batch() -> None:
    """Row S49: a rank without rows takes part, and has the statistics of the others."""
    rows = 0 if hvd.rank() == 0 else 4
    x = tf.reshape(tf.range(rows * 3, dtype=tf.float32), (rows, 3))
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer.build((None, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
        loss = tf.reduce_sum(y * y)
    assert y.shape == x.shape
    assert bool(tf.reduce_all(tf.math.is_finite(tape.gradient(loss, x))))
    np.testing.assert_allclose(layer.moving_mean.numpy(), [4.5, 5.5, 6.5], rtol=1e-6)
    np.testing.assert_allclose(layer.moving_variance.numpy(), [11.25] * 3, rtol=1e-5)


def check_inputs_are_left_alone() -> None:
    """Rows S07 and S52: an operation gives a new tensor; what is strided is sent as it looks."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    got = hvd.allreduce(x.T[:, ::2], op=hvd.Sum)
    np.testing.assert_array_equal(got.numpy(), x.T[:, ::2] * hvd.size())
    variable = tf.Variable(x)
    assert hvd.broadcast(variable, 0) is not variable
    np.testing.assert_array_equal(variable.numpy(), x)


def check_torch_in_the_same_rank() -> None:
    """One job serves both frameworks: an operation of one is in flight while the other's runs."""
    import horovod.torch as hvd_torch
    import torch

    assert hvd_torch.rank() == hvd.rank()
    for _ in range(3):
        started = hvd_torch.allreduce_async(torch.ones(5), op=hvd_torch.Sum)
        assert float(hvd.allreduce(tf.constant(2.0), op=hvd.Sum)) == 2.0 * hvd.size()
        assert hvd_torch.synchronize(started).tolist() == [hvd.size()] * 5
    w, v = torch.nn.Parameter(torch.zeros(2)), tf.keras.Variable([0.0, 0.0])
    theirs = hvd_torch.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), named_parameters=[("w", w)])
    ours = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    for _ in range(2):
        (w.sum() * (hvd.rank() + 1.0)).backward()
        ours.apply([tf.ones(2) * (hvd.rank() + 1.0)], [v])
        theirs.step()
        theirs.zero_grad()
    assert w.tolist() == v.numpy().tolist() == [-2.0 * np.mean([r + 1.0 for r in ranks()])] * 2
