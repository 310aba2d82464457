"""An image that serves as python:3.11-slim-bookworm where no image can be pulled: Debian with its own Python.

It fetches packages as this machine does: its authorities, its apt settings, its pip's index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.compose.engine import Engine

__all__ = ["NAME", "import_base", "pip_settings", "torch_wheels"]

NAME = "python:3.11-slim-bookworm"
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_PACKAGES = "python3,python3-venv,ca-certificates"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIMIT_S = 600.0
_APT_SETTING = re.compile(r"Acquire::(?!IndexTargets\b|Changelogs\b)")
# Paths of this machine say nothing inside an image, except the authorities, which are copied.
_KEPT = ("index-url", "extra-index-url", "trusted-host", "proxy")


def import_base(engine: Engine, folder: Path) -> None:
    """Makes the file system, or takes it from the file that COMPOSE_TEST_ROOT names, and imports it."""
    kept = os.environ.get("COMPOSE_TEST_ROOT", "")
    archive = Path(kept) if kept else folder / "root.tar"
    if not archive.exists():
        _make(folder / "root", archive)
    engine.docker("import", "-c", f"ENV PATH={_PATH}", "-c", 'CMD ["python3"]', str(archive), NAME, limit_s=_LIMIT_S)


def _make(root: Path, archive: Path) -> None:
    _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root))
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    (root / "usr/bin/python").symlink_to("python3")
    if _AUTHORITIES.exists():
        shutil.copy(_AUTHORITIES, root / _AUTHORITIES.relative_to("/"))
    settings = [line for line in _run("apt-config", "dump").splitlines() if _APT_SETTING.match(line)]
    (root / "etc/apt/apt.conf.d/90machine").write_text("\n".join([*settings, ""]))
    lines = [f"{name} = {value}" for name, value in pip_settings(_pip()).items()]
    (root / "etc/pip.conf").write_text("\n".join(["[global]", f"cert = {_AUTHORITIES}", *lines, ""]))
    unfinished = archive.with_suffix(".unfinished")
    _run("tar", "-C", str(root), "-cf", str(unfinished), ".")
    unfinished.rename(archive)
    shutil.rmtree(root)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def _pip() -> Mapping[str, str]:
    """What ``pip config list`` says, by the last part of the name; the environment comes after files and wins."""
    lines = _run(sys.executable, "-m", "pip", "config", "list").splitlines()
    pairs = (line.partition("=") for line in lines)
    found = [(name.rpartition(".")[2], name, value.strip("'\"")) for name, _, value in pairs]
    return {name: value for name, _, value in sorted(found, key=lambda item: item[1].startswith(":env:"))}


def pip_settings(listed: Mapping[str, str]) -> dict[str, str]:
    """Of pip's settings those that hold in an image too."""
    values = {name: " ".join(w for w in listed.get(name, "").split() if not w.startswith("file:")) for name in _KEPT}
    return {name: value for name, value in values.items() if value}


def torch_wheels() -> Iterator[Path]:
    """Wheels of torch in folders that this machine's pip looks into."""
    for word in _pip().get("find-links", "").split():
        yield from sorted(Path(word).glob("torch-*.whl"))
