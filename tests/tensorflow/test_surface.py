"""The public names and signatures, a world of size 1, and what an import says where a framework is missing."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.keras as hvd_keras  # noqa: E402
import horovod.tensorflow as hvd  # noqa: E402
import horovod.tensorflow.keras as hvd_tf_keras  # noqa: E402
from horovod.common.process_sets import global_process_set as PS  # noqa: E402
from horovod.tensorflow import compression, mpi_ops  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]

NONE = hvd.Compression.none
DEVICES = [("device_dense", ""), ("device_sparse", "")]
FACTORS = [("prescale_factor", 1.0), ("postscale_factor", 1.0)]
SCOPE = ("ignore_name_scope", False)
SET = ("process_set", PS)
TAPE = [
    ("gradtape", ...), *DEVICES, ("compression", NONE), ("sparse_as_dense", False), ("op", hvd.Average),
    ("gradient_predivide_factor", 1.0), ("num_groups", 0), ("groups", None), SET,
]  # fmt: skip

SIGNATURES: dict[str, list[tuple[str, Any]]] = {
    "allreduce": [
        ("tensor", ...), ("average", None), *DEVICES, ("compression", NONE), ("op", None), *FACTORS, ("name", None), SET,
        SCOPE,
    ],
    "grouped_allreduce": [
        ("tensors", ...), ("average", None), *DEVICES, ("compression", NONE), ("op", None), *FACTORS, SET, SCOPE,
        ("name", None),
    ],
    "reducescatter": [
        ("tensor", ...), ("device_dense", ""), ("compression", NONE), ("op", hvd.Average), ("name", None), SET, SCOPE,
        *FACTORS,
    ],
    "grouped_reducescatter": [
        ("tensors", ...), ("device_dense", ""), ("compression", NONE), ("op", hvd.Average), SET, *FACTORS,
    ],
    "allgather": [("tensor", ...), ("name", None), SCOPE, SET],
    "grouped_allgather": [("tensors", ...), ("name", None), SCOPE, SET],
    "broadcast": [("tensor", ...), ("root_rank", ...), ("name", None), SCOPE, SET],
    "broadcast_": [("variables", ...), ("root_rank", ...), ("name", None), SET],
    "alltoall": [("tensor", ...), ("splits", None), ("name", None), SCOPE, SET],
    "join": [],
    "size_op": [("process_set_id", 0), ("name", None)],
    "process_set_included_op": [("process_set_id", 0), ("name", None)],
    "rank_op": [("name", None)],
    "broadcast_variables": [("variables", ...), ("root_rank", ...), SET, ("inplace", False)],
    "broadcast_global_variables": [("root_rank", ...)],
    "broadcast_object": [("obj", ...), ("root_rank", 0), ("session", None), ("name", None), SET],
    "broadcast_object_fn": [("root_rank", 0), ("session", None), ("name", None), SET],
    "allgather_object": [("obj", ...), ("session", None), ("name", None), SET],
    "DistributedOptimizer": [
        ("optimizer", ...), ("name", None), ("use_locking", False), *DEVICES, ("compression", NONE),
        ("sparse_as_dense", False), ("backward_passes_per_step", 1), ("op", hvd.Average),
        ("gradient_predivide_factor", 1.0), ("average_aggregated_gradients", False), ("num_groups", 0),
        ("groups", None), SET, ("scale_local_gradients", True),
    ],
    "DistributedGradientTape": [*TAPE, ("scale_local_gradients", True)],
    "PartialDistributedGradientTape": [*TAPE, ("local_layers", None), ("scale_local_gradients", True)],
    "BroadcastGlobalVariablesHook": [("root_rank", ...), ("device", "")],
}  # fmt: skip

KERAS_SIGNATURES: dict[str, list[tuple[str, Any]]] = {
    "DistributedOptimizer": [
        ("optimizer", ...), ("name", None), *DEVICES, ("compression", NONE), ("sparse_as_dense", False),
        ("gradient_predivide_factor", 1.0), ("op", hvd.Average), ("backward_passes_per_step", 1),
        ("average_aggregated_gradients", False), ("num_groups", 0), ("groups", None), SET,
        ("scale_local_gradients", True),
    ],
    "load_model": [
        ("filepath", ...), ("custom_optimizers", None), ("custom_objects", None), ("compression", NONE),
        ("legacy_opts", False),
    ],
    "allreduce": [
        ("value", ...), ("name", None), ("average", None), *FACTORS, ("op", None), ("compression", None),
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of size 1."""
    hvd.init()
    yield
    hvd.shutdown()


def parameters(function: Any) -> list[tuple[str, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, ... if p.default is inspect.Parameter.empty else p.default) for p in found]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    assert parameters(getattr(hvd, name)) == SIGNATURES[name]


@pytest.mark.parametrize("name", KERAS_SIGNATURES)
def test_keras_signature(name: str) -> None:
    assert parameters(getattr(hvd_tf_keras, name)) == KERAS_SIGNATURES[name]


def test_names() -> None:
    for module in (hvd, hvd_keras, hvd_tf_keras, mpi_ops, hvd_keras.callbacks, hvd_tf_keras.callbacks):
        assert all(hasattr(module, name) for name in module.__all__)
    assert {"Adasum", "PartialDistributedOptimizer"} <= set(hvd_keras.__all__)
    assert {"ProcessSet", "add_process_set", "remove_process_set"} <= set(hvd_tf_keras.__all__)
    assert {"_basics", "handle_average_backwards_compatibility"} <= set(vars(mpi_ops))
    assert issubclass(hvd.Compression.fp16, compression.Compressor)


ELASTIC: dict[str, dict[str, list[tuple[str, Any]]]] = {
    "horovod.tensorflow.elastic": {
        "run": [("func", ...)],
        "TensorFlowState": [("variables", None), ("session", None), ("kwargs", ...)],
        "TensorFlowKerasState": [("model", ...), ("optimizer", None), ("backend", None), ("kwargs", ...)],
    },
    **{
        f"horovod.{name}.elastic": {
            "run": [("func", ...)],
            "KerasState": [("model", ...), ("optimizer", None), ("kwargs", ...)],
            "CommitStateCallback": [("state", ...), ("batches_per_commit", 1)],
            "UpdateBatchStateCallback": [("state", ...)],
            "UpdateEpochStateCallback": [("state", ...)],
        }
        for name in ("keras", "tensorflow.keras")
    },
}


@pytest.mark.parametrize("module", ELASTIC)
def test_elastic_names(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted(ELASTIC[module])
    for name, expected in ELASTIC[module].items():
        assert parameters(getattr(loaded, name)) == expected, name
    assert importlib.import_module(module.removesuffix(".elastic")).elastic is loaded
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = loaded.nonsense
    assert issubclass(hvd_keras.elastic.KerasState, hvd.elastic.TensorFlowKerasState)


def test_everything_works_alone() -> None:
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter, lambda t: hvd.broadcast(t, 0)):
        for wrap in (lambda f: f, tf.function):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = wrap(call)(x)
            assert y.numpy().tolist() == x.numpy().tolist()
            assert tape.gradient(y, x).numpy().tolist() == [[1.0, 1.0], [1.0, 1.0]]
    v = tf.Variable([1.0])
    hvd.broadcast_variables([v], 0)
    assert hvd.broadcast_object({"a": 1}) == {"a": 1}
    assert int(hvd.join()) == 0


def test_a_wrapped_optimizer_works_alone() -> None:
    w = tf.keras.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5))
    optimizer.apply([tf.constant([1.0])], [w])
    assert w.numpy().tolist() == [0.5]
    assert optimizer.__class__ is tf.keras.optimizers.SGD
    assert type(optimizer).__name__ == "SGD"


def test_before_init() -> None:
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized") as raised:
        hvd.allreduce(tf.ones(1))
    assert isinstance(raised.value, hvd.HorovodInternalError)
    assert int(hvd.process_set_included_op()) == -1
    with pytest.raises(tf.errors.FailedPreconditionError, match="not been initialized"):
        tf.function(lambda: hvd.size_op())()


def test_synchronized_normalization_alone() -> None:
    x = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
    plain, ours = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    np.testing.assert_allclose(ours(x, training=True), plain(x, training=True), atol=1e-6)
    assert ours.name.startswith("sync_batch_normalization")
    for fused in (True, None):
        with pytest.raises(ValueError, match="fused"):
            hvd.SyncBatchNormalization(fused=fused)
    copy = type(ours).from_config(ours.get_config())
    assert isinstance(copy, hvd.SyncBatchNormalization)


def test_helpers_that_other_packages_import() -> None:
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    references = hvd.util.vars_to_refs(variables)
    assert hash(references)
    back = hvd.util.refs_to_vars(references)
    assert back[0] is variables[0]
    assert back[1][0] is variables[1][0]
    assert hvd._executing_eagerly()
    assert not tf.function(lambda: tf.constant(hvd._executing_eagerly()))()
    assert hvd._IS_TF2


def test_check_build_knows_the_frameworks() -> None:
    from horovod.runner.check_build import report_lines

    text = "\n".join(report_lines())
    assert f"[X] TensorFlow: {tf.__version__}" in text
    assert f"[X] Keras: {tf.keras.__version__}" in text


def run_python(source: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=100,
        env={"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
    )  # fmt: skip
    return done.stdout


BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
for module in {modules}:
    try:
        __import__(module)
    except ModuleNotFoundError as error:
        print(error, error.name)
"""


def test_imports_without_tensorflow_name_the_extra() -> None:
    text = run_python(BLOCKED.format(names=["tensorflow"], modules=["horovod.tensorflow", "horovod.tensorflow.keras"]))
    assert text.count("pip install 'hvd[tensorflow]'") == 2
    assert text.splitlines()[0].endswith(" tensorflow")
    text = run_python(BLOCKED.format(names=["keras"], modules=["horovod.keras"]))
    assert "horovod.keras needs Keras" in text
    assert "KERAS_BACKEND=torch" in text


def test_other_backends_of_keras_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(
        ValueError, match=r"backend 'jax' here, for which Horovod can't reduce gradients: set KERAS_BACKEND"
    ):
        hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD())
    with pytest.raises(ValueError, match="KERAS_BACKEND=torch"):
        hvd_keras.allreduce(1.0)


def test_torch_and_tensorflow_do_not_load_each_other() -> None:
    text = run_python("import sys, horovod.torch; print('tensorflow' in sys.modules, 'keras' in sys.modules)")
    assert text == "False False\n"
    text = run_python("import sys, horovod.tensorflow; print('torch' in sys.modules, 'horovod._keras' in sys.modules)")
    assert text == "False False\n"
