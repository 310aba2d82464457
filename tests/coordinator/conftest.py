"""Flag that writes the golden logs anew: ``pytest tests/coordinator --rewrite-scenarios``; review the difference."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-scenarios", action="store_true", help="write what the coordinator says into the files")
