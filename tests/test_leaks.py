"""The leak check sees each kind of leak."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading

import pytest

from tests.leaks import holdings, wait_until_no_more_than

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_nothing_is_nothing() -> None:
    assert holdings().beyond(holdings()) == {}


def test_a_descriptor() -> None:
    before = holdings()
    reading, writing = os.pipe()
    assert holdings().beyond(before) == {"descriptors": ["pipe:", "pipe:"]}
    os.close(reading)
    os.close(writing)


def test_shared_memory_that_is_only_mapped() -> None:
    before = holdings()
    descriptor = os.memfd_create("test-leak")
    os.ftruncate(descriptor, 4096)
    mapping = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
    # mmap keeps a descriptor of its own.
    assert any("mapped /memfd:test-leak" in text for text in holdings().beyond(before)["shared_memory"])
    mapping.close()


def test_a_thread() -> None:
    before, end = holdings(), threading.Event()
    thread = threading.Thread(target=end.wait, name="lingering")
    thread.start()
    assert wait_until_no_more_than(before, limit_s=0.05) == {"threads": ["lingering"]}
    end.set()
    assert wait_until_no_more_than(before) == {}


def test_a_child() -> None:
    before = holdings()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert "children" in holdings().beyond(before)
    child.communicate(b"\n")
    assert wait_until_no_more_than(before) == {}


def test_a_child_that_takes_another_name_is_the_same_child() -> None:
    """Right after its start it still has this process's name."""
    child = subprocess.Popen(
        ["sh", "-c", "read line; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("go\n")
    before = holdings()
    child.stdin.write("here\n")
    child.stdin.flush()
    assert child.stdout.readline() == "here\n"
    more = holdings().beyond(before)
    child.communicate()
    assert more == {}
