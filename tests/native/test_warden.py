"""hvd-warden: whatever a rank starts is gone when the rank, or the agent, is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from horovod import native

LIMIT_S = 20.0
LONG = "sleep 300"


class Warden:
    """A warden with its command; ``token`` marks every process that descends from it, by an environment variable."""

    def __init__(self, command: list[str], grace_ms: int, token: str, stdout: int | None = None) -> None:
        control_read, self.control = os.pipe()
        self.status, status_write = os.pipe()
        self.token = token
        head = [str(native.warden_path()), "--control", str(control_read), "--status", str(status_write)]
        self.process = subprocess.Popen(
            [*head, "--grace-ms", str(grace_ms), "--", *command],
            pass_fds=(control_read, status_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else stdout,
            env={**os.environ, "HVD_TEST_TOKEN": token},
        )
        os.close(control_read)
        os.close(status_write)

    def read(self, fd: int) -> bytes:
        ready, _, _ = select.select([fd], [], [], LIMIT_S)
        assert ready, f"nothing came in {LIMIT_S} s"
        return os.read(fd, 4096)

    def output_line(self) -> str:
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            byte = self.read_one(self.process.stdout.fileno())
            assert byte, f"the output ended after {line!r}"
            line += byte
        return line.decode().strip()

    def read_one(self, fd: int) -> bytes:
        ready, _, _ = select.select([fd], [], [], LIMIT_S)
        assert ready, f"nothing came in {LIMIT_S} s"
        return os.read(fd, 1)

    def status_lines(self) -> list[str]:
        """Everything up to the end of the status pipe."""
        text = b""
        while data := self.read(self.status):
            text += data
        return text.decode().splitlines()

    def tell(self, byte: bytes) -> None:
        os.write(self.control, byte)

    def hang_up(self) -> None:
        os.close(self.control)
        self.control = -1

    def ends(self) -> list[str]:
        """The status lines of a warden that must exit with 0 and leave nobody behind."""
        lines = self.status_lines()
        assert self.process.wait(LIMIT_S) == 0
        assert marked(self.token) == []
        return lines

    def close(self) -> None:
        for pid in [self.process.pid, *marked(self.token)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        for fd in (self.control, self.status):
            if fd >= 0:
                os.close(fd)


def marked(token: str) -> list[int]:
    """Processes with this token in their environment, zombies (which have none) aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"HVD_TEST_TOKEN={token}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


class Starter:
    def __init__(self) -> None:
        self.wardens: list[Warden] = []

    def __call__(self, *command: str, grace_ms: int = 200, stdout: int | None = None) -> Warden:
        self.wardens.append(Warden(list(command), grace_ms, os.urandom(8).hex(), stdout))
        return self.wardens[-1]


@pytest.fixture
def start() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    for warden in starter.wardens:
        warden.close()


def started_pid(lines: list[str]) -> int:
    word, _, number = lines[0].partition(" ")
    assert word == "started"
    return int(number)


def test_exit_code_is_reported(start: Starter) -> None:
    lines = start("sh", "-c", "exit 7").ends()
    assert started_pid(lines) > 0
    assert lines[1:] == ["exit 7"]


def test_death_by_signal_is_reported(start: Starter) -> None:
    assert start("sh", "-c", "kill -SEGV $$").ends()[1:] == ["signal 11"]


@pytest.mark.parametrize(
    ("command", "number", "code"), [("/no/such/program", errno.ENOENT, 127), ("/", errno.EACCES, 126)]
)
def test_failure_to_start_is_reported(start: Starter, command: str, number: int, code: int) -> None:
    assert start(command).ends()[1:] == [f"exec-failed {number}", f"exit {code}"]


def test_grandchildren_of_a_shell_end_with_it(start: Starter) -> None:
    warden = start("bash", "-c", f"{LONG} & {LONG} & echo up; exit 3")
    assert warden.output_line() == "up"
    assert warden.ends()[1:] == ["exit 3"]


def test_t_terminates_all(start: Starter) -> None:
    warden = start("bash", "-c", f"{LONG} & echo up; wait", grace_ms=60_000)
    assert warden.output_line() == "up"
    warden.tell(b"T")
    assert warden.ends()[1:] == ["signal 15"]


def test_a_command_may_finish_its_work_in_the_grace(start: Starter) -> None:
    warden = start(
        "bash", "-c", f"trap 'echo saved; exit 9' TERM; echo up; while :; do {LONG} & wait $!; done", grace_ms=60_000
    )
    assert warden.output_line() == "up"
    warden.tell(b"T")
    assert warden.output_line() == "saved"
    assert warden.ends()[1:] == ["exit 9"]


# SIGCONT is the last that the warden sends before the grace, so what came before it is all there is to count.
COUNTER = """
import os, signal, sys
wanted = {signal.SIGTERM, signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
read, write = os.pipe()
child = os.fork()
if child == 0:
    if sys.argv[1] == "session":
        os.setsid()
    os.write(write, b"x")
else:
    os.read(read, 1)
    print("up", flush=True)
count = 0
while signal.sigwait(wanted) == signal.SIGTERM:
    count += 1
if child:
    os.waitpid(child, 0)
print("asked", count, flush=True)
"""


@pytest.mark.parametrize("where", ["group", "session"])
def test_each_process_is_asked_once(start: Starter, where: str) -> None:
    """A handler of SIGTERM that writes a checkpoint must not run twice, and a shell's trap must not begin anew."""
    warden = start(sys.executable, "-c", COUNTER, where, grace_ms=60_000)
    assert warden.output_line() == "up"
    warden.tell(b"T")
    assert [warden.output_line() for _ in range(2)] == ["asked 1", "asked 1"]
    assert warden.ends()[1:] == ["exit 0"]


def test_who_ignores_sigterm_is_killed_after_the_grace(start: Starter) -> None:
    warden = start("bash", "-c", f"trap '' TERM; ({LONG}) & echo up; wait")
    assert warden.output_line() == "up"
    warden.tell(b"T")
    assert warden.ends()[1:] == ["signal 9"]


def test_k_kills_at_once(start: Starter) -> None:
    warden = start("bash", "-c", f"trap '' TERM; ({LONG}) & echo up; wait", grace_ms=600_000)
    assert warden.output_line() == "up"
    warden.tell(b"K")
    assert warden.ends()[1:] == ["signal 9"]


def test_k_cuts_the_grace_short(start: Starter) -> None:
    warden = start(
        "bash", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 300 & wait $!; done", grace_ms=600_000
    )
    assert warden.output_line() == "up"
    warden.tell(b"T")
    assert warden.output_line() == "asked"
    warden.tell(b"K")
    assert warden.ends()[1:] == ["signal 9"]


def test_end_of_the_control_pipe_ends_all(start: Starter) -> None:
    warden = start("bash", "-c", f"{LONG} & echo up; wait", grace_ms=60_000)
    assert warden.output_line() == "up"
    warden.hang_up()
    assert warden.ends()[1:] == ["signal 15"]


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("up", flush=True)
        time.sleep(300)
    os._exit(0)
os.wait()
sys.stdin.read()
time.sleep(float(sys.argv[1]))
"""


def test_a_daemon_in_its_own_session_is_found(start: Starter) -> None:
    warden = start(sys.executable, "-c", DAEMON, "300")
    assert warden.output_line() == "up"
    warden.tell(b"T")
    assert warden.ends()[1:] == ["signal 15"]


def test_a_daemon_does_not_outlive_the_command(start: Starter) -> None:
    warden = start(sys.executable, "-c", DAEMON, "0")
    assert warden.output_line() == "up"
    assert warden.ends()[1:] == ["exit 0"]


def test_stopped_processes_end_too(start: Starter) -> None:
    warden = start("bash", "-c", f"{LONG} & kill -STOP $!; echo up; kill -STOP $$")
    assert warden.output_line() == "up"
    warden.tell(b"T")
    assert warden.ends()[1:] == ["signal 15"]


PARENT = """
import os, subprocess, sys
read, write = os.pipe()
token = {**os.environ, "HVD_TEST_TOKEN": sys.argv[2]}
head = [sys.argv[1], "--control", str(read), "--status", sys.argv[3], "--grace-ms", "100"]
command = [*head, "--", "sh", "-c", "echo up; sleep 300"]
subprocess.Popen(command, pass_fds=(read, int(sys.argv[3])), env=token)
sys.stdin.read()
"""


def test_a_killed_agent_takes_the_tree_along() -> None:
    token = os.urandom(8).hex()
    status, status_write = os.pipe()
    program = [sys.executable, "-c", PARENT, str(native.warden_path()), token, str(status_write)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(status_write,)) as agent:
        os.close(status_write)
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        agent.kill()
    with open(status) as lines:
        assert lines.read().splitlines()[1:] == ["signal 15"]
    # The status pipe ends when the warden does; nobody else of the tree can be left then.
    assert [pid for pid in marked(token) if state(pid) != "Z"] == []


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_a_killed_warden_takes_the_command_along(start: Starter) -> None:
    warden = start("sleep", "300")
    pid = started_pid([warden.read(warden.status).decode().strip()])
    handle = os.pidfd_open(pid)
    try:
        warden.process.kill()
        assert select.select([handle], [], [], LIMIT_S)[0], "the command lives on"
    finally:
        os.close(handle)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_warden_ignores_the_terminal(start: Starter, number: signal.Signals) -> None:
    warden = start("sh", "-c", f"echo up; exec {LONG}", grace_ms=60_000)
    assert warden.output_line() == "up"
    warden.process.send_signal(number)
    warden.tell(b"T")
    assert warden.ends()[1:] == ["signal 15"]


def test_the_command_gets_default_signals_and_its_own_group(start: Starter) -> None:
    program = "import os, signal; print([signal.getsignal(n).name for n in (1, 3, 15)], os.getpgrp() == os.getpid())"
    assert start(sys.executable, "-c", program).output_line() == "['SIG_DFL', 'SIG_DFL', 'SIG_DFL'] True"


def test_the_command_inherits_no_descriptor_of_the_warden(start: Starter) -> None:
    program = (
        "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}')))"
    )
    assert start(sys.executable, "-c", program).output_line() == "[0, 1, 2]"


def test_the_output_ends_with_the_command_not_with_the_warden(start: Starter) -> None:
    """The warden holds no copy of the command's output: a reader sees the end although a silent daemon lives on."""
    warden = start("sh", "-c", f"trap '' TERM; {LONG} >/dev/null 2>&1 & exec >/dev/null 2>&1; {LONG}", grace_ms=600_000)
    assert warden.process.stdout is not None
    assert warden.read(warden.process.stdout.fileno()) == b""
    assert warden.process.poll() is None
    warden.tell(b"K")
    warden.ends()


def test_an_agent_that_ignores_sigchld_still_gets_the_code() -> None:
    status, status_write = os.pipe()
    control_read, control = os.pipe()
    command = [
        str(native.warden_path()),
        "--control",
        str(control_read),
        "--status",
        str(status_write),
        "--grace-ms",
        "0",
    ]
    shell = ["env", "--ignore-signal=CHLD", *command, "--", "sh", "-c", "exit 4"]
    with subprocess.Popen(shell, pass_fds=(control_read, status_write)):
        os.close(status_write)
        os.close(control_read)
    os.close(control)
    with open(status) as lines:
        assert lines.read().splitlines()[1:] == ["exit 4"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--control", "3", "--status", "4"],
        ["--control", "x", "--status", "4", "--", "true"],
        ["--control", "-1", "--status", "4", "--", "true"],
        ["--status", "4", "--", "true"],
        ["--what", "3", "--", "true"],
    ],
)
def test_wrong_usage_is_refused(arguments: list[str]) -> None:
    done = subprocess.run([str(native.warden_path()), *arguments], capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: ")


def test_waiting_costs_nothing(start: Starter) -> None:
    """No busy loop: the warden's own processor time stays where it was while it waits for a command that sleeps."""
    warden = start("sh", "-c", "echo up; sleep 0.3; echo over; sleep 300")
    warden.output_line()
    before = ticks(warden.process.pid)
    assert warden.output_line() == "over"
    assert ticks(warden.process.pid) - before <= 1
    warden.tell(b"K")
    warden.ends()


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
