"""How long a job takes from its start to its first collective, beyond what importing torch costs.

As a program (``python -m benchmarks.startup FILE``) it is a rank: it writes when its first collective was over.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.peers import hvd

_LIMIT_S = 120.0


def measure_startup(size: int, turns: int) -> dict[str, float]:
    """Medians of seconds: to the first collective, of importing torch in as many processes, and the difference in turns."""
    whole, imports = [], []
    for _ in range(turns):
        imports.append(_import_s(size))
        whole.append(_job_s(size))
    beyond = [max(0.0, job - alone) for job, alone in zip(whole, imports, strict=True)]
    return {"hvd": median(beyond), "whole": median(whole), "importing torch": median(imports)}


def _import_s(size: int) -> float:
    start = time.monotonic()
    command = [sys.executable, "-c", "import torch"]
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(size)]
    for process in processes:
        assert process.wait(_LIMIT_S) == 0, "torch can't be imported"
    return time.monotonic() - start


def _job_s(size: int) -> float:
    peer = hvd()
    assert peer.launch is not None
    with tempfile.TemporaryDirectory(prefix="hvd-bench-") as folder:
        command = [*peer.launch(size), sys.executable, "-m", "benchmarks.startup", f"{folder}/over"]
        start = time.monotonic()
        subprocess.run(command, env=peer.environment(), stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=True)
        return max(float(path.read_text()) for path in Path(folder).iterdir()) - start


def main() -> None:
    """One rank."""
    import horovod.torch as hvd_torch
    import torch

    hvd_torch.init()
    hvd_torch.allreduce(torch.zeros(1))
    over = time.monotonic()  # one clock for all processes of a machine
    Path(f"{sys.argv[1]}.{hvd_torch.rank()}").write_text(str(over))
    hvd_torch.shutdown()


if __name__ == "__main__":
    main()
