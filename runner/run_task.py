"""Main program of a rank that ``horovod.run`` starts: calls the function, hands back what it returned.

Function and result travel through memory files that the launcher made and this process inherits: nothing in the file
system, nothing on the network.
"""

from __future__ import annotations

import os
import sys
import traceback

import cloudpickle
from horovod.runner.memory_files import FUNCTION_VARIABLE, RESULT_VARIABLE, read_all, write_all

__all__ = ["main"]


def _take_descriptor(variable: str) -> int:
    """The inherited descriptor; processes that the user's function starts do not get it."""
    descriptor = int(os.environ.pop(variable))
    os.set_inheritable(descriptor, False)
    return descriptor


def main() -> int:
    """0 when the function returned and its result is handed over, else 1."""
    function_fd, result_fd = _take_descriptor(FUNCTION_VARIABLE), _take_descriptor(RESULT_VARIABLE)
    try:
        path, call = cloudpickle.loads(read_all(function_fd))
        sys.path[:] = path
        function, args, kwargs = cloudpickle.loads(call)
        value = function(*args, **kwargs)
    except Exception as error:
        print(f"User function raise error: {error}", file=sys.stderr)
        traceback.print_exc()
        write_all(result_fd, b"E" + traceback.format_exc().encode(errors="replace"))
        return 1
    return _hand_over(result_fd, value)


def _hand_over(result_fd: int, value: object) -> int:
    try:
        write_all(result_fd, b"V" + cloudpickle.dumps(value))
    except Exception as error:
        text = f"The function returned an object of type {type(value).__name__} that can't be pickled: {error}"
        print(text, file=sys.stderr)
        write_all(result_fd, b"E" + text.encode(errors="replace"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
