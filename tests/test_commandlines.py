"""docs/cli.md names every option of every program."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from horovod.agent import cli as agent
from horovod.coordinator import cli as coordinator
from horovod.runner import options as runner

PAGE = (Path(__file__).parents[1] / "docs/cli.md").read_text()
SERVICES = {"hvd-coordinator": coordinator.build_parser, "hvd-agent": agent.build_parser}


def section(title: str) -> str:
    """The text below a heading, to the next one."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


def long_options(parser: argparse.ArgumentParser) -> set[str]:
    names = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    return names - {"--help", "--version"}


def named(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", text))


@pytest.mark.parametrize("program", SERVICES)
def test_every_option_of_a_service_is_described(program: str) -> None:
    options = long_options(SERVICES[program]())
    shared = {"--token-file", "--tls-ca", "--tls-cert", "--tls-key"}  # described for all programs in one place
    assert options - shared <= named(section(program))
    assert named(section(program)) <= options
    assert shared <= options & named(section("On other hosts"))


def test_every_option_of_the_launcher_is_named() -> None:
    families = re.findall(r"(--[a-z-]+)…", PAGE)
    switches = set(re.findall(r"--\[no-\]([a-z-]+)", PAGE))
    known = named(PAGE) | {f"--{prefix}{name}" for name in switches for prefix in ("", "no-")}
    missing = {name for name in long_options(runner.build_parser()) if name not in known}
    assert not {name for name in missing if not name.startswith(tuple(families))}
