"""``horovodrun --check-build``: what is installed, what works here, and why the rest does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator

import horovod

__all__ = ["check_build", "report_lines"]

_FRAMEWORKS = (
    ("PyTorch", "torch", "horovod.torch"),
    ("TensorFlow", "tensorflow", "horovod.tensorflow"),
    ("Keras", "keras", "horovod.keras"),
    ("MXNet", "mxnet", "horovod.mxnet"),
)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _framework(title: str, package: str, binding: str) -> str:
    if not _exists(binding):
        return _line(False, title, f"{binding} is not part of this release")
    if not _exists(package):
        return _line(False, title, f"{package} is not installed")
    return _line(True, title, _version(package))


def _version(package: str) -> str:
    """The version of the distribution that brings the package, which may have another name (tensorflow-cpu)."""
    for name in (package, *importlib.metadata.packages_distributions().get(package, ())):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown version"


def _engine() -> str:
    try:
        from horovod import native

        return _line(True, "shared memory on one host", f"{native.kernel_name()} kernels")
    except (ImportError, OSError, RuntimeError) as error:
        return _line(False, "shared memory on one host", str(error))


def _line(works: bool, title: str, reason: str = "") -> str:
    return f"    [{'X' if works else ' '}] {title}" + (f": {reason}" if reason else "")


def report_lines() -> Iterator[str]:
    """The report."""
    yield f"hvd {horovod.__version__}:"
    yield ""
    yield "Available Frameworks:"
    yield from (_framework(*framework) for framework in _FRAMEWORKS)
    yield ""
    yield "Available Controllers:"
    yield _line(False, "MPI", "no mpirun is used")
    yield _line(True, "Gloo", "this launcher stands in for it")
    yield ""
    yield "Available Tensor Operations:"
    yield _engine()
    yield _line(True, "TCP between hosts")
    yield _line(False, "NCCL", "not part of this release")
    yield _line(False, "MPI", "not part of this release")


def check_build(verbose: bool = False, write: Callable[[str], object] | None = None) -> int:
    """Prints the report; always 0, also when nobody reads it to its end."""
    text = "\n".join(report_lines()) + "\n"
    if verbose:
        text += f"\nPython {sys.version.split()[0]} at {sys.executable}\n"
    try:
        (write or sys.stdout.write)(text)
        if write is None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its exit: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
