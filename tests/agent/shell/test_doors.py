"""Sockets that were chosen: what is made, what is taken away, and where none is made."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from horovod.agent.doors import DoorProblem, open_door, open_random_door


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="hvd-", dir="/tmp") as name:
        yield Path(name)


def knock(address: str) -> None:
    name = address.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"\0{name[1:]}" if name.startswith("@") else name)


@pytest.mark.parametrize("prefix", ["", "unix:"])
def test_a_file_is_made_for_one_user_or_for_all_and_taken_away(folder: Path, prefix: str) -> None:
    path = folder / "new" / "agent.sock"
    door = open_door(f"{prefix}{path}", for_others=False)
    assert door.address == f"unix:{path}"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & stat.S_IWOTH == 0
    knock(door.address)
    door.close()
    assert not path.exists()
    door = open_door(str(path), for_others=True)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o666
    assert door.warning == ""
    door.close()


def test_a_leftover_is_replaced_a_living_agent_and_other_files_are_not(folder: Path) -> None:
    path = folder / "agent.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    door = open_door(str(path), for_others=False)
    with pytest.raises(DoorProblem, match="is taken: an agent listens there already"):
        open_door(str(path), for_others=False)
    knock(door.address)
    door.close()
    path.write_text("precious")
    with pytest.raises(DoorProblem, match="left alone"):
        open_door(str(path), for_others=False)
    assert path.read_text() == "precious"


def test_the_file_of_a_successor_stays(folder: Path) -> None:
    path = folder / "agent.sock"
    first = open_door(str(path), for_others=False)
    path.unlink()
    second = open_door(str(path), for_others=False)
    first.close()
    knock(second.address)
    second.close()


def test_shared_folders_are_refused_or_warned_of(folder: Path) -> None:
    for shared in ("/tmp", "/dev/shm"):
        with pytest.raises(DoorProblem, match="is a shared folder for temporary files"):
            open_door(f"{shared}/{uuid.uuid4().hex}.sock", for_others=False)
    folder.chmod(0o1777)
    with pytest.raises(DoorProblem, match="shared folder"):
        open_door(str(folder / "agent.sock"), for_others=False)
    folder.chmod(0o777)  # as volumes of a pod are
    door = open_door(str(folder / "agent.sock"), for_others=False)
    assert "let only the pod's containers see it" in door.warning
    door.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: a folder of another user")
def test_a_folder_of_somebody_else_is_refused(folder: Path) -> None:
    os.chown(folder, 1234, 1234)
    with pytest.raises(DoorProblem, match="belongs to user 1234"):
        open_door(str(folder / "agent.sock"), for_others=False)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("agent.sock", "names no socket"),
        ("@", "names no socket"),
        ("tcp:1", "names no socket"),
        (f"/run/{'x' * 107}", "at most 107 bytes"),
        ("/no/such/folder/agent.sock", "there is no folder /no/such"),
        ("/sys/none/agent.sock", "can't be made"),
    ],
)
def test_what_can_t_be_a_socket_is_said(address: str, text: str) -> None:
    with pytest.raises(DoorProblem, match=text):
        open_door(address, for_others=False)


def test_abstract_names() -> None:
    name = f"@hvd-{uuid.uuid4().hex}"
    door = open_door(f"unix:{name}", for_others=False)
    with pytest.raises(DoorProblem, match="is taken"):
        open_door(name, for_others=False)
    knock(door.address)
    door.close()
    random = open_random_door()
    assert random.address.startswith("unix:@hvd-")
    random.close()
