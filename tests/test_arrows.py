"""Imports point one way: bindings, agent -> native, proto; coordinator -> proto; runner -> the services.

``observe`` is what both services need to be observed: it knows neither, and training processes must not load what it loads.

The folders that decide (``core/``) use nothing but the standard library, and of that nothing that acts, waits or reads
a clock.  The rules are data; the last tests give the checker wrong imports, so that it is known to object.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Folder -> package.  What is below a folder may import itself and the packages in ALLOWED.
FOLDERS = {
    "bindings/horovod": "horovod",
    "proto": "horovod.proto",
    "observe": "horovod.observe",
    "coordinator": "horovod.coordinator",
    "agent": "horovod.agent",
    "native": "horovod.native",
    "runner": "horovod.runner",
}
BINDINGS = ("common", "torch", "tensorflow", "_keras", "keras", "mxnet", "data", "ray", "spark")
ALLOWED = {
    "horovod": ("horovod.native", "horovod.proto", *(f"horovod.{name}" for name in BINDINGS)),
    "horovod.proto": (),
    "horovod.observe": (),
    "horovod.coordinator": ("horovod.proto", "horovod.observe"),
    "horovod.agent": ("horovod.native", "horovod.proto", "horovod.observe"),
    "horovod.native": (),
    "horovod.runner": ("horovod.coordinator", "horovod.agent", "horovod.native", "horovod.proto"),
}
# The front door offers `horovod.run`, which is the launcher's.
EXCEPTIONS = {("bindings/horovod/__init__.py", "horovod.runner")}

NOT_IN_CORE = {"asyncio", "grpc", "socket", "time", "random", "os", "logging", "threading"}
FRAMEWORKS = {"torch", "tensorflow", "keras", "mxnet", "ray", "pyspark"}
# grpcio's threads do not survive the forks of a training process.
NOT_IN_TRAINING = {"grpc", "asyncio", "aiohttp", "prometheus_client"}
LOADS_GRPC = ("horovod.proto.services", "horovod.proto.pump")


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Full names of everything a module imports, inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            # `from horovod import native` names a package in what is imported, not in the module.
            yield from (f"{module}.{alias.name}" if module == "horovod" else module for alias in node.names)


def _is_under(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _core_problem(module: str, core_package: str) -> str | None:
    top = module.partition(".")[0]
    if _is_under(module, (core_package,)):
        return None
    if top not in sys.stdlib_module_names:
        return "core/ may use only the standard library"
    return f"core/ must not use {top}" if top in NOT_IN_CORE else None


def _layer_problem(module: str, package: str, path: str) -> str | None:
    # Whoever imports a part runs horovod/__init__.py anyway; it holds the version.
    if module == "horovod" or not _is_under(module, ("horovod",)):
        return None
    own = package if package != "horovod" else "horovod.__init__"
    if _is_under(module, (own, *ALLOWED[package])):
        return None
    if any(path == exempt and _is_under(module, (target,)) for exempt, target in EXCEPTIONS):
        return None
    return f"{package} must not import {module}"


def _training_problem(module: str, path: str) -> str | None:
    top = module.partition(".")[0]
    if path.startswith(("bindings/", "native/")) and (top in NOT_IN_TRAINING or _is_under(module, LOADS_GRPC)):
        return f"a training process must not import {module}"
    if path.startswith("bindings/horovod/common/") and (
        top in FRAMEWORKS or _is_under(module, tuple(f"horovod.{name}" for name in FRAMEWORKS))
    ):
        return f"horovod.common must not depend on a framework ({module})"
    return None


def find_problems(path: str, source: str) -> list[str]:
    """Every wrong arrow of one module; ``path`` is relative to the repository."""
    folder = next(folder for folder in FOLDERS if path.startswith(folder + "/"))
    package = FOLDERS[folder]
    parts = Path(path).relative_to(folder).with_suffix("").parts[:-1]
    module_package = ".".join((package, *parts))
    problems = []
    for module in imported_modules(source, module_package):
        core = module_package.partition(".core")[0] + ".core" if "core" in parts else None
        found = (
            _core_problem(module, core) if core else None,
            _layer_problem(module, package, path),
            _training_problem(module, path),
        )
        problems += [f"{path}: {text}" for text in found if text]
    return problems


def _modules() -> list[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in found if not path.name.endswith("_pb2.py"))


def test_no_wrong_arrow() -> None:
    modules = _modules()
    assert len(modules) > 50
    assert [problem for path in modules for problem in find_problems(path, (ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("coordinator/core/job.py", "import time"),
        ("coordinator/core/job.py", "def f():\n    from os import path"),
        ("coordinator/core/job.py", "from horovod.proto import control_pb2"),
        ("agent/core/plans.py", "import numpy"),
        ("agent/core/plans.py", "from ..shell import Shell"),
        ("bindings/horovod/common/core/client.py", "from horovod import native"),
        ("bindings/horovod/common/client.py", "from horovod import agent"),
        ("bindings/horovod/common/client.py", "from horovod.runner import launch"),
        ("bindings/horovod/common/client.py", "import torch.nn"),
        ("bindings/horovod/torch/mpi_ops.py", "import grpc"),
        ("bindings/horovod/common/client.py", "from horovod.proto.services import SESSION"),
        ("coordinator/embedded.py", "from horovod.native import Board"),
        ("coordinator/embedded.py", "import horovod.agent.shell"),
        ("agent/shell.py", "from horovod.common import config"),
        ("native/board.py", "from horovod.proto import worker_pb2"),
        ("proto/codec.py", "from horovod.common.types import Client"),
        ("observe/http.py", "from horovod.coordinator.core import Coordinator"),
        ("observe/http.py", "from horovod.proto import codec"),
        ("bindings/horovod/common/client.py", "from horovod.observe import metrics"),
        ("bindings/horovod/common/client.py", "import prometheus_client"),
        ("coordinator/core/job.py", "from horovod.observe.metrics import gauge"),
        ("runner/launch.py", "import horovod.torch"),
    ],
)
def test_a_wrong_import_is_found(path: str, source: str) -> None:
    assert find_problems(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("coordinator/core/job.py", "from dataclasses import dataclass\nfrom horovod.coordinator.core import values"),
        ("bindings/horovod/torch/mpi_ops.py", "import torch\nfrom horovod.common import basics"),
        ("bindings/horovod/__init__.py", "from horovod.runner import run"),
        ("agent/shell.py", "import os\nfrom horovod import native\nfrom horovod.agent.core import agent"),
        ("runner/launch.py", "from horovod.agent.shell import Shell\nfrom horovod.coordinator.embedded import X"),
    ],
)
def test_a_right_import_is_not(path: str, source: str) -> None:
    assert find_problems(path, source) == []
