"""Runs examples one after the other in the same ranks, each as if it were started by itself, and says how each ended.

One job for all of them: most of what an example costs is the import of torch.  Lines of the command line are scripts with
their arguments.
"""

from __future__ import annotations

import runpy
import shlex
import sys
import traceback

import torch


def run(line: str) -> None:
    """Runs one script; its outcome is printed by every rank."""
    script, *arguments = shlex.split(line)
    sys.argv = [script, *arguments]
    print(f"BEGIN {line}", flush=True)
    try:
        runpy.run_path(script, run_name="__main__")
    except (Exception, SystemExit):
        print(f"FAILED {line}\n{traceback.format_exc()}", flush=True)
    else:
        print(f"PASSED {line}", flush=True)


if __name__ == "__main__":
    threads = torch.get_num_threads()
    for text in sys.argv[1:]:
        torch.set_num_threads(threads)
        run(text)
