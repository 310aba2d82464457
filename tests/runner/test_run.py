"""``horovod.run``: results by rank, errors of the user's function, arguments, and what five calls leave behind."""

from __future__ import annotations

import gc
import inspect
import os
import threading
from pathlib import Path
from typing import Any

import horovod
import psutil
import pytest
from horovod.runner import run
from horovod.runner.report import EXIT_TEXT

from tests.runner.launcher import abstract_sockets


def test_the_signature_is_the_one_that_scripts_use() -> None:
    names = (
        "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
        "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo "
        "use_mpi mpi_args network_interface network_interfaces executable np min_np max_np"
    )
    parameters = inspect.signature(run).parameters
    assert list(parameters) == names.split()
    assert {name: p.default for name, p in parameters.items() if p.default not in (None, inspect.Parameter.empty)} == {
        "args": (),
        "num_proc": 1,
    }
    assert horovod.run is run


def test_results_by_rank_with_arguments_and_closures() -> None:
    captured = {"x": 10}

    def task(a: int, b: int = 0) -> tuple[int, int, bytes]:
        return int(os.environ["HOROVOD_RANK"]), a + b + captured["x"], b"z" * 1_000_000

    results = run(task, (1,), {"b": 2}, num_proc=3)
    assert results == [(rank, 13, b"z" * 1_000_000) for rank in range(3)]


def test_the_descriptors_are_not_for_processes_that_the_function_starts() -> None:
    def task() -> tuple[bool, list[bool]]:
        hidden = "HVD_FUNCTION_FD" not in os.environ and "HVD_RESULT_FD" not in os.environ
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        return hidden, [os.get_inheritable(n) for n in numbers if n > 2 and os.path.exists(f"/proc/self/fd/{n}")]

    ((hidden, inheritable),) = run(task)
    assert hidden
    assert not any(inheritable)


def test_the_error_of_the_function_with_rank_and_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    def task() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("missing")

    with pytest.raises(RuntimeError) as error:
        run(task, num_proc=2)
    text = str(error.value)
    assert text.startswith(EXIT_TEXT + ": Rank 1 (host ")
    assert "The function raised on rank 1:\nTraceback" in text
    assert text.endswith("KeyError: 'missing'")
    assert "User function raise error: 'missing'" in capfd.readouterr().err


def test_a_result_that_can_not_be_pickled(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="returned an object of type lock that can't be pickled"):
        run(threading.Lock)
    assert "can't be pickled" in capfd.readouterr().err


def test_an_exit_inside_the_function(capfd: pytest.CaptureFixture[str]) -> None:
    def task() -> None:
        os.write(2, b"the last words\n")
        os._exit(5)

    with pytest.raises(RuntimeError, match=r"exited with code 5\.\n.*\n +the last words"):
        run(task)
    assert capfd.readouterr().err == "[0]<stderr>:the last words\n"


def test_output_goes_to_the_callers_streams_and_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def task() -> None:
        print("from", os.environ["HOROVOD_RANK"])

    run(task, num_proc=2, output_filename=str(tmp_path))
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:from 0", "[1]<stdout>:from 1"]
    assert (tmp_path / "rank.1" / "stdout").read_text() == "from 1\n"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"hosts": "localhost:1", "hostfile": "x"}, ValueError, "hosts or hostfile"),
        ({"use_gloo": True, "use_mpi": True}, ValueError, "use_gloo or use_mpi"),
        ({"use_mpi": True}, NotImplementedError, "use_mpi can't be used"),
        ({"min_num_proc": 1}, NotImplementedError, "min_num_proc can't be used: elastic"),
        ({"max_num_proc": 1, "reset_limit": 3}, NotImplementedError, "max_num_proc, reset_limit can't"),
        ({"host_discovery_script": "x"}, NotImplementedError, "elastic jobs"),
        ({"ssh_port": 22}, NotImplementedError, "other hosts"),
        ({"hosts": "node9:4"}, ValueError, "node9 is not this machine"),
        ({"num_proc": 0}, ValueError, "num_proc=0 must be >= 1"),
    ],
)
def test_arguments_that_can_not_work(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(os.getpid, **arguments)


def test_old_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc instead"):
        assert len(run(os.getpid, np=1)) == 1
    with pytest.warns(DeprecationWarning, match="min_np is deprecated"), pytest.raises(NotImplementedError):
        run(os.getpid, min_np=1)


def test_five_calls_leave_nothing_behind() -> None:
    run(os.getpid)  # what stays loaded after the first call is no leak
    before = _state()
    for _ in range(5):
        run(os.getpid, num_proc=2)
    assert _state() == before


def _state() -> tuple[list[str], list[str], list[int], set[str]]:
    gc.collect()
    files = sorted(_target(name) for name in os.listdir("/proc/self/fd"))
    threads = sorted(thread.name for thread in threading.enumerate())
    own = {name for name in abstract_sockets() if name in _own_sockets()}
    return files, threads, [child.pid for child in psutil.Process().children(recursive=True)], own


def _own_sockets() -> set[str]:
    connections = psutil.Process().net_connections("unix")
    return {str(connection.laddr).replace("\0", "@") for connection in connections}


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}").split(":")[0]
    except OSError:
        return "the listing itself"


def test_a_running_loop_is_no_obstacle() -> None:
    import asyncio

    async def notebook() -> list[int]:
        return run(os.getppid)

    assert len(asyncio.run(notebook())) == 1
