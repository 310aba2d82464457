"""What a Hello brings along is checked before it is used; a dead process is noticed by its handle."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess

import pytest
from horovod.agent.members import Members, pid_of_handle, process_state, reason_against

_ADD_SEALS, _SEAL_SHRINK = 1033, 0x2


def arena(nbytes: int, sealed: bool = True) -> int:
    descriptor = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    if sealed:
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK)
    return descriptor


def test_a_handle_names_its_process() -> None:
    handle, other = os.pidfd_open(os.getpid()), os.open("/dev/null", os.O_RDONLY)
    assert pid_of_handle(handle) == os.getpid()
    assert pid_of_handle(other) == -1
    os.close(handle)
    os.close(other)
    assert pid_of_handle(handle) == -1


@pytest.mark.parametrize(
    ("size", "sealed", "announced", "text"),
    [
        (4096, True, 4096, ""),
        (4096, True, 8192, "the arena has 4096 bytes, announced were 8192"),
        (4096, False, 4096, "must be sealed against shrinking"),
    ],
)
def test_arenas_are_checked(size: int, sealed: bool, announced: int, text: str) -> None:
    handle, memory = os.pidfd_open(os.getpid()), arena(size, sealed)
    reason = reason_against([handle, memory], announced)
    assert text in reason
    assert bool(reason) == bool(text)
    assert "1 descriptors instead of" in reason_against([handle], announced)
    assert "no handle of a live process" in reason_against([memory, memory], announced)
    assert "no memory file" in reason_against([handle, handle], announced)
    os.close(handle)
    os.close(memory)


def test_a_dead_process_is_noticed_and_refused_descriptors_are_closed() -> None:
    async def run() -> list[int]:
        died: list[int] = []
        gone = asyncio.Event()

        def note(connection: int) -> None:
            died.append(connection)
            gone.set()

        members = Members(note)
        child = subprocess.Popen(["sleep", "100"])
        assert members.admit(7, [os.pidfd_open(child.pid), arena(4096)], 4096) == ""
        member = members.member(7)
        assert member is not None
        assert member.pid == child.pid
        assert "must be sealed" in members.admit(8, [os.pidfd_open(child.pid), arena(4096, False)], 4096)
        child.kill()
        await asyncio.wait_for(gone.wait(), 20)
        child.wait()
        assert process_state(child.pid) == "dead"
        members.close()
        return died

    before = set(os.listdir("/proc/self/fd"))
    assert asyncio.run(run()) == [7]
    assert set(os.listdir("/proc/self/fd")) <= before


def test_process_states() -> None:
    child = subprocess.Popen(["sh", "-c", "kill -STOP $$"])
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert process_state(child.pid) == "stopped"
    child.kill()
    child.wait()
    assert process_state(os.getpid()) == "running"
