#!/usr/bin/env -S python3 -IS
"""Asks the service of this container whether it is ready; says why if it is not.  The argument is its metrics port, 9400.

It runs every few seconds in every container: nothing is imported that takes time to load.
"""

import socket
import sys

_LIMIT_S = 3


def main() -> int:
    """The exit code that Docker expects: 0 for healthy, 1 for unhealthy."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9400
    try:
        answer = _ask(port)
    except OSError as error:
        print(f"nothing answers at port {port}: {error}")
        return 1
    head, _, text = answer.partition("\r\n\r\n")
    print(text.strip())
    return 0 if head.split()[1:2] == ["200"] else 1


def _ask(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=_LIMIT_S) as connection:
        connection.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        with connection.makefile("rb") as stream:
            return stream.read().decode()


if __name__ == "__main__":
    sys.exit(main())
