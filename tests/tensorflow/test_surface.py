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
from horovod.tensorflow import compression, mpi_ops  # noqa: E402
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager  # noqa: E402

from tests.tensorflow import surface  # noqa: E402
from tests.torch import surface as torch_surface  # noqa: E402

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of size 1."""
    hvd.init()
    yield
    hvd.shutdown()


def _default(value: object) -> str:
    known = {id(hvd.global_process_set): "PS", id(hvd.Compression.none): "none"}
    return known.get(id(value), repr(value))


def _shown(called: Any) -> list[str]:
    """Arguments as the catalogue writes them: defaults, but no types."""
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        kinds.get(p.kind, "") + p.name + ("" if p.default is inspect.Parameter.empty else f"={_default(p.default)}")
        for p in inspect.signature(called).parameters.values()
    ]


def _listed(module: str, name: str) -> list[str]:
    text = surface.CHANGED.get((module, name), surface.SURFACE[module][name])
    return text.replace("=Average", "=0").replace("=Sum", "=1").split(", ") if text else []


def test_signatures() -> None:
    """Of every function and class that Horovod has, in the modules where it has them."""
    listed = {(module, name): _listed(module, name) for module, names in surface.SURFACE.items() for name in names}
    shown = {(module, name): _shown(getattr(importlib.import_module(module), name)) for module, name in listed}
    assert shown == listed
    assert set(surface.CHANGED) <= set(listed)


def test_names() -> None:
    for module, names in surface.NAMES.items():
        loaded = importlib.import_module(module)
        assert not [name for name in names if not hasattr(loaded, name)], module
        public = {name for name in (*names, *surface.SURFACE[module]) if not name.startswith("_")}
        assert public <= set(loaded.__all__), module
    for module in surface.SURFACE:
        loaded = importlib.import_module(module)
        assert all(hasattr(loaded, name) for name in loaded.__all__), module
    assert {name: getattr(hvd, name) for name in torch_surface.CONSTANTS} == torch_surface.CONSTANTS
    assert issubclass(hvd.Compression.fp16, compression.Compressor)
    assert mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0]}


@pytest.mark.parametrize("module", [name for name in surface.SURFACE if name.endswith(".elastic")])
def test_elastic_names(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == sorted(surface.SURFACE[module])
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


def doubled(grads: Any, variables: Any) -> list[Any]:
    """Stands for a reduction."""
    return [grad * 2.0 for grad in grads]


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_the_eager_helper_of_several_passes(average: bool, traced: bool) -> None:
    """Row S27: the reduction in the third pass, sums that start anew, updates after it alone."""
    helper = LocalGradientAggregationHelperEager(3, doubled, False, average)
    shared, mine, unused = (tf.Variable([0.0]) for _ in range(3))
    helper.register_local_var(mine)
    variables, applied = [shared, mine, unused], tf.Variable(0)

    def one_pass(grad: Any) -> Any:
        grads = helper.compute_gradients([grad, grad, None], variables)
        helper.apply_gradients(lambda: applied.assign_add(1), None)
        return grads[:2]

    run = tf.function(one_pass) if traced else one_pass
    for turn in range(2):
        for number in (1, 2, 3):
            got = [g.numpy().tolist() for g in run(tf.constant([float(number)]))]
            assert int(helper.counter) == number % 3
            assert int(applied) == turn + (number == 3)
        total = 6.0 / (3 if average else 1)
        assert got == [[2 * total], [total]]


def test_the_helper_of_several_passes_in_a_session() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        kind = hvd.LocalGradientAggregationHelper.OPTIMIZER_TYPE_LEGACY
        helper = hvd.LocalGradientAggregationHelper(2, doubled, False, True, 0, kind, name="test")
        shared, mine = v1.get_variable("shared", initializer=[0.0]), v1.get_variable("mine", initializer=[0.0])
        helper.register_local_var(mine)
        fed = v1.placeholder(tf.float32, [1])
        grads = helper.compute_gradients([fed, fed], [shared, mine])
        update = helper.apply_gradients(
            lambda: shared.assign(grads[0]).op, None, zip(grads, [shared, mine], strict=True)
        )
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for number, expected in [(1.0, 0.0), (3.0, 4.0), (5.0, 4.0), (7.0, 12.0)]:
                session.run(update, {fed: [number]})
                assert session.run(shared).tolist() == [expected]
            assert int(session.run(helper.counter)) == 4
        assert next(v.name for v in v1.local_variables()) == "aggregation_variables_test0/aggregation_counter:0"
    with pytest.raises(ValueError, match="needs a graph"):
        helper.compute_gradients([tf.ones(1)], [tf.Variable([0.0])])


def test_counters_of_passes_can_be_read() -> None:
    w = tf.keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), backward_passes_per_step=3)
    seen = []
    for _ in range(4):
        optimizer.apply([tf.constant([1.0])], [w])
        seen.append(int(optimizer._agg_helper.counter))
    assert seen == [1, 2, 0, 1]
    assert hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))._agg_helper is None


def test_a_gradient_that_comes_in_one_pass_only_is_applied_once() -> None:
    a, b = tf.keras.Variable([0.0]), tf.keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    optimizer.build([a, b])
    one = tf.constant([1.0])
    for grads in ([one, one], [None, one], [None, one], [one, None]):
        optimizer.apply(grads, [a, b])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([-2.0], [-3.0])
    optimizer.apply([one, one + 1.0], [b, a])  # in another order
    optimizer.apply([one, one], [a, b])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([-5.0], [-5.0])


def test_names_with_an_underscore_work() -> None:
    x = tf.constant([[1.0, 2.0]])
    for call in (hvd._allreduce, hvd._reducescatter, hvd._allreduce_cond, mpi_ops._allreduce):
        assert call(x).numpy().tolist() == [[1.0, 2.0]]
    for several in (hvd._grouped_allreduce, hvd._grouped_reducescatter):
        assert [t.numpy().tolist() for t in several([x, x])] == [[[1.0, 2.0]]] * 2
    reduce = hvd._make_allreduce_grads_fn("name", "", "", hvd.Compression.none, False, hvd.Average, 1.0, None)
    assert reduce([x, None], [tf.Variable(x), tf.Variable(x)]) == [x, None]


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
    monkeypatch.setattr("keras.backend.backend", lambda: "openvino")
    with pytest.raises(
        ValueError, match=r"backend 'openvino' here, for which Horovod can't reduce gradients: set KERAS_BACKEND"
    ):
        hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD())
    with pytest.raises(ValueError, match="tensorflow, torch or jax before"):
        hvd_keras.allreduce(1.0)


def test_optimizers_of_keras_2_are_refused() -> None:
    old = type("SGD", (), {"__module__": "tf_keras.src.optimizers.sgd"})()
    for wrap in (hvd.DistributedOptimizer, hvd_keras.DistributedOptimizer, hvd_tf_keras.DistributedOptimizer):
        with pytest.raises(ValueError, match=r"not the SGD of Keras 2 \(tf_keras\): use Keras 3, without TF_USE"):
            wrap(old)


def test_torch_and_tensorflow_do_not_load_each_other() -> None:
    text = run_python("import sys, horovod.torch; print('tensorflow' in sys.modules, 'keras' in sys.modules)")
    assert text == "False False\n"
    text = run_python("import sys, horovod.tensorflow; print('torch' in sys.modules, 'horovod._keras' in sys.modules)")
    assert text == "False False\n"
