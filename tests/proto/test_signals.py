"""Programs heed signals at every moment: while they load, while their loop runs, after it, while the interpreter ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from horovod.proto.signals import HEEDED, heard_in_loop

PROGRAM = """
import asyncio, atexit, signal, sys
from horovod.proto.signals import heard_in_loop

def at(moment):
    if moment == sys.argv[1]:
        print(moment, flush=True)
        sys.stdin.readline()

async def serve():
    heard = []
    with heard_in_loop(asyncio.get_running_loop(), heard.append):
        while sys.argv[1] == "loop" and len(heard) < 2:
            print("loop", flush=True)
            count = len(heard)
            while len(heard) == count:
                await asyncio.sleep(0.01)
    return 40 + len(heard)

def run_commandline():
    code = asyncio.run(serve())
    at("after")
    atexit.register(at, "exit")
    return code

at("import")
"""
START = "import sys; from horovod.proto.signals import run_program; sys.exit(run_program('prog', 'slow', lambda n: 128 + n))"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "slow.py").write_text(PROGRAM)
    return tmp_path


def start(folder: Path, moment: str, *command: str) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [*(command or (sys.executable, "-c", START)), moment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert program.stdout is not None
    assert program.stdout.readline() == f"{moment}\n"
    return program


def end(program: subprocess.Popen[str]) -> tuple[int, str]:
    error = program.communicate(timeout=20)[1]
    return program.returncode, error


@pytest.mark.parametrize("number", HEEDED)
@pytest.mark.parametrize("moment", ["import", "after"])
def test_while_nobody_listens_a_signal_ends_the_program_with_a_line(folder: Path, moment: str, number: int) -> None:
    program = start(folder, moment)
    program.send_signal(number)
    assert end(program) == (128 + number, f"prog: ended by {signal.Signals(number).name}.\n")


def test_the_loop_hears_each_signal(folder: Path) -> None:
    program = start(folder, "loop")
    assert program.stdout is not None
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "loop\n"
    program.send_signal(signal.SIGINT)
    assert end(program) == (42, "")


def test_the_interpreter_s_own_end_is_not_disturbed(folder: Path) -> None:
    program = start(folder, "exit")
    for number in HEEDED:
        program.send_signal(number)
    assert end(program) == (40, "")


def test_what_is_ignored_stays_ignored(folder: Path) -> None:
    program = start(folder, "import", "sh", "-c", 'trap \'\' INT; exec "$0" -c "$1" import', sys.executable, START)
    program.send_signal(signal.SIGINT)
    assert end(program) == (40, "")


@pytest.mark.parametrize(
    ("module", "slow", "code", "arguments"),
    [
        ("horovod.runner", "yaml", 130, ["-np", "1", "true"]),
        ("horovod.agent", "grpc", 0, ["--coordinator", "localhost:1"]),
        ("horovod.coordinator", "grpc", 0, []),
    ],
)
def test_the_programs_heed_signals_before_they_load_what_takes_time(
    tmp_path: Path, module: str, slow: str, code: int, arguments: list[str]
) -> None:
    (tmp_path / f"{slow}.py").write_text("print('import', flush=True); input()")
    program = start(tmp_path, "import", sys.executable, "-c", _AS_MODULE.format(module, arguments))
    program.send_signal(signal.SIGINT)
    returncode, error = end(program)
    assert returncode == code
    assert error.endswith(": ended by SIGINT.\n")
    assert len(error.splitlines()) == 1


_AS_MODULE = "import runpy, sys; sys.argv[1:] = {1}; runpy.run_module('{0}', run_name='__main__')"


def test_handlers_and_wakeup_are_put_back() -> None:
    before = [signal.getsignal(number) for number in HEEDED]

    async def run() -> list[signal.Signals]:
        heard: asyncio.Queue[signal.Signals] = asyncio.Queue()
        with heard_in_loop(asyncio.get_running_loop(), heard.put_nowait):
            for number in HEEDED:
                os.kill(os.getpid(), number)
            return [await asyncio.wait_for(heard.get(), 20) for _ in HEEDED]

    assert sorted(asyncio.run(run())) == sorted(HEEDED)
    assert [signal.getsignal(number) for number in HEEDED] == before
    assert signal.set_wakeup_fd(-1) == -1
