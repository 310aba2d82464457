"""What is installed is tied to no framework: one copy serves whichever version comes, before or after it."""

from __future__ import annotations

import subprocess
import sys

from horovod.native import library_path

PLAIN = ("linux-vdso", "libstdc++", "libgcc_s", "libc.", "libm.", "ld-linux", "/lib64/ld-linux", "/lib/ld-linux")

# A finder that hides torch as long as it says so: the same process sees it come.
TORCH_COMES_LATER = """
import sys
from horovod.runner.check_build import report_lines

class Missing:
    hides = True
    def find_spec(self, name, path, target=None):
        if self.hides and name == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

finder = Missing()
sys.meta_path.insert(0, finder)
print(next(line for line in report_lines() if "PyTorch" in line))
try:
    import horovod.torch
except ImportError as error:
    print(type(error).__name__, error)
finder.hides = False
print(next(line for line in report_lines() if "PyTorch" in line))
import horovod.torch as hvd, torch
hvd.init()
print(hvd.allreduce(torch.tensor([1.0, 2.0])).tolist())
"""


def test_the_library_is_linked_against_no_framework_and_no_python() -> None:
    """P01, P04: so no version of one can be the wrong one."""
    done = subprocess.run(["ldd", library_path()], capture_output=True, text=True, check=True)
    needed = [line.split()[0] for line in done.stdout.splitlines()]
    assert needed
    assert [name for name in needed if not name.startswith(PLAIN)] == []


def test_torch_may_be_installed_after_the_package() -> None:
    """P03: until then --check-build and the import say what is missing."""
    done = subprocess.run(
        [sys.executable, "-c", TORCH_COMES_LATER], capture_output=True, text=True, check=True, timeout=50
    )
    before, refusal, after, result = done.stdout.splitlines()
    assert before.endswith("[ ] PyTorch: torch is not installed")
    assert refusal.startswith("ModuleNotFoundError")
    assert "pip install" in refusal
    assert "[X] PyTorch: " in after
    assert result == "[1.0, 2.0]"
