"""One rank of a peer: connects to the parent, then does what it is told, and times it.

Run by the launcher of the peer as ``python -m benchmarks.worker --peer NAME --control SOCKET``.  Between orders it
sleeps in a read, so that it costs the other peers nothing.  The interpreter is the peer's and may be older than ours.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
import traceback
from typing import Any

from benchmarks.cases import Case, Unsupported
from benchmarks.drivers import Driver, Task, TimesItself, load_driver


class Worker:
    """The orders of the parent, one method each."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.tasks: dict[str, Task] = {}

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Makes the tensors, checks one result, and warms up; the task is kept under the order's name."""
        task = self.tasks[order["name"]] = self.driver.make(Case.from_json(order["case"]))
        task.check()
        task.run(order["warm_up"])
        return {}

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Seconds of each sample, which is ``inner`` repetitions long; an untimed repetition comes first."""
        task, inner = self.tasks[order["name"]], order["inner"]
        if isinstance(task, TimesItself):
            return {"seconds": task.timed(order["samples"])}
        task.run(1)
        samples: list[float] = []
        for _ in range(order["samples"]):
            start = time.perf_counter()
            task.run(inner)
            samples.append((time.perf_counter() - start) / inner)
        return {"seconds": samples}

    def drop(self, order: dict[str, Any]) -> dict[str, Any]:
        """Forgets all tasks and their tensors."""
        self.tasks.clear()
        return {}

    def handle(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out one order; failures are answers too."""
        try:
            answer: dict[str, Any] = getattr(self, order["do"])(order)
        except Unsupported as error:
            return {"unsupported": str(error)}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}
        return answer


def serve(driver: Driver, control: str) -> None:
    """Answers the parent until it says quit or goes away."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(control)
        stream = connection.makefile("rw", encoding="utf-8")
        hello = {"rank": driver.rank, "pid": os.getpid(), "versions": driver.versions()}
        stream.write(json.dumps(hello) + "\n")
        stream.flush()
        worker = Worker(driver)
        for line in stream:
            order = json.loads(line)
            if order["do"] == "quit":
                break
            answer = worker.handle(order)
            driver.settle()
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


def main() -> None:
    """Reads the command line, joins the other ranks, serves, leaves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--store", default="")
    parser.add_argument("--address", default="127.0.0.1")
    arguments = parser.parse_args()
    driver = load_driver(arguments)
    try:
        serve(driver, arguments.control)
    finally:
        driver.close()


if __name__ == "__main__":
    main()
