"""What ranks find in their environment when the job came from another host."""

from __future__ import annotations

from horovod.agent.core.environment import on_host


def test_what_speaks_of_a_host_is_the_host_s_own() -> None:
    job = {"HOME": "/home/me", "TMPDIR": "/scratch", "BATCH": "32", "PATH": "/venv/bin:/usr/bin"}
    host = {"HOME": "/root", "SECRET": "x", "PATH": "/usr/bin:/opt/bin", "USER": "root"}
    assert on_host(job, host) == {
        "HOME": "/root",
        "USER": "root",
        "BATCH": "32",
        "PATH": "/venv/bin:/usr/bin:/opt/bin",
    }


def test_a_host_without_a_path_has_none() -> None:
    assert on_host({}, {}) == {}
