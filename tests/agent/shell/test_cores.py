"""Affinity and quotas count as cores; helpers use only what is spare."""

import os
from pathlib import Path

import pytest
from horovod.agent.cores import available_cores, quota_of_group
from horovod.agent.helpers import helper_count, helpers_problem


def test_a_quota_of_version_2_is_found_in_the_group_and_above_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    groups = tmp_path / "groups"
    groups.write_text("0::/a/b\n")
    assert available_cores(tmp_path, groups) == 0.5


def test_a_quota_of_version_1_is_found(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("25000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    groups = tmp_path / "groups"
    groups.write_text("4:cpu,cpuacct:/\n3:memory:/\n")
    assert available_cores(tmp_path, groups) == 0.25


def test_without_a_quota_affinity_counts(tmp_path: Path) -> None:
    assert available_cores(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("text", ["-1 100000", "max 100000", "nonsense", "5 0", ""])
def test_what_is_no_quota_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert quota_of_group(tmp_path) is None


@pytest.mark.parametrize(
    ("ranks", "setting", "cores", "threads"),
    [(2, "", 2, 0), (2, "", 3.9, 1), (2, "", 64, 2), (4, "", 1.5, 0), (2, "7", 2, 7), (2, " ", 3, 1)],
)
def test_helpers(ranks: int, setting: str, cores: float, threads: int) -> None:
    assert helper_count(ranks, setting, cores) == threads


@pytest.mark.parametrize("setting", ["-3", "x", "2.5", "65"])
def test_settings_of_helpers_that_make_no_sense(setting: str) -> None:
    assert helpers_problem(setting).startswith(f"the environment variable HVD_HELPERS is {setting!r}, but it must be")
    assert helpers_problem("0") == helpers_problem("64") == helpers_problem("") == ""
