"""The launcher with tiny commands: environment, output, exit codes, what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.runner.launcher import LAUNCHER, MARK, environment, launch, marked, start, until


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


# ---- what ranks get


def test_ranks_find_their_place_in_the_environment() -> None:
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
    names += ["CONTROLLER", "CPU_OPERATIONS"]
    code = f"import os; print(*[os.environ['HOROVOD_' + n] for n in {names!r}], os.environ['PYTHONUNBUFFERED'])"
    done = launch("-np", "2", *python(code))
    host = socket.gethostname()
    assert done.returncode == 0
    assert lines(done.stdout) == [f"[{rank}]<stdout>:{rank} 2 {rank} 2 0 1 {host} gloo gloo 1" for rank in range(2)]
    assert done.stderr == ""


def test_values_arrive_byte_for_byte_and_nothing_is_executed(tmp_path: Path) -> None:
    values = {
        "NEWLINE": "a\nb\r\n",
        "QUOTES": "'\"`\\",
        "SHELL": f"$(touch {tmp_path}/pwned) ; touch {tmp_path}/pwned",
        "LONG": "x" * 100_000,
        "dotted.name": "v.1",
        "BYTES": os.fsdecode(b"\xff\xfe"),
        "CUDA_VISIBLE_DEVICES": "7",
        "OMP_NUM_THREADS": "3",
    }
    code = "import os, hashlib\nfor n in %r: print(n, hashlib.sha256(os.environb[n.encode()]).hexdigest())"
    done = launch("-np", "1", *python(code % sorted(values)), extra=values)
    expected = [f"[0]<stdout>:{n} {hashlib.sha256(os.fsencode(v)).hexdigest()}" for n, v in values.items()]
    assert lines(done.stdout) == sorted(expected)
    assert not (tmp_path / "pwned").exists()


def test_arguments_with_spaces_and_options_reach_the_command() -> None:
    done = launch("-np", "1", "--", *python("import sys; print(sys.argv[1:])"), "a b", "-np", "9", "--gloo")
    assert done.stdout == "[0]<stdout>:['a b', '-np', '9', '--gloo']\n"


def test_options_that_are_not_given_leave_no_trace_and_preset_values_survive() -> None:
    code = "import os; print(sorted(n for n in os.environ if n.startswith(('HOROVOD_', 'HVD_'))))"
    done = launch("-np", "1", *python(code), extra={"HOROVOD_CYCLE_TIME": "7"})
    names = done.stdout.split(":", 1)[1]
    known = ["AGENT", "CONTROLLER", "CPU_OPERATIONS", "CROSS_RANK", "CROSS_SIZE", "CYCLE_TIME", "HOSTNAME"]
    known += ["LOCAL_RANK", "LOCAL_SIZE", "RANK", "SIZE"]
    assert names.strip() == str([f"HOROVOD_{name}" for name in known] + ["HVD_SLOT_NONCE"])


def test_arguments_that_are_no_text_reach_the_command() -> None:
    code = "import os, sys; print(os.fsencode(sys.argv[1]))"
    done = launch("-np", "1", *python(code), os.fsdecode(b"a\xffb"))
    assert done.stdout == "[0]<stdout>:b'a\\xffb'\n"


def test_more_ranks_than_cores() -> None:
    done = launch("-np", "9", "sh", "-c", "echo $HOROVOD_LOCAL_RANK")
    assert lines(done.stdout) == [f"[{rank}]<stdout>:{rank}" for rank in range(9)]


# ---- output


def test_standard_error_and_unfinished_lines() -> None:
    done = launch("-np", "1", "sh", "-c", "printf 'half'; printf '\\r 10%%\\r 20%%\\n' >&2")
    assert done.stdout == "[0]<stdout>:half\n"
    assert done.stderr.replace("\r", "\n") == "[0]<stderr>: 10%\n[0]<stderr>: 20%\n"


def test_timestamps() -> None:
    done = launch("-np", "1", "--prefix-output-with-timestamp", "echo", "x")
    before, _, text = done.stdout.partition("[0]<stdout>:")
    assert text == "x\n"
    assert len(before.split()) == 5


def test_output_is_kept_in_files_and_echoed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = launch("-np", "11", "--output-filename", str(folder), "sh", "-c", "echo $HOROVOD_RANK; echo e >&2")
    assert done.returncode == 0
    assert lines(done.stdout) == sorted(f"[{rank}]<stdout>:{rank}" for rank in range(11))
    assert (folder / "rank.03" / "stdout").read_text() == "3\n"
    assert (folder / "rank.10" / "stderr").read_text() == "e\n"
    assert not (folder / "failure.json").exists()


def test_a_file_that_is_full_is_named_once_and_the_console_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    code = "for i in range(3000): print('x' * 100, flush=i % 100 == 0)"
    done = launch("-np", "2", "--output-filename", str(tmp_path), *python(code))
    assert done.returncode == 0
    assert done.stdout.count("x" * 100) == 6000
    assert done.stderr == f"horovodrun: {tmp_path}/rank.0/stdout is incomplete: No space left on device.\n"
    assert (tmp_path / "rank.1" / "stdout").read_text() == ("x" * 100 + "\n") * 3000


def test_a_file_that_can_not_be_made_and_a_record_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "rank.0").write_text("in the way")
    (tmp_path / "failure.json").mkdir()
    done = launch("-np", "1", "--output-filename", str(tmp_path), "sh", "-c", "echo x; exit 3")
    assert done.returncode == 2
    assert "the output folder" in done.stderr
    (tmp_path / "failure.json").rmdir()
    done = launch(
        "-np", "1", "--output-filename", str(tmp_path), "sh", "-c", f"mkdir {tmp_path}/failure.json; echo x; exit 3"
    )
    assert (done.returncode, done.stdout) == (3, "[0]<stdout>:x\n")
    assert f"horovodrun: {tmp_path}/rank.0/stdout is incomplete: File exists.\n" in done.stderr
    assert f"The failure could not be recorded in {tmp_path}/failure.json: Is a directory." in done.stderr


def test_much_output_passes_complete_while_memory_stays_small(tmp_path: Path) -> None:
    code = "import sys\nfor i in range(1600): sys.stdout.write('x' * 65535 + '\\n')"
    launcher = subprocess.Popen(
        [sys.executable, "-c", _MEASURED, "-np", "1", *python(code)], stdout=subprocess.PIPE, env=environment()
    )
    assert launcher.stdout is not None
    size = 0
    while data := launcher.stdout.read(1 << 20):
        size += len(data)
    assert launcher.wait(30) == 0
    launcher.stdout.close()
    assert size == 1600 * (65536 + len("[0]<stdout>:"))


_MEASURED = """
import re, sys
from pathlib import Path
from horovod.runner.launch import run_commandline
code = run_commandline(sys.argv[1:])
# Not getrusage: its maximum begins with the size of the process that started this one.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(code if peak < 200_000 else f"the launcher took {peak} KB")
"""


def test_a_reader_that_goes_away_is_seen_by_the_ranks() -> None:
    launcher = start("-np", "1", *python("import sys\nwhile True: print('y' * 1000)"))
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    assert launcher.stdout.readline().startswith("[0]<stdout>:yyy")
    launcher.stdout.close()
    error = launcher.stderr.read()
    launcher.stderr.close()
    assert launcher.wait(20) != 0
    assert "BrokenPipeError" in error


# ---- exit codes and the first failure


def test_the_code_of_the_rank_that_failed_and_its_traceback_last() -> None:
    code = "import os, time\nif os.environ['HOROVOD_RANK'] == '1': raise ValueError('the reason')\ntime.sleep(60)"
    done = launch("-np", "3", *python(code))
    assert done.returncode == 1
    tail = done.stderr.partition("horovodrun: First failure: ")[2]
    assert tail.startswith(f"Rank 1 (host {socket.gethostname()}, pid ")
    assert "exited with code 1." in tail
    assert tail.endswith("    ValueError: the reason\n")


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -ABRT $$", 134), ("kill -SEGV $$", 139)]
)
def test_exit_codes(command: str, code: int) -> None:
    done = launch("-np", "2", "sh", "-c", f'[ "$HOROVOD_RANK" = 0 ] || {{ {command}; }}')
    assert done.returncode == code
    if code > 128:
        assert f"was killed by signal {code - 128}" in done.stderr
    if code == 137:
        assert "possibly out of memory" in done.stderr


def test_a_failure_is_recorded_for_programs(tmp_path: Path) -> None:
    script = 'if [ "$HOROVOD_RANK" = 1 ]; then echo because >&2; exit 3; fi'
    done = launch("-np", "2", "--output-filename", str(tmp_path), "sh", "-c", script)
    record = json.loads((tmp_path / "failure.json").read_text())
    assert done.returncode == record["code"] == 3
    assert (record["rank"], record["signal"], record["last_lines"]) == (1, 0, "because")
    assert record["host"] == socket.gethostname()
    assert record["pid"] > 0


@pytest.mark.parametrize("files", [6, 16, 20])
def test_too_few_open_files_are_named(files: int) -> None:
    script = f'ulimit -n {files}; exec "$@"'
    command = ["sh", "-c", script, "sh", *LAUNCHER, "-np", "4", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment(), check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"horovodrun: The limit of {files} open files (ulimit -n) is too low for so many ranks: raise it, as in ulimit -n 4096."
    )
    assert "Please report" not in done.stderr


def test_a_command_that_does_not_exist() -> None:
    done = launch("-np", "2", "/no/such/program")
    assert done.returncode == 127
    assert "/no/such/program can't be started: No such file or directory" in done.stderr


def test_a_script_that_does_not_exist() -> None:
    done = launch("-np", "1", sys.executable, "missing.py")
    assert done.returncode == 2
    assert "missing.py" in done.stderr.partition("First failure")[2]


def test_one_rank_that_ends_early_without_failing_does_not_end_the_job() -> None:
    done = launch("-np", "2", "sh", "-c", '[ "$HOROVOD_RANK" = 0 ] || { sleep 0.5; echo late; }')
    assert done.returncode == 0
    assert done.stdout == "[1]<stdout>:late\n"


# ---- endings


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_to_the_launcher_leaves_nothing(number: int, code: int) -> None:
    mark = uuid.uuid4().hex
    # A grandchild in a session of its own, and a rank that ends only by SIGKILL.
    script = "trap '' TERM; setsid sleep 300 & echo ready; while :; do sleep 0.2; done"
    launcher = start("-np", "2", "sh", "-c", script, extra={MARK: mark})
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    assert "ready" in launcher.stdout.readline() + launcher.stdout.readline()
    launcher.send_signal(number)
    assert launcher.wait(30) == code
    assert until(lambda: not marked(mark))
    launcher.stdout.close()
    launcher.stderr.close()


def test_a_second_signal_hurries() -> None:
    mark = uuid.uuid4().hex
    launcher = start(
        "-np", "1", "sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done", extra={MARK: mark}
    )
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    assert "ready" in launcher.stdout.readline()
    launcher.send_signal(signal.SIGINT)
    assert "asked" in launcher.stdout.readline()
    asked_at = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(20) == 130
    assert time.monotonic() - asked_at < 4  # the grace is 5 s
    assert until(lambda: not marked(mark))
    launcher.stdout.close()
    launcher.stderr.close()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    launcher = subprocess.Popen(
        [
            "sh",
            "-c",
            "trap '' HUP INT; exec \"$@\"",
            "sh",
            *LAUNCHER,
            "-np",
            "1",
            "sh",
            "-c",
            "echo up; sleep 0.5; echo end",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert launcher.stdout is not None
    assert "up" in launcher.stdout.readline()
    launcher.send_signal(signal.SIGHUP)
    launcher.send_signal(signal.SIGINT)
    assert "end" in launcher.stdout.readline()
    assert launcher.wait(20) == 0
    launcher.stdout.close()


def test_a_closed_console_is_no_console(tmp_path: Path) -> None:
    command = [*LAUNCHER, "-np", "2", "--output-filename", str(tmp_path), "sh", "-c", "echo x; echo y >&2"]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], env=environment(), check=False)
    assert done.returncode == 0
    assert (tmp_path / "rank.1" / "stdout").read_text() == "x\n"


def test_verbose_tells_what_the_launcher_does() -> None:
    done = launch("-np", "1", "--verbose", "true")
    assert "Rank 0 runs as process" in done.stderr
    assert "Rank 0 has ended with code 0" in done.stderr


def test_notes_are_said_once_by_the_launcher() -> None:
    done = launch("-np", "2", "--cycle-time-ms", "3", "true", extra={"HOROVOD_GPU_ALLREDUCE": "NCCL"})
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        "--cycle-time-ms",
        "HOROVOD_GPU_ALLREDUCE=NCCL",
    ]


def test_a_stopped_rank_dies_too() -> None:
    mark = uuid.uuid4().hex
    launcher = start("-np", "2", "sh", "-c", "echo $$; kill -STOP $$", extra={MARK: mark})
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    launcher.stdout.readline()
    launcher.stdout.readline()
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(30) == 143
    assert until(lambda: not marked(mark))
    launcher.stdout.close()
    launcher.stderr.close()


def test_the_launcher_is_found_as_a_module_and_says_its_version() -> None:
    import horovod

    done = launch("--version")
    assert (done.returncode, done.stdout.strip()) == (0, horovod.__version__)


def test_check_build_survives_a_closed_pipe() -> None:
    """P03."""
    done = launch("--check-build")
    assert done.returncode == 0
    assert "[X] shared memory on one host" in done.stdout
    read, write = os.pipe()
    os.close(read)
    closed = subprocess.run(
        [*LAUNCHER, "--check-build"], stdout=write, stderr=subprocess.PIPE, text=True, env=environment(), check=False
    )
    os.close(write)
    assert (closed.returncode, closed.stderr) == (0, "")
