"""Keras on the jax backend: the same numbers out of jitted steps, and TensorFlow and torch are not needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import horovod.keras as hvd
import jax
import keras
import numpy as np
import pytest
from horovod.common.array_signatures import require_client
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_pickled
from horovod.common.process_sets import global_process_set

# Keras itself may load TensorFlow later on, where it is installed: to seed it.
LOADED_BY_US = {"tensorflow", "torch"} & set(sys.modules)


def everybodys(value: Any) -> list[Any]:
    return allgather_pickled(require_client(), value, None, global_process_set)


def data(rows: int = 8) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, 6)).astype("float32"), rng.normal(size=(rows, 2)).astype("float32")


def mine(rows: Any) -> Any:
    return rows[hvd.rank() :: hvd.size()]


def model(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])


def fit(net: Any, optimizer: Any, x: Any, y: Any, batch: int = 8, **options: Any) -> Any:
    compiled = {name: options.pop(name) for name in ("run_eagerly", "jit_compile") if name in options}
    net.compile(optimizer=optimizer, loss="mse", **compiled)
    return net.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=0, **options)


def assert_like(trained: Any, plain: Any, tolerance: float = 1e-5) -> None:
    digests = everybodys([w.tobytes() for w in trained.get_weights()])
    assert all(digest == digests[0] for digest in digests)
    for got, expected in zip(trained.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=tolerance, rtol=0)


def check_fit_gives_the_weights_of_one_process() -> None:
    assert keras.backend.backend() == "jax"
    x, y = data()
    makes: list[Callable[[], Any]] = [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5), lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    ]  # fmt: skip
    for make in makes:
        plain, trained, optimizer = model(), model(), make()
        # Eagerly is faster, except for the conditions of accumulation, which are compiled anew in each step.
        fit(plain, optimizer, x, y, run_eagerly=not optimizer.gradient_accumulation_steps)
        fit(trained, hvd.DistributedOptimizer(make()), mine(x), mine(y))
        assert_like(trained, plain)


def check_other_ways_to_step() -> None:
    """A last batch that is shorter, without jit, eagerly, one batch at a time."""
    x, y = data(12)
    sgd = lambda: keras.optimizers.SGD(0.1)  # noqa: E731
    for options in ({}, {"jit_compile": False}, {"run_eagerly": True}):
        plain, trained = model(), model()
        fit(plain, sgd(), x, y, 4 * hvd.size(), run_eagerly=True)
        fit(trained, hvd.DistributedOptimizer(sgd()), mine(x), mine(y), 4, **options)
        assert_like(trained, plain)
    plain.train_on_batch(x, y)
    trained.train_on_batch(mine(x), mine(y))
    assert_like(trained, plain)


def check_options() -> None:
    x, y = data()
    plain, summed = model(), model()
    fit(plain, keras.optimizers.SGD(0.1), x, y, run_eagerly=True)
    fit(summed, keras.optimizers.SGD(0.1 * hvd.size()), x, y, run_eagerly=True)
    for options, expected in [
        ({"compression": hvd.Compression.bf16}, plain), ({"compression": hvd.Compression.fp16}, plain),
        ({"groups": 2}, plain), ({"gradient_predivide_factor": 2.0}, plain), ({"op": hvd.Sum}, summed),
    ]:  # fmt: skip
        trained = model()
        fit(trained, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options), mine(x), mine(y))
        assert_like(trained, expected, 1e-2 if "compression" in options else 1e-5)
    trained = model()
    groups = [[trained.layers[0].kernel, trained.layers[1].bias]]
    fit(trained, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), groups=groups), mine(x), mine(y))
    assert_like(trained, plain)


def check_passes_are_summed() -> None:
    """Rows S26 and S27; in jitted steps, eagerly, and where a LossScaleOptimizer holds the optimizer."""
    total = sum(3.0 + 4.0 * rank for rank in range(hvd.size())) / hvd.size()
    for average, scaled, jit in ((False, False, True), (True, False, False), (True, True, True), (False, True, True)):
        optimizer: Any = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
        w, step = keras.Variable(np.zeros(1, "float32"), name="w"), -total / 2 if average else -total
        optimizer.build([w])
        apply = jax.jit(optimizer.stateless_apply) if jit else optimizer.stateless_apply
        state, values = [v.value for v in optimizer.variables], [w.value]
        for turn in (1, 2) if jit else (1,):
            for grad in (1.0 + 2.0 * hvd.rank(), 2.0 + 2.0 * hvd.rank()):
                assert np.asarray(values[0]).tolist() == [(turn - 1) * step]
                values, state = apply(state, [np.array([grad], "float32")], values)
            assert np.asarray(values[0]).tolist() == [turn * step]
        for variable, value in zip(optimizer.variables, state, strict=True):
            variable.assign(value)
        assert int(optimizer.iterations) == turn


def check_passes_are_reduced_once() -> None:
    """The passes before the last one send nothing: a rank that makes one more of them does not wait."""
    x, y = data()
    plain, trained = model(), model()
    fit(plain, keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), x, y, 4)
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    fit(trained, optimizer, mine(x), mine(y), 4 // hvd.size())
    assert_like(trained, plain)
    if hvd.rank() == 0:
        trained.train_on_batch(mine(x), mine(y))
    everybodys(None)


def check_what_passes_can_not_do() -> None:
    wrap, sgd = hvd.PartialDistributedOptimizer, keras.optimizers.SGD
    used = sgd(0.1)
    used.build([keras.Variable(np.zeros(1, "float32"))])
    for optimizer in (used, sgd(0.1, gradient_accumulation_steps=2)):
        with pytest.raises(ValueError, match="wrap an optimizer that has not been used"):
            wrap(optimizer, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="wrap the inner optimizer"):
        wrap(keras.optimizers.LossScaleOptimizer(sgd(0.1)), backward_passes_per_step=2)


def check_local_layers() -> None:
    x, y = data()
    net = model()
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=net.layers[-1])
    fit(net, optimizer, mine(x), mine(y))
    weights = everybodys(net.get_weights())
    assert np.array_equal(weights[0][0], weights[1][0])
    assert not np.array_equal(weights[0][2], weights[1][2])


def check_loss_scaling() -> None:
    """Row S40: whichever is wrapped, ranks decide by the same gradients; also where compile adds the scaling."""
    x, y = data()
    scale = keras.optimizers.LossScaleOptimizer
    plain, inner, outer = model(), model(), model()
    fit(plain, scale(keras.optimizers.SGD(0.1)), x, y, run_eagerly=True)
    fit(outer, hvd.DistributedOptimizer(scale(keras.optimizers.SGD(0.1))), mine(x), mine(y))
    fit(inner, scale(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))), mine(x), mine(y))
    assert_like(outer, plain)
    assert_like(inner, plain)
    broken = mine(x).copy()
    broken[0] *= np.inf if hvd.rank() == 1 else 1.0
    before = outer.get_weights()
    outer.fit(broken, mine(y), batch_size=8, epochs=1, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(outer.get_weights(), before, strict=True))
    assert len(set(everybodys(float(outer.optimizer.dynamic_scale)))) == 1
    keras.config.set_dtype_policy("mixed_float16")
    try:
        mixed = model()
        fit(mixed, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), mine(x), mine(y))
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(mixed.optimizer, keras.optimizers.LossScaleOptimizer)
    assert_like(mixed, mixed)


def check_callbacks() -> None:
    x, y = data()
    net = model(hvd.rank())
    expected = everybodys(net.get_weights())[0]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0, momentum=0.9))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = fit(net, optimizer, mine(x), mine(y), callbacks=callbacks)
    assert all(np.array_equal(a, b) for a, b in zip(net.get_weights(), expected, strict=True))
    losses = everybodys(history.history["loss"])
    assert losses[0] == losses[1]
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1, 2, momentum_correction=False)
    history = fit(net, optimizer, mine(x), mine(y), callbacks=[warmup])
    np.testing.assert_allclose(history.history["lr"], [0.075, 0.1, 0.1], rtol=1e-6)
    assert_like(net, net)


def check_different_starts_are_told() -> None:
    x, y = data()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.warns(RuntimeWarning, match="weights differ before the first update"):
        fit(model(hvd.rank()), optimizer, mine(x), mine(y))


def check_different_models_are_told() -> None:
    x, y = data()
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, use_bias=bool(hvd.rank()))])
    with pytest.raises(HorovodInternalError, match="Mismatched gradients"):
        fit(net, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), mine(x), mine(y))


def check_saved_models() -> None:
    import tempfile
    from pathlib import Path

    x, y = data()
    net = model()
    fit(net, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), mine(x), mine(y))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        net.save(path)
        assert type(keras.models.load_model(path).optimizer) is keras.optimizers.Adam
        loaded = hvd.load_model(path)
    for trained in (net, loaded):
        trained.fit(mine(x), mine(y), batch_size=8, epochs=1, shuffle=False, verbose=0)
    assert_like(loaded, net, 1e-6)


def check_values() -> None:
    me = hvd.rank()
    assert float(hvd.allreduce(1.0 + me)) == 1.5
    assert float(hvd.allreduce(np.float32(1.0 + me), op=hvd.Sum, compression=hvd.Compression.fp16)) == 3.0
    assert np.asarray(hvd.allgather(np.array([me]))).tolist() == [0, 1]
    assert np.asarray(hvd.broadcast([me, 7], 1)).tolist() == [1, 7]
    assert np.asarray(hvd.reducescatter(np.ones((2, 2), "float32"), op=hvd.Sum)).tolist() == [[2.0, 2.0]]
    half = keras.ops.cast([1.0 + me], "bfloat16")
    assert hvd.allreduce(half).dtype == half.dtype
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)
    with pytest.raises(ValueError, match="outside of jitted functions"):
        jax.jit(hvd.allreduce)(keras.ops.ones(2))


def check_elastic_states_are_refused() -> None:
    with pytest.raises(ValueError, match="Elastic training is not supported with Keras on the jax backend"):
        hvd.elastic.KerasState(model())
    with pytest.raises(ValueError, match="Elastic training is not supported with Keras on the jax backend"):
        hvd.elastic.run(lambda state: None)


def check_nothing_else_was_imported() -> None:
    assert not LOADED_BY_US
    assert not [name for name in sys.modules if name.startswith(("horovod.tensorflow", "horovod.torch"))]


def check_a_rank_that_leaves_ends_the_step() -> None:
    """The error that jax makes of ours is a RuntimeError, and has our text."""
    x, y = data()
    net = model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    fit(net, optimizer, mine(x), mine(y))
    if hvd.rank() == 0:
        with pytest.raises(RuntimeError, match="Horovod has been shut down"):
            net.fit(mine(x), mine(y), batch_size=8, verbose=0)
    hvd.shutdown()
    hvd.init()
