"""Five jobs in a row leave nothing: no process, descriptor, thread, shared memory or file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.runner.launcher import MARK, environment, marked, until

pytestmark = pytest.mark.timeout(150)


def shared_files() -> set[str]:
    """Files in shared memory that are ours by name."""
    return {name for name in os.listdir("/dev/shm") if "hvd" in name}


@pytest.mark.parametrize("jobs", ["commands", "failing_commands", "calls", "failing_calls"])
def test_five_jobs_leave_nothing(tmp_path: Path, jobs: str) -> None:
    mark, shared = uuid.uuid4().hex, shared_files()
    done = subprocess.run(
        [sys.executable, "-m", "tests.runner.five_jobs", jobs],
        env=environment({MARK: mark, "TMPDIR": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
    assert until(lambda: not marked(mark)), marked(mark)
    assert list(tmp_path.iterdir()) == []
    assert shared_files() <= shared
