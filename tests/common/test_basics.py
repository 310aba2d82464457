"""init, shutdown and the questions, in a world of size 1; and what happens without an agent."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from horovod.common import basics, process_sets
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import NotInitializedError, StartError
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.types import CollectiveKind, Signature

VARIABLES = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_AGENT", "HVD_SLOT_NONCE", "HOROVOD_DYNAMIC_PROCESS_SETS")


@pytest.fixture
def hvd(monkeypatch: pytest.MonkeyPatch) -> Iterator[HorovodBasics]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    hvd = HorovodBasics(__file__, "anything")
    yield hvd
    hvd.shutdown()


def test_identity_alone(hvd: HorovodBasics) -> None:
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (
        0, 1, 0, 1, 0, 1,
    )  # fmt: skip
    assert hvd.is_homogeneous()
    assert global_process_set.ranks == [0]
    assert global_process_set.rank() == 0
    assert global_process_set.size() == 1


@pytest.mark.parametrize(
    "question", ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous"]
)
def test_questions_before_init(hvd: HorovodBasics, question: str) -> None:
    with pytest.raises(ValueError, match=r"^Horovod has not been initialized; use hvd\.init\(\)\.$"):
        getattr(hvd, question)()


def test_built_and_enabled(hvd: HorovodBasics) -> None:
    assert [hvd.mpi_built(), hvd.mpi_enabled(), hvd.gloo_built(), hvd.gloo_enabled()] == [False, False, True, True]
    assert [hvd.ddl_built(), hvd.ccl_built(), hvd.cuda_built(), hvd.rocm_built()] == [False] * 4
    assert hvd.nccl_built() == 0
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    hvd.init()
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()


def test_timeline_needs_to_be_enabled(hvd: HorovodBasics) -> None:
    with pytest.raises(ValueError, match="initialized"):
        hvd.start_timeline("file")
    hvd.init()
    with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
        hvd.start_timeline("file")
    hvd.stop_timeline()


def test_many_cycles_and_hooks(hvd: HorovodBasics, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(basics, "_epoch_hooks", [lambda: calls.append(1)])
    for _ in range(100):
        hvd.init()
        hvd.shutdown()
    hvd.shutdown()
    assert len(calls) == 200  # after each init and each shutdown
    assert not hvd.is_initialized()


def test_size_without_agent_says_how_to_start(hvd: HorovodBasics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setenv("HOROVOD_RANK", "1")
    with pytest.raises(StartError, match="horovodrun -np 2"):
        hvd.init()
    assert not hvd.is_initialized()
    monkeypatch.setenv("HOROVOD_RANK", "2")
    with pytest.raises(ValueError, match="name no rank"):
        hvd.init()
    monkeypatch.setenv("HOROVOD_SIZE", "two")
    with pytest.raises(ValueError, match="HOROVOD_SIZE is 'two'"):
        hvd.init()


class Comm:
    """Looks like a communicator of mpi4py."""


Comm.__module__ = "mpi4py.MPI"


@pytest.mark.parametrize(
    ("rank", "size", "starter"),
    [
        ("RANK", "WORLD_SIZE", "torchrun"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),
        ("PMI_RANK", "PMI_SIZE", "mpiexec"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),
    ],
)
def test_one_of_many_without_an_agent_is_warned(
    hvd: HorovodBasics, monkeypatch: pytest.MonkeyPatch, rank: str, size: str, starter: str
) -> None:
    monkeypatch.setenv(rank, "1")
    monkeypatch.setenv(size, "1")
    hvd.init()  # one of one
    hvd.shutdown()
    monkeypatch.setenv(size, "2")
    with pytest.warns(RuntimeWarning, match=rf"one of 2 \({rank}=1, {size}=2, as {starter} .*horovodrun -np 2 python"):
        hvd.init()
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_SIZE", "1")
    hvd.init()


def test_settings_that_have_no_effect_alone_and_those_that_make_no_sense(
    hvd: HorovodBasics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", "x.json")
    with pytest.warns(RuntimeWarning, match="HOROVOD_TIMELINE=x.json: the timeline is not supported yet"):
        hvd.init()
    hvd.shutdown()
    monkeypatch.setenv("HVD_SIMD", "foo")
    with pytest.raises(StartError, match="HVD_SIMD is 'foo', but it must be avx512, avx2 or baseline"):
        hvd.init()


def test_comm_argument(hvd: HorovodBasics) -> None:
    with pytest.raises(ValueError, match="mpi4py"):
        hvd.init(comm=Comm())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ProcessSet"):
        hvd.init(comm=[0, 1])
    assert not hvd.is_initialized()
    hvd.init(comm=[0])
    assert hvd.size() == 1


def test_process_set_text_and_rules(hvd: HorovodBasics) -> None:
    process_set = ProcessSet([2, 0])
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)"
    assert (process_set.size(), process_set.rank()) == (None, None)
    with pytest.raises(ValueError, match="integer"):
        ProcessSet([0, "1"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="mpi4py"):
        ProcessSet(Comm())  # type: ignore[arg-type]
    assert process_sets._temp_process_set_object(3).included() is None
    hvd.init()
    assert ProcessSet([1]).included() is False
    assert ProcessSet(np.arange(1)).included() is True


def test_duplicate_set_leaves_the_process_initialised(hvd: HorovodBasics) -> None:
    with pytest.raises(ValueError, match="Process set 0"):
        hvd.init(process_sets=[ProcessSet([0])])
    assert hvd.is_initialized()
    hvd.init(process_sets=[])
    assert hvd.size() == 1


@pytest.mark.parametrize("ranks", [[1], [-1], [0, 0], []])
def test_impossible_sets(hvd: HorovodBasics, ranks: list[int]) -> None:
    with pytest.raises(ValueError, match="Process set 0"):
        hvd.init(process_sets=[ProcessSet(ranks)])
    assert not hvd.is_initialized()


def test_sets_after_init_need_dynamic_mode(hvd: HorovodBasics, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotInitializedError):
        add_process_set([0])
    hvd.init(process_sets="Dynamic")
    with pytest.raises(ValueError, match="exists already"):
        add_process_set([0])
    assert remove_process_set(global_process_set) is False
    assert remove_process_set(ProcessSet([0])) is False
    hvd.shutdown()
    with pytest.raises(ValueError, match="dynamic"):
        hvd.init(process_sets="all")


def run_solo(array: np.ndarray, **values: object) -> np.ndarray:
    client = basics.client()
    output = np.empty_like(array)
    dtype = {"float32": 7, "float64": 8, "int32": 4, "int64": 5}[array.dtype.name]
    signature = Signature(CollectiveKind.ALLREDUCE, "allreduce.x", False, dtype, (array.shape,), **values)  # type: ignore[arg-type]
    client.reduce(signature, [(array.ctypes.data, output.ctypes.data, array.nbytes)], blocking=True).wait()
    return output


def test_solo_numbers_follow_the_factors(hvd: HorovodBasics) -> None:
    hvd.init()
    values = np.array([1.5, -2.0, 7.0], np.float32)
    assert np.array_equal(run_solo(values, op=0), values)
    assert np.array_equal(run_solo(values, op=1, prescale=2.0, postscale=0.5), values)
    integers = np.array([3, -3, 100], np.int64)
    assert run_solo(integers, op=1, postscale=0.5).tolist() == [1, -1, 50]


def test_solo_pull_and_memory(hvd: HorovodBasics) -> None:
    hvd.init()
    client = basics.client()
    memory = client.alloc(100)
    assert len(memoryview(memory)) == 100
    assert ctypes.addressof(memory) % 64 == 0
    assert len(memoryview(client.alloc(0))) == 0
    source, target = np.arange(6, dtype=np.float32), np.zeros(4, np.float32)
    signature = Signature(CollectiveKind.ALLGATHER, "allgather.x", False, 7, ((-1,),))
    op = client.gather(signature, [(source.ctypes.data, 8), (source.ctypes.data + 8, 16)], (6,))
    source[:] = -1
    op.wait()
    assert (op.meta(0), op.data_bytes(0)) == ((6,), 24)
    op.copy([(0, 8, target.ctypes.data, 16)])
    assert target.tolist() == [2, 3, 4, 5]
    op.reduce(0, target.ctypes.data, 16)
    assert target.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="outside"):
        op.copy([(0, 20, target.ctypes.data, 8)])
    op.done()
    assert client.join() == 0


def test_solo_refuses_what_others_refuse(hvd: HorovodBasics) -> None:
    hvd.init()
    wrong = Signature(CollectiveKind.BROADCAST, "broadcast.x", False, 7, ((1,),), root=3)
    with pytest.raises(ValueError, match="root rank 3"):
        basics.client().gather(wrong, [], ())


def test_alone_nothing_of_grpc_sockets_or_threads() -> None:
    program = (
        "import sys, threading\n"
        "from horovod.common.basics import HorovodBasics\n"
        "hvd = HorovodBasics(); hvd.init()\n"
        "import horovod.common.solo\n"
        "assert threading.active_count() == 1\n"
        "assert not [m for m in sys.modules if m.startswith(('grpc', 'google.protobuf'))], 'imported'\n"
        "import horovod.common.client\n"
        "assert not [m for m in sys.modules if m.startswith('grpc')], 'grpc'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
