"""A Docker engine of its own, in namespaces: this machine's interfaces, rules, mounts and settings are never touched.

The engine is process 1 of a process namespace, so that its end is the end of everything that it has started.  slirp4netns
gives its network namespace a way out without a change outside.  What the engine keeps lies in one folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["Engine", "until"]

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 30.0
_STEP_S = 0.05
_CGROUPS = Path("/sys/fs/cgroup")
_SHARES = 1024 * 8  # of eight processes: six ranks and some more

# Mounts of the engine stay in its namespace; its network has nothing but a loopback interface before slirp4netns comes.
_INSIDE = """
mount --make-rprivate /
ip link set lo up
exec dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" --host "unix://$1/docker.sock" \\
  --cgroup-parent "$2"
"""


def until(is_so: Callable[[], bool], limit_s: float, what: Callable[[], str]) -> None:
    """Looks again and again; a failure says ``what`` was missing."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what()}"
        time.sleep(_STEP_S)


class Engine:
    """Starts at once; ``variables`` are what its clients need."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        _take_plugins(folder / "client")
        self._group = folder.name  # of the processes in containers, in every hierarchy
        _give_shares(self._group)
        self._log = (folder / "engine.log").open("wb")
        spaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._outside = self._start([*spaces, "sh", "-ec", _INSIDE, "sh", str(folder), f"/{self._group}"])
        self._network: subprocess.Popen[bytes] | None = None
        try:
            until(lambda: bool(self._children()), _START_LIMIT_S, self.story)
            (self._pid,) = self._children()
            self._network_id = _network_of(self._pid)
            options = ["--configure", "--mtu=65520", "--disable-host-loopback"]
            self._network = self._start(["slirp4netns", *options, str(self._pid), "tap0"])
            until(self._answers, _START_LIMIT_S, self.story)
        except BaseException:
            self.stop()
            raise

    @property
    def variables(self) -> dict[str, str]:
        """The environment of ``docker`` and Compose for this engine, and for no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "COMPOSE_"))}
        return {
            **kept,
            "DOCKER_HOST": f"unix://{self._folder}/docker.sock",
            "DOCKER_CONFIG": str(self._folder / "client"),
        }

    def docker(self, *arguments: str, limit_s: float = 60.0) -> str:
        """Runs the client; what it printed."""
        done = subprocess.run(
            ["docker", *arguments], env=self.variables, capture_output=True, text=True, timeout=limit_s, check=False
        )
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def story(self) -> str:
        """The end of the engine's log."""
        return (self._folder / "engine.log").read_text(errors="replace")[-4000:]

    def processes(self) -> list[int]:
        """What runs in the engine's network, or was started with a path in its folder; containers end with these."""
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [number for number in numbers if self._owns(number)]

    def _owns(self, pid: int) -> bool:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            return _network_of(pid) == self._network_id or str(self._folder).encode() in words
        return False

    def stop(self) -> None:
        """Ends the engine and whatever it runs; nothing of it is left but its folder."""
        for child in self._children():
            os.kill(child, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._outside.wait(_STOP_LIMIT_S)
        for process in (self._outside, self._network):
            if process is not None:
                process.kill()
                process.wait()
        self._log.close()
        for path in sorted(_groups(self._group), key=lambda path: -len(path.parts)):
            with suppress(OSError):
                path.rmdir()

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        # It dies with this process, however that ends, and takes along what is in its namespaces.
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _children(self) -> list[int]:
        with suppress(OSError):
            return [
                int(word)
                for word in Path(f"/proc/{self._outside.pid}/task/{self._outside.pid}/children").read_text().split()
            ]
        return []

    def _answers(self) -> bool:
        done = subprocess.run(["docker", "version"], env=self.variables, capture_output=True, timeout=10, check=False)
        return done.returncode == 0


def _take_plugins(client: Path) -> None:
    """Compose v2 is a plugin: where the user's own client has plugins, the one of this engine has them too."""
    plugins = Path.home() / ".docker/cli-plugins"
    if plugins.is_dir():
        client.mkdir()
        (client / "cli-plugins").symlink_to(plugins)


def _network_of(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return ""


def _groups(name: str) -> list[Path]:
    """The folders of this group and of those below it."""
    roots = [path for pattern in (name, f"*/{name}") for path in _CGROUPS.glob(pattern)]
    return [path for root in roots for path in [root, *root.rglob("*")] if path.is_dir()]


def _give_shares(name: str) -> None:
    """The kernel would let all containers together count as one process; on a busy machine they would hardly run."""
    shares = _CGROUPS / "cpu" / name / "cpu.shares"
    with suppress(OSError):  # hierarchies of version 2 have weights instead
        shares.parent.mkdir()
        shares.write_text(str(_SHARES))
