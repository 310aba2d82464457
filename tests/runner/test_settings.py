"""The command line and the settings file: what works, what is explained, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from horovod.runner.hosts import HostInfo, local_slots, parse_host_files, parse_hosts
from horovod.runner.launch import coordinator_config, run_commandline
from horovod.runner.options import OPTIONS
from horovod.runner.settings import UsageProblem, notes_of, parse_args, variables_of
from horovod.runner.variables import check_variables, environment_notes

BASE = ["-np", "2"]
COMMAND = ["python", "train.py"]


def variables(*options: str) -> dict[str, str]:
    return variables_of(parse_args([*BASE, *options, *COMMAND]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {}),
        (["--fusion-threshold-mb", "32"], {"HOROVOD_FUSION_THRESHOLD": str(32 << 20)}),
        (["--cycle-time-ms", "2.5"], {"HOROVOD_CYCLE_TIME": "2.5"}),
        (["--cache-capacity", "0"], {"HOROVOD_CACHE_CAPACITY": "0"}),
        (["--hierarchical-allreduce"], {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        (["--no-hierarchical-allgather"], {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
        (["--no-stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (["--stall-check-warning-time-seconds", "5"], {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}),
        (["--stall-check-shutdown-time-seconds", "9"], {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"}),
        (["--log-level", "debug"], {"HOROVOD_LOG_LEVEL": "DEBUG"}),
        (["--log-without-timestamp"], {"HOROVOD_LOG_HIDE_TIME": "1"}),
        (["--gloo-timeout-seconds", "60", "--gloo"], {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}),
        (["--stall-check-w", "5"], {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}),
    ],
)
def test_options_become_variables(options: list[str], expected: dict[str, str]) -> None:
    assert variables(*options) == expected


def test_the_command_keeps_its_own_options() -> None:
    arguments = parse_args(["-np", "2", "python", "train.py", "-np", "3", "--mpi"])
    assert (arguments.num_proc, arguments.command) == (2, ["python", "train.py", "-np", "3", "--mpi"])
    assert parse_args(["-np", "2", "--", "python"]).command == ["python"]


REFUSED = [option for option in OPTIONS if option.refusal]


@pytest.mark.parametrize("option", REFUSED, ids=lambda option: option.names[-1])
def test_options_of_later_work_are_refused_with_a_reason(option: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert option in REFUSED
    refused = next(item for item in REFUSED if item is option)
    values = [] if refused.value is not None else ["1"] * refused.n
    for name in refused.names:
        assert run_commandline([*BASE, name, *values, *COMMAND]) == 2
        assert capsys.readouterr().err == f"horovodrun: error: {refused.names[-1]} can't be used: {refused.refusal}\n"


@pytest.mark.parametrize(
    "name",
    [
        "--mpi",
        "--jsrun",
        "--host-discovery-script",
        "--min-np",
        "--max-np",
        "--slots-per-host",
        "--reset-limit",
        "--elastic-timeout",
        "--timeline-filename",
        "--autotune",
        "--ssh-port",
        "--ssh-identity-file",
        "--mpi-args",
        "--tcp",
        "--binding-args",
    ],
)
def test_these_are_among_the_refused(name: str) -> None:
    assert any(name in option.names for option in REFUSED)


@pytest.mark.parametrize("option", [item for item in OPTIONS if item.not_negative], ids=lambda item: item.names[-1])
def test_negative_numbers(option: object) -> None:
    found = next(item for item in OPTIONS if item is option)
    name = found.names[-1]
    with pytest.raises(ValueError, match=rf"^{name.lstrip('-').replace('-', '_')}=-1(\.0)? must be >= 0$"):
        parse_args([*BASE, name, "-1", *COMMAND])


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["python", "train.py"], "say how many ranks to run: -np N"),
        (["-np", "0", "python"], "num_proc=0 must be >= 1"),
        (["-np", "2"], "say what to run"),
        (["-np", "2", "--log-level", "loud", "python"], "log_level=LOUD must be one of TRACE"),
        (["-np", "2", "-H", "node7:2", "python"], "the host node7 is not this machine"),
        (["-np", "2", "-H", "localhost", "python"], "must be written <host>:<slots>"),
        (["-np", "3", "-H", "localhost:2", "python"], "the hosts have 2 slots, but 3 ranks"),
        (["-np", "2", "-H", "", "python"], "--hosts is given, but its value is empty"),
        (["-np", "2", "--coordinator", "", "python"], "--coordinator is given, but its value is empty"),
        (["-np", "2", "--output-filename", "", "python"], "--output-filename is given, but its value is empty"),
        (["-np", "2", "--hostfile", "/no/such/file", "python"], "can't be read"),
        (["-np", "2", "--config-file", "/no/such/file", "python"], "can't be read"),
    ],
)
def test_calls_that_can_not_work(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commandline(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("horovodrun: error: ")
    assert text in error


def test_hosts_and_their_files_exclude_each_other() -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args([*BASE, "-H", "localhost:2", "--hostfile", "x", *COMMAND])
    assert ended.value.code == 2


# ---- hosts


def test_hosts() -> None:
    assert parse_hosts("a:1, b-1.x:2") == [HostInfo("a", 1), HostInfo("b-1.x", 2)]
    assert local_slots(parse_hosts("localhost:2,127.0.0.1:1"), 3) == 3


def test_a_host_file_may_have_comments(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# mine\n\nlocalhost slots=4  # all\n")
    assert parse_host_files(str(path)) == [HostInfo("localhost", 4)]
    path.write_text("localhost:4\n")
    with pytest.raises(ValueError, match=r"line 1: 'localhost:4' must be written <host> slots=<n>"):
        parse_host_files(str(path))


# ---- the settings file


def with_file(tmp_path: Path, text: str, *options: str) -> dict[str, str]:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return variables("--config-file", str(path), *options)


def test_the_file_fills_in_and_the_command_line_wins(tmp_path: Path) -> None:
    text = (
        "controller: gloo\nparams:\n  cycle_time_ms: 3\n  cache_capacity: 5\n  torus_allreduce: false\n"
        "stall_check:\n  enabled: false\n  warning_time_seconds: 7\nlogging:\n  level: info\n  with_timestamp: false\n"
    )
    assert with_file(tmp_path, text, "--cache-capacity", "9") == {
        "HOROVOD_CYCLE_TIME": "3.0",
        "HOROVOD_CACHE_CAPACITY": "9",
        "HOROVOD_TORUS_ALLREDUCE": "0",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params:\n  speed: 3\n", "there is no setting params.speed"),
        ("parameters: 3\n", "there is no section 'parameters'"),
        ("controller: mpi\n", "controller: mpi can't be used"),
        ("autotune:\n  enabled: true\n", "autotune.enabled can't be used"),
        ("timeline:\n  filename: x.json\n", "timeline.filename can't be used"),
        ("params:\n  cache_capacity: many\n", "must be a int, not 'many'"),
        ("params:\n  torus_allreduce: 3\n", "must be true or false"),
        ("params:\n  cache_capacity: -3\n", "cache_capacity=-3 must be >= 0"),
        ("[1, 2]\n", "must hold sections"),
        ("a: [\n", "can't be read"),
    ],
)
def test_files_that_can_not_work(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageProblem) as problem:
        with_file(tmp_path, text)
    assert message in str(problem.value)


# ---- explanations


def test_options_without_effect_say_so_once() -> None:
    arguments = parse_args([*BASE, "--fusion-threshold-mb", "1", "--network-interface", "eth0", *COMMAND])
    notes = notes_of(arguments)
    assert [note.split(":")[0] for note in notes] == ["--fusion-threshold-mb", "--network-interfaces"]


def test_build_choices_in_the_environment_are_explained() -> None:
    notes = environment_notes({"HOROVOD_GPU_ALLREDUCE": "NCCL", "HOROVOD_CPU_ALLREDUCE": "GLOO", "HOME": "x"})
    assert [note.split(":")[0] for note in notes] == ["HOROVOD_GPU_ALLREDUCE=NCCL", "HOROVOD_CPU_ALLREDUCE=GLOO"]
    assert "hvd-agent" in notes[1]
    check_variables({"HOROVOD_CPU_OPERATIONS": "ccl", "HOROVOD_CPU_ALLREDUCE": "MPI"})
    assert environment_notes({"HOROVOD_CONTROLLER": "gloo"}) == []
    assert len(environment_notes({"HOROVOD_CONTROLLER": "mpi"})) == 1


def test_variables_without_effect_say_so_once() -> None:
    given = {
        "HOROVOD_TIMELINE": "x.json",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_ELASTIC": "0",
        "HOROVOD_CYCLE_TIME": "3",
        "HOROVOD_GLOO_IFACE": "eth0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "HOROVOD_LOG_LEVEL": "loud",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "true",
    }
    names = ["CYCLE_TIME=3", "TIMELINE=x.json", "AUTOTUNE=1", "GLOO_IFACE=eth0", "LOG_LEVEL=loud"]
    names += ["DYNAMIC_PROCESS_SETS=true"]
    assert [note.split(":")[0] for note in environment_notes(given)] == [f"HOROVOD_{name}" for name in names]
    told = environment_notes(given, told={"HOROVOD_CYCLE_TIME": "3"})
    assert [note.split(":")[0] for note in told] == [f"HOROVOD_{name}" for name in names[1:]]


def test_a_launcher_inside_a_rank_does_not_repeat_what_was_said() -> None:
    assert environment_notes({"HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_CONTROLLER": "gloo"}) == []
    assert environment_notes({"HVD_SLOT_NONCE": "x", "HOROVOD_TIMELINE": "x.json"}) == []


@pytest.mark.parametrize(
    "variables",
    [
        {"HVD_SIMD": "foo"},
        {"HVD_HELPERS": "-3"},
        {"HVD_HELPERS": "many"},
        {"HOROVOD_CPU_OPERATIONS": "foo"},
        {"HOROVOD_CPU_ALLREDUCE": "NCCL"},
    ],
)
def test_variables_of_our_own_that_make_no_sense(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, value),) = variables.items()
    with pytest.raises(UsageProblem, match=f"the environment variable {name} is '{value}', but it must be"):
        check_variables(variables)
    monkeypatch.setenv(name, value)
    assert run_commandline(["-np", "1", "true"]) == 2


def test_limits_come_from_the_environment() -> None:
    config = coordinator_config(
        {
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "2",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4",
            "HVD_DEADLOCK_GRACE_SECONDS": "1",
            "HOROVOD_CACHE_CAPACITY": "3",
            "HOROVOD_START_TIMEOUT": "50",
        },
        None,
    )
    assert (config.stall_check_s, config.stall_shutdown_s, config.deadlock_grace_s) == (2, 4, 1)
    assert (config.cache_capacity, config.start_timeout_s) == (3, 50)
    assert coordinator_config({"HOROVOD_STALL_CHECK_DISABLE": "1"}, 7).stall_check_s == 0
    with pytest.raises(UsageProblem, match="HOROVOD_CACHE_CAPACITY is 'x'"):
        coordinator_config({"HOROVOD_CACHE_CAPACITY": "x"}, None)
