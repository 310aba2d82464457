"""Addresses at which ranks find an agent: a random abstract one for a job, or one that was chosen, for ranks that others start.

A chosen one is ``unix:@name`` (abstract: nothing in the file system; seen in this network namespace only) or ``unix:/path``
(seen by whoever sees the folder, containers of a pod for example).  A file is made with the rights that let in whom the agent
lets in, a leftover of an agent that was killed is replaced, anything else in its place is left alone.  Where others may put a
socket in its place, in a shared folder for temporary files, none is made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
from dataclasses import dataclass

__all__ = ["Door", "DoorProblem", "open_door", "open_random_door"]

_LONGEST_PATH = 107
_BACKLOG = 1024


class DoorProblem(ValueError):
    """The address can't be used; the text says why and what to do."""


@dataclass(slots=True)
class Door:
    """A socket that listens; ``close`` takes the file away if it still is the one that was made."""

    socket: socket.socket
    address: str
    path: str = ""
    inode: int = 0
    warning: str = ""

    def close(self) -> None:
        """Ends the socket."""
        self.socket.close()
        if self.path:
            with contextlib.suppress(OSError):
                if os.lstat(self.path).st_ino == self.inode:
                    os.unlink(self.path)


def open_random_door() -> Door:
    """An abstract address that nobody can guess."""
    return _open_abstract(f"hvd-{secrets.token_hex(16)}")


def open_door(address: str, for_others: bool) -> Door:
    """Listens where ``--socket`` says: /path, unix:/path, @name or unix:@name; ``for_others``: users that --allow-uid names."""
    name = address.removeprefix("unix:")
    if name.startswith("@") and 1 < len(name.encode()) <= _LONGEST_PATH:
        return _open_abstract(name[1:])
    if not name.startswith("/"):
        raise DoorProblem(
            f"--socket {address!r} names no socket: give a path such as /run/hvd/agent.sock, or @name for an abstract one"
        )
    if len(os.fsencode(name)) > _LONGEST_PATH:
        raise DoorProblem(f"--socket {name} is too long: a socket's path has at most {_LONGEST_PATH} bytes")
    return _open_path(name, for_others)


def _listening(address: str | bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _open_abstract(name: str) -> Door:
    try:
        sock = _listening(f"\0{name}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise DoorProblem(f"--socket @{name} is taken: another agent (or another program) listens there") from error
    sock.listen(_BACKLOG)
    return Door(sock, f"unix:@{name}")


def _open_path(path: str, for_others: bool) -> Door:
    warning = _check_folder(os.path.dirname(path), path)
    _clear(path)
    try:
        sock = _listening(path)
    except OSError as error:
        raise DoorProblem(f"--socket {path} can't be made: {error.strerror or error}") from error
    # Before listen(), nobody gets in: the rights are right from the first connection on.
    os.chmod(path, 0o666 if for_others else 0o600)
    inode = os.lstat(path).st_ino
    sock.listen(_BACKLOG)
    return Door(sock, f"unix:{path}", path, inode, warning)


def _check_folder(folder: str, path: str) -> str:
    """Makes the folder if only itself is missing; what should be warned of."""
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(folder, 0o755)
        except FileNotFoundError:
            raise DoorProblem(f"--socket {path}: there is no folder {os.path.dirname(folder)}") from None
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise DoorProblem(f"--socket {path}: the folder {folder} can't be made: {error.strerror}") from error
            raise
    found = os.stat(folder)
    if found.st_uid not in (0, os.getuid()):
        raise DoorProblem(
            f"--socket {path}: the folder {folder} belongs to user {found.st_uid}, who could put another socket in its "
            "place: use a folder of the agent's user or of root"
        )
    if found.st_mode & stat.S_IWOTH and (found.st_mode & stat.S_ISVTX or folder in ("/tmp", "/var/tmp", "/dev/shm")):
        raise DoorProblem(
            f"--socket {path}: {folder} is a shared folder for temporary files, where anybody may take that name first: "
            "use a folder of the agent's own, such as /run/hvd (it is made if it is missing)"
        )
    if found.st_mode & stat.S_IWOTH:
        return f"Everybody who sees {folder} may write to it, and replace the socket: let only the pod's containers see it."
    return ""


def _clear(path: str) -> None:
    """Takes away what an agent that was killed has left."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise DoorProblem(f"--socket {path} can't be made: {error.strerror or error}") from error
    if not stat.S_ISSOCK(mode):
        raise DoorProblem(
            f"--socket {path}: there is something else of that name; it is left alone, choose another name"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:  # its queue is full, so it lives
                raise DoorProblem(f"--socket {path} can't be made: {error.strerror or error}") from error
    raise DoorProblem(f"--socket {path} is taken: an agent listens there already")
