"""From the command line and a settings file to one checked set of settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from horovod.runner.options import OPTIONS, Option, build_parser, dest_of, given

__all__ = ["LEVELS", "UsageProblem", "notes_of", "parse_args", "variables_of"]


class UsageProblem(ValueError):
    """The launcher was called in a way that can't work; the text says what to change."""


# Section and key of the settings file -> (option, value that the key's "true" stands for).
_FILE_KEYS: dict[tuple[str, str], str] = {
    **{
        ("params", key): "--" + key.replace("_", "-")
        for key in (
            "fusion_threshold_mb",
            "cycle_time_ms",
            "cache_capacity",
            "hierarchical_allreduce",
            "hierarchical_allgather",
            "torus_allreduce",
        )
    },
    ("autotune", "enabled"): "--autotune",
    **{
        ("autotune", key): "--autotune-" + key.replace("_", "-")
        for key in (
            "log_file",
            "warmup_samples",
            "steps_per_sample",
            "bayes_opt_max_samples",
            "gaussian_process_noise",
        )
    },
    ("timeline", "filename"): "--timeline-filename",
    ("timeline", "mark_cycles"): "--timeline-mark-cycles",
    ("stall_check", "enabled"): "--stall-check",
    ("stall_check", "warning_time_seconds"): "--stall-check-warning-time-seconds",
    ("stall_check", "shutdown_time_seconds"): "--stall-check-shutdown-time-seconds",
    **{
        ("library_options", key): "--" + key.replace("_", "-")
        for key in ("mpi_threads_disable", "num_nccl_streams", "thread_affinity", "gloo_timeout_seconds")
    },
    ("logging", "level"): "--log-level",
    ("logging", "with_timestamp"): "--log-with-timestamp",
}
LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line (``sys.argv`` by default); UsageProblem, a ValueError, for what can't work."""
    arguments = build_parser().parse_args(argv)
    if arguments.command[:1] == ["--"]:
        arguments.command = arguments.command[1:]
    if arguments.version or arguments.check_build:
        return arguments
    if arguments.config_file:
        _merge_file(arguments, Path(arguments.config_file))
    for option in given(OPTIONS, arguments):
        _check(option, getattr(arguments, dest_of(option)))
    _check_whole(arguments)
    return arguments


def _check(option: Option, value: Any) -> None:
    if option.refusal:
        raise UsageProblem(f"{option.names[-1]} can't be used: {option.refusal}")
    if option.not_negative and value < 0:
        raise UsageProblem(f"{dest_of(option)}={value} must be >= 0")
    if value == "":
        raise UsageProblem(f"{option.names[-1]} is given, but its value is empty: say a value, or leave the option out")


def _check_whole(arguments: argparse.Namespace) -> None:
    if arguments.num_proc is None:
        raise UsageProblem("say how many ranks to run: -np N, for example horovodrun -np 2 python train.py")
    if arguments.num_proc < 1:
        raise UsageProblem(f"num_proc={arguments.num_proc} must be >= 1")
    if arguments.attach and arguments.command:
        raise UsageProblem("--attach waits for ranks that others start: leave the command out")
    if not arguments.command and not arguments.attach:
        raise UsageProblem("say what to run: horovodrun -np 2 python train.py")
    _check_remote(arguments)
    if arguments.log_level is not None:
        arguments.log_level = arguments.log_level.upper()
        if arguments.log_level not in LEVELS:
            raise UsageProblem(f"log_level={arguments.log_level} must be one of {', '.join(LEVELS)}")


_REMOTE_ONLY = ("wait", "attach", "token_file", "tls_ca", "tls_cert", "tls_key")


_NOT_ATTACHED = {
    "output_filename": "the output of ranks goes wherever their starter has it go",
    "start_timeout": "set HOROVOD_START_TIMEOUT for the processes",
}


def _check_remote(arguments: argparse.Namespace) -> None:
    for name, reason in _NOT_ATTACHED.items() if arguments.attach else ():
        if getattr(arguments, name) is not None:
            raise UsageProblem(f"--{name.replace('_', '-')} can't be used with --attach: {reason}")
    if arguments.coordinator:
        if arguments.hosts or arguments.hostfile:
            raise UsageProblem("-H and --hostfile can't be used with --coordinator: its agents say where ranks run")
        return
    alone = [name for name in _REMOTE_ONLY if getattr(arguments, name) is not None]
    if alone:
        raise UsageProblem(f"--{alone[0].replace('_', '-')} needs --coordinator")


# ---- the settings file


def _merge_file(arguments: argparse.Namespace, path: Path) -> None:
    """Fills in what the command line left open."""
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UsageProblem(f"the settings file {path} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageProblem(f"the settings file {path} must hold sections such as 'params:'")
    for section, keys in content.items():
        if section == "controller":
            _take_controller(path, keys)
            continue
        for key, value in (keys if isinstance(keys, dict) else {}).items():
            _take_key(arguments, path, str(section), str(key), value)
        if not isinstance(keys, dict):
            raise UsageProblem(f"{path}: there is no section {section!r} with the value {keys!r}")


def _take_controller(path: Path, value: object) -> None:
    if str(value).lower() != "gloo":
        raise UsageProblem(f"{path}: controller: {value} can't be used, only gloo (which stands for this launcher)")


def _take_key(arguments: argparse.Namespace, path: Path, section: str, key: str, value: Any) -> None:
    name = _FILE_KEYS.get((section, key))
    if name is None:
        raise UsageProblem(f"{path}: there is no setting {section}.{key}")
    option = next(option for option in OPTIONS if name in option.names)
    where = f"{path}: {section}.{key}"
    if option.refusal and value not in (None, False):
        raise UsageProblem(f"{where} can't be used: {option.refusal}")
    if value is None or option.refusal or getattr(arguments, dest_of(option)) is not None:
        return
    setattr(arguments, dest_of(option), _convert(option, where, value))


def _convert(option: Option, where: str, value: Any) -> Any:
    if option.value is not None:
        if not isinstance(value, bool):
            raise UsageProblem(f"{where} must be true or false, not {value!r}")
        return option.value if value else not option.value
    try:
        return option.type(value)
    except (TypeError, ValueError):
        raise UsageProblem(f"{where} must be a {option.type.__name__}, not {value!r}") from None


# ---- what the settings mean for the ranks


def variables_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The variables of the given options; an option that was not given has none."""
    return {
        option.variable: _text(option, getattr(arguments, dest_of(option)))
        for option in given(OPTIONS, arguments)
        if option.variable
    }


def _text(option: Option, value: Any) -> str:
    if option.names == ("--fusion-threshold-mb",):
        return str(value << 20)
    return str(int(value)) if isinstance(value, bool) else str(value)


def notes_of(arguments: argparse.Namespace) -> list[str]:
    """A line for each given option that has no effect here."""
    return [f"{option.names[0]}: {option.note}" for option in given(OPTIONS, arguments) if option.note]
