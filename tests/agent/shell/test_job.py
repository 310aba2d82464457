"""Ranks that speak with a real agent: who may be a rank, and what becomes of those who break the rules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runner.launcher import launch

PRELUDE = """
import os, socket, struct, subprocess, sys, time
address = os.environ["HOROVOD_AGENT"]
rank = int(os.environ["HOROVOD_RANK"])
def connect():
    peer = socket.socket(socket.AF_UNIX)
    peer.connect("\\0" + address.removeprefix("unix:@"))
    return peer
def done(peer):
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True
def train():
    import horovod.common.basics as basics
    hvd = basics.HorovodBasics()
    hvd.init()
    return hvd
"""


def job(tmp_path: Path, code: str, ranks: int = 2, **extra: str) -> tuple[int, str, str]:
    script = tmp_path / "job.py"
    script.write_text(PRELUDE + code)
    done = launch("-np", str(ranks), sys.executable, str(script), extra=extra)
    return done.returncode, done.stdout, done.stderr


def test_garbage_on_the_socket_harms_nobody(tmp_path: Path) -> None:
    code = """
hvd = train()
if rank == 0:
    random = os.urandom(1 << 16) + b"\\xff" * 8
    for data in (struct.pack("<I", 2_000_000_000), random, bytes(4), b"GET / HTTP/1.1\\r\\n\\r\\n"):
        peer = connect()
        try:
            peer.sendall(data)
        except OSError:
            pass
        assert done(peer), data[:10]
hvd.shutdown()
hvd.init()
hvd.shutdown()
print("unharmed")
"""
    returncode, out, err = job(tmp_path, code)
    assert (returncode, out.count("unharmed")) == (0, 2), err
    # One of them is told, the others are counted.
    assert err.count("WARNING Ended the connection of process ") == 1
    assert err.count("WARNING 3 more like it: Ended the connection of process …") == 1


def test_a_message_that_makes_no_sense_now_ends_the_connection(tmp_path: Path) -> None:
    code = """
from horovod.proto import worker_pb2 as w
message = w.WorkerMessage(join=w.Join(request=1)).SerializeToString()
peer = connect()
peer.sendall(struct.pack("<I", len(message)) + message)
assert done(peer)
"""
    returncode, _, err = job(tmp_path, code, 1)
    assert returncode == 0, err
    assert "Join before Hello" in err


def test_a_hello_without_its_descriptors_is_rejected_with_a_reason(tmp_path: Path) -> None:
    code = """
from horovod.proto import worker_pb2 as w
nonce = os.environ["HVD_SLOT_NONCE"]
hello = w.Hello(protocol=1, nonce=nonce, rank=rank, pid=os.getpid(), generation=1, arena_bytes=1 << 20)
message = w.WorkerMessage(hello=hello).SerializeToString()
peer = connect()
peer.sendall(struct.pack("<I", len(message)) + message)
length = struct.unpack("<I", peer.recv(4))[0]
print(w.AgentMessage.FromString(peer.recv(length)).rejected.reason)
"""
    returncode, out, err = job(tmp_path, code, 1)
    assert returncode == 0, err
    assert "came without its descriptors" in out
    assert "0 descriptors instead of" in err


def test_a_subprocess_of_a_rank_is_no_rank(tmp_path: Path) -> None:
    code = """
hvd = train()
again = subprocess.run([sys.executable, "-c", "import horovod.common.basics as b; b.HorovodBasics().init()"],
                       stderr=subprocess.PIPE, text=True)
assert again.returncode != 0
print(again.stderr)
hvd.shutdown()
"""
    returncode, out, err = job(tmp_path, code)
    assert returncode == 0, err
    assert "inherited the variables of rank" in out


def test_a_rank_that_exits_without_shutdown_is_the_failure(tmp_path: Path) -> None:
    code = """
hvd = train()
if rank == 1:
    os._exit(0)
time.sleep(30)
"""
    returncode, _, err = job(tmp_path, code)
    assert returncode == 1
    assert "Rank 1 (host" in err.partition("First failure")[2]


def test_a_rank_whose_socket_a_child_holds_is_missed_at_once(tmp_path: Path) -> None:
    code = """
hvd = train()
if rank == 1:
    if os.fork() == 0:
        time.sleep(60)
    os.kill(os.getpid(), 9)
time.sleep(60)
"""
    returncode, _, err = job(tmp_path, code)
    assert returncode == 137
    assert "Rank 1 (host" in err
    assert "killed by signal 9" in err


def test_ranks_that_never_come_end_the_start_in_time(tmp_path: Path) -> None:
    code = "hvd = train() if rank == 0 else time.sleep(60)"
    script = tmp_path / "job.py"
    script.write_text(PRELUDE + code)
    done = launch("-np", "2", "--start-timeout", "1", sys.executable, str(script))
    assert done.returncode == 1
    assert "Rank 1" in done.stderr or "rank 1" in done.stderr


@pytest.mark.parametrize("helpers", ["0", "2"])
def test_helpers_come_and_go_with_epochs(tmp_path: Path, helpers: str) -> None:
    code = """
import horovod.common.basics
for _ in range(10):
    hvd = train()
    hvd.shutdown()
print("ok")
"""
    returncode, out, err = job(tmp_path, code, HVD_HELPERS=helpers)
    assert (returncode, out.count("ok")) == (0, 2), err
