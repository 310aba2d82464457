"""The generated modules: current, and importable with the oldest and the newest protobuf that we allow."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from horovod.proto import control_pb2, worker_pb2

PROTO = Path(control_pb2.__file__).parent
USE = """
from horovod.proto import control_pb2, worker_pb2
signature = worker_pb2.Signature(name="x", shapes=[worker_pb2.Shape(dims=[-1, 3])])
items = [control_pb2.Announcement(signature=signature)]
report = control_pb2.AgentReport(announcements=control_pb2.Announcements(items=items))
again = control_pb2.AgentReport.FromString(report.SerializeToString())
assert again == report and again.WhichOneof("body") == "announcements"
"""


def test_control_messages_use_the_packaged_worker_messages() -> None:
    assert (
        control_pb2.Announcement.DESCRIPTOR.fields_by_name["signature"].message_type is worker_pb2.Signature.DESCRIPTOR
    )


def test_modules_have_stubs() -> None:
    for name in ("worker", "control"):
        text = (PROTO / f"{name}_pb2.pyi").read_text()
        assert "\nimport worker_pb2" not in text
        assert "class " in text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_generated_modules_are_current() -> None:
    done = subprocess.run([sys.executable, str(PROTO / "generate.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["3.20.3", "4.21.12", "5.29.5", "7.36.*"])
def test_stubs_work_with_protobuf(version: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", f"protobuf=={version}"]
    subprocess.run(install, check=True)
    package = tmp_path / "horovod" / "proto"
    package.mkdir(parents=True)
    for name in ("__init__.py", "worker_pb2.py", "control_pb2.py"):
        (package / name).write_text((PROTO / name).read_text())
    done = subprocess.run([python, "-W", "error", "-c", USE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
