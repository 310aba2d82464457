"""The repository's own compose file, brought up by `make up` in a copy of the working tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import IO

from tests.compose.engine import Engine, until
from tests.compose.stand_in import torch_wheels

__all__ = ["AGENTS", "SERVICES", "Cluster", "Launch", "copy_tree"]

ROOT = Path(__file__).parents[2]
AGENTS = ("agent-1", "agent-2", "agent-3")
SERVICES = ("coordinator", *AGENTS, "prometheus")
_FILES = "docker-compose.yml:tests/compose/override.yml"
_CALL_LIMIT_S = 120.0
_BUILD_LIMIT_S = 1500.0
_QUERY = """
import json, sys, urllib.parse, urllib.request
where = "http://prometheus:9090/api/v1/query?" + urllib.parse.urlencode({"query": sys.argv[1]})
print(urllib.request.urlopen(where, timeout=10).read().decode())
"""


def copy_tree(target: Path) -> None:
    """What Git knows or would take, and the wheels of torch that this machine's pip prefers."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for wheel in torch_wheels():
        shutil.copy(wheel, target / "docker/wheels")


class Launch:
    """A `horovodrun` in the coordinator's container, seen from outside."""

    def __init__(self, command: list[str], variables: dict[str, str], tree: Path, output: IO[bytes]) -> None:
        self._output = Path(str(output.name))
        self._process = subprocess.Popen(
            command, env=variables, cwd=tree, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )

    @property
    def text(self) -> str:
        """What it has printed."""
        return self._output.read_text(errors="replace")

    def wait_for(self, pattern: str, limit_s: float) -> None:
        """Until this was printed; fails when the launcher ends before."""

        def is_there() -> bool:
            has_ended = self._process.poll() is not None
            found = re.search(pattern, self.text) is not None
            assert found or not has_ended, self.text
            return found

        until(is_there, limit_s, lambda: self.text)

    def wait(self, limit_s: float) -> int:
        """Its exit code."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher goes on after {limit_s:g} s:\n{self.text}") from None

    def end(self) -> None:
        """Ends what is left of it outside."""
        self._process.kill()
        self._process.wait()


class Cluster:
    """Calls `make` and Compose in a copied tree; ``close`` is `make down`."""

    def __init__(self, engine: Engine, tree: Path) -> None:
        self._engine, self._tree = engine, tree
        self._launches: list[Launch] = []
        self._variables = {**engine.variables, "COMPOSE_FILE": _FILES, "COMPOSE_PROJECT_NAME": "hvd"}
        if any(torch_wheels()):
            self._variables["TORCH_INDEX"] = ""

    def up(self) -> str:
        """What building and starting printed."""
        return self._run("make", "up", limit_s=_BUILD_LIMIT_S)

    def close(self) -> None:
        """Removes containers, networks and volumes."""
        for launch in self._launches:
            launch.end()
        self._run("make", "down")

    def compose(self, *arguments: str, limit_s: float = _CALL_LIMIT_S) -> str:
        """What Compose printed."""
        return self._run("scripts/compose", *arguments, limit_s=limit_s)

    def launch(self, *command: str) -> Launch:
        """Starts this command in the coordinator's container."""
        exec_ = ["scripts/compose", "exec", "-T", "coordinator", *command]
        path = self._tree.parent / f"launch-{len(self._launches)}"
        with path.open("wb") as output:
            made = Launch(exec_, self._variables, self._tree, output)
        self._launches.append(made)
        return made

    def train(self, ranks: int, *arguments: str) -> Launch:
        """The command of the README."""
        where = ["--coordinator", "localhost:50051", "-np", str(ranks)]
        return self.launch("horovodrun", *where, "python", "examples/torch_digits.py", *arguments)

    def query(self, expression: str, by: str = "instance") -> dict[str, float]:
        """What the Prometheus of the cluster answers, by a label; nothing while it does not answer."""
        command = ["scripts/compose", "exec", "-T", "coordinator", "python", "-c", _QUERY, expression]
        done = subprocess.run(
            command,
            env=self._variables,
            cwd=self._tree,
            capture_output=True,
            text=True,
            timeout=_CALL_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            return {}
        return {
            item["metric"].get(by, ""): float(item["value"][1]) for item in json.loads(done.stdout)["data"]["result"]
        }

    def until_known(
        self, expression: str, expected: dict[str, float], by: str = "instance", limit_s: float = 60
    ) -> None:
        """Until Prometheus says exactly this."""
        until(
            lambda: self.query(expression, by) == expected,
            limit_s,
            lambda: f"{expression}: {self.query(expression, by)}, expected {expected}\n{self.story()}",
        )

    def container(self, service: str) -> str:
        """Its id."""
        return self.compose("ps", "-q", service).strip()

    def health(self, service: str) -> str:
        """`healthy`, `unhealthy` or `starting`."""
        return self._inspect(service, "{{.State.Health.Status}}")

    def restarts(self, service: str) -> int:
        """How often the engine has started it again by itself."""
        return int(self._inspect(service, "{{.RestartCount}}"))

    def until_healthy(self, *services: str, limit_s: float = 90) -> None:
        """Until all of these are."""
        until(lambda: {self.health(name) for name in services} == {"healthy"}, limit_s, self.story)

    def network(self) -> str:
        """The network that Compose has made."""
        (name,) = self._engine.docker("network", "ls", "--filter", "name=hvd", "--format", "{{.Name}}").split()
        return name

    def story(self) -> str:
        """States and last words of all services."""
        return self.compose("ps") + self.compose("logs", "--no-color", "--tail=15")

    def _inspect(self, service: str, what: str) -> str:
        return self._engine.docker("inspect", "--format", what, self.container(service)).strip()

    def _run(self, *command: str, limit_s: float = _CALL_LIMIT_S) -> str:
        done = subprocess.run(
            command,
            env=self._variables,
            cwd=self._tree,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout
