"""Jobs on two agents: places, output, exit codes, endings."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.cluster_local.processes import WAIT_S, Cluster
from tests.runner.launcher import MARK, marked, until

HOST = socket.gethostname()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def test_ranks_find_their_places(shared: Cluster) -> None:
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "CONTROLLER"]
    code = f"import os; print(*[os.environ['HOROVOD_' + n] for n in {names!r}])"
    done, out, err = shared.run("-np", "3", *python(code))
    assert (done, err) == (0, "")
    assert lines(out) == [
        f"[0]<stdout>:0 3 0 2 0 2 {HOST} gloo",
        f"[1]<stdout>:1 3 1 2 0 1 {HOST} gloo",
        f"[2]<stdout>:2 3 0 1 1 2 {HOST} gloo",
    ]


def test_values_arrive_byte_for_byte_and_the_host_keeps_its_own(shared: Cluster) -> None:
    values = {"NEWLINE": "a\nb", "SHELL_LIKE": "$(false) ' \"", "BYTES": os.fsdecode(b"\xff\xfe"), "HOME": "/nowhere"}
    code = f"import os\nfor n in {sorted(values)!r}: print(n, os.environb[n.encode()])"
    done, out, _ = shared.run("-np", "1", *python(code), variables=values)
    expected = {**values, "HOME": os.environ.get("HOME", "/")}
    assert done == 0
    assert lines(out) == sorted(f"[0]<stdout>:{name} {os.fsencode(value)!r}" for name, value in expected.items())


def test_commands_are_found_in_the_path_of_the_host_too(shared: Cluster, tmp_path: Path) -> None:
    code = "import os; print(os.environ['PATH'].split(':')[0], len(set(os.environ['PATH'].split(':'))) > 1)"
    done, out, _ = shared.run("-np", "1", *python(code), variables={"PATH": str(tmp_path)})
    assert (done, out) == (0, f"[0]<stdout>:{tmp_path} True\n")


def test_ranks_run_in_the_launcher_s_directory(shared: Cluster) -> None:
    done, out, _ = shared.run("-np", "1", "pwd")
    assert (done, out) == (0, f"[0]<stdout>:{os.getcwd()}\n")


def test_the_code_of_the_rank_that_failed_and_its_last_words(shared: Cluster) -> None:
    code = "import os, time\nif os.environ['HOROVOD_RANK'] == '3': raise ValueError('the reason')\ntime.sleep(60)"
    done, _, err = shared.run("-np", "4", *python(code))
    tail = err.partition("horovodrun: First failure: ")[2]
    assert done == 1
    assert tail.startswith(f"Rank 3 (host {HOST}, pid ")
    assert tail.endswith("    ValueError: the reason\n")


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_exit_codes(shared: Cluster, command: str, code: int) -> None:
    done, _, _ = shared.run("-np", "3", "sh", "-c", f'[ "$HOROVOD_RANK" != 2 ] || {{ {command}; }}')
    assert done == code


def test_a_command_that_does_not_exist(shared: Cluster) -> None:
    done, _, err = shared.run("-np", "3", "/no/such/program")
    assert done == 127
    assert f"could not be started on host {HOST}: /no/such/program can't be started: No such file" in err


def test_output_is_kept_at_the_launcher(shared: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    script = "echo $HOROVOD_RANK; printf half >&2; [ $HOROVOD_RANK != 1 ] || exit 3"
    done, out, _ = shared.run("-np", "4", "--output-filename", str(folder), "sh", "-c", script)
    assert done == 3
    assert "[1]<stdout>:1" in lines(out)
    assert (folder / "rank.1" / "stdout").read_bytes() == b"1\n"
    assert (folder / "rank.1" / "stderr").read_bytes() == b"half"
    assert json.loads((folder / "failure.json").read_text())["rank"] == 1


def test_a_file_that_is_full_is_named_once_and_the_console_goes_on(shared: Cluster, tmp_path: Path) -> None:
    (tmp_path / "rank.1").mkdir()
    (tmp_path / "rank.1" / "stderr").symlink_to("/dev/full")
    script = "seq 20000; seq 20000 >&2"
    done, out, err = shared.run("-np", "2", "--output-filename", str(tmp_path), "sh", "-c", script)
    assert (done, len(lines(out)), len(lines(err))) == (0, 40_000, 40_001)
    assert err.count(f"horovodrun: {tmp_path}/rank.1/stderr is incomplete: No space left on device.\n") == 1


def test_much_output_arrives_complete_and_in_order(shared: Cluster) -> None:
    code = "import sys\nfor i in range(200000): print(i)"
    done, out, _ = shared.run("-np", "3", *python(code))
    assert done == 0
    for rank in range(3):
        mark = f"[{rank}]<stdout>:"
        assert [line.removeprefix(mark) for line in out.splitlines() if line.startswith(mark)] == [
            str(number) for number in range(200_000)
        ]


def test_a_reader_that_goes_away_is_seen_by_the_ranks(shared: Cluster) -> None:
    code = "import sys\nwhile True: print('y' * 1000)"
    command = [sys.executable, "-m", "horovod.runner", "--coordinator", shared.address, "-np", "3", *python(code)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    assert "yyy" in launcher.stdout.readline()
    launcher.stdout.close()
    error = launcher.stderr.read()
    launcher.stderr.close()
    assert launcher.wait(WAIT_S) == 1
    assert "BrokenPipeError" in error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_ends_the_job_everywhere(shared: Cluster, number: int, code: int) -> None:
    mark = uuid.uuid4().hex
    launcher = shared.launch("-np", "4", "sh", "-c", "setsid sleep 300 & echo ready; wait", variables={MARK: mark})
    launcher.out.wait_for("ready", 4)
    launcher.send(number)
    assert launcher.wait() == code
    assert until(lambda: not marked(mark))
    assert launcher.err.text.endswith(f"horovodrun: The launcher was ended by {signal.Signals(number).name}.\n")


def test_a_second_signal_hurries(shared: Cluster) -> None:
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done"
    launcher = shared.launch("-np", "3", "sh", "-c", script)
    launcher.out.wait_for("ready", 3)
    launcher.send(signal.SIGINT)
    launcher.out.wait_for("asked", 3)
    launcher.send(signal.SIGINT)
    assert launcher.wait() == 130
    shared.agents["a"].err.wait_for("has ended with code 137", 2)


def test_a_launcher_that_is_killed_leaves_nothing(shared: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = shared.launch("-np", "4", "sh", "-c", "echo ready; sleep 300", variables={MARK: mark})
    launcher.out.wait_for("ready", 4)
    launcher.end(signal.SIGKILL)
    assert until(lambda: not marked(mark))
    assert shared.run("-np", "4", "true")[0] == 0


def test_a_second_job_is_refused_and_names_the_first(shared: Cluster) -> None:
    first = shared.launch("-np", "2", "sh", "-c", "echo ready; sleep 300")
    first.out.wait_for("ready", 2)
    done, _, err = shared.run("-np", "1", "true")
    assert done == 2
    assert err.startswith("horovodrun: error: A job runs already: 2 ranks of sh -c echo ready; sleep 300 (")
    assert err.endswith(". Queue behind it with --wait, or try again later.\n")
    assert first.end(signal.SIGINT) == 130


def test_jobs_queue(shared: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = shared.launch(
        "-np", "2", "sh", "-c", f"echo ready; [ $HOROVOD_RANK = 1 ] || read line < {gate}; echo first"
    )
    first.out.wait_for("ready", 2)
    second = shared.launch("-np", "2", "--wait", "echo", "second")
    second.err.wait_for("Waiting: a job runs already: 2 ranks")
    third = shared.launch("-np", "1", "--wait", "echo", "third")
    third.err.wait_for("and 1 more wait")
    assert third.end(signal.SIGINT) == 130
    assert second.out.text == ""
    gate.write_text("go\n")
    assert (first.wait(), second.wait()) == (0, 0)
    assert lines(second.out.text) == ["[0]<stdout>:second", "[1]<stdout>:second"]


def test_too_many_ranks_are_refused(shared: Cluster) -> None:
    done, _, err = shared.run("-np", "9", "true")
    assert done == 2
    assert err == (
        "horovodrun: error: 9 ranks were asked for, but the agents have 4 slots. Ask for fewer, or use --wait.\n"
    )


def test_ranks_of_one_agent_train(shared: Cluster) -> None:
    code = (
        "import sys, horovod.common.basics as b; h = b.HorovodBasics(); h.init(); print(h.rank(), h.size());"
        "assert 'grpc' not in sys.modules; h.shutdown()"
    )
    done, out, err = shared.run("-np", "2", *python(code))
    assert (done, lines(out)) == (0, ["[0]<stdout>:0 2", "[1]<stdout>:1 2"]), err
