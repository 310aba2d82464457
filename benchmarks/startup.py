"""How long a job takes from its start to its first collective, beyond what importing torch costs in the same ranks.

As a program (``python -m benchmarks.startup STEM``) it is a rank: it writes when its first collective was over.
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
    """Medians of seconds, of the slowest rank of each job: all of it, what importing torch took, and the rest."""
    jobs = [_job_s(size) for _ in range(turns)]
    return {
        "hvd": median(whole - importing for whole, importing in jobs),
        "whole": median(whole for whole, _ in jobs),
        "importing torch": median(importing for _, importing in jobs),
    }


def _job_s(size: int) -> tuple[float, float]:
    """Seconds to the first collective of the slowest rank, and how long it imported torch."""
    peer = hvd()
    assert peer.launch is not None
    with tempfile.TemporaryDirectory(prefix="hvd-bench-") as folder:
        command = [*peer.launch(size), sys.executable, "-m", "benchmarks.startup", f"{folder}/over"]
        start = time.monotonic()
        subprocess.run(command, env=peer.environment(), stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=True)
        words = [path.read_text().split() for path in Path(folder).iterdir()]
        assert len(words) == size, "a rank has not said when it was through"
        return max((float(over) - start, float(importing)) for over, importing in words)


def main() -> None:
    """One rank."""
    start = time.monotonic()
    import torch

    imported = time.monotonic()
    import horovod.torch as hvd_torch

    hvd_torch.init()
    hvd_torch.allreduce(torch.zeros(1))
    over = time.monotonic()  # one clock for all processes of a machine
    Path(f"{sys.argv[1]}.{hvd_torch.rank()}").write_text(f"{over} {imported - start}")
    hvd_torch.shutdown()


if __name__ == "__main__":
    main()
