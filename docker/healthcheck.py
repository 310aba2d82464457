#!/usr/bin/env python3
"""Asks the service of this container whether it is ready; says why if it is not.  The argument is its metrics port, 9400."""

import sys
import urllib.error
import urllib.request

_LIMIT_S = 3
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of the environment does not reach us


def main() -> int:
    """The exit code that Docker expects: 0 for healthy, 1 for unhealthy."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9400
    try:
        with _DIRECT.open(f"http://127.0.0.1:{port}/readyz", timeout=_LIMIT_S) as answer:
            print(answer.read().decode().strip())
    except urllib.error.HTTPError as error:
        print(error.read().decode().strip())
        return 1
    except OSError as error:
        print(f"nothing answers at port {port}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
