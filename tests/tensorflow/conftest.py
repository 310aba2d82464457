"""The sites of tests/hosts: agents on several loopback hosts."""

from __future__ import annotations

from tests.hosts.conftest import site

__all__ = ["site"]
