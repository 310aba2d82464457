"""What is not part of this release says so when it is imported, and is simply not there when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import horovod
import pytest
from horovod.common.missing import _Finder, watch_imports

MODULES = ["tensorflow", "keras", "spark", "ray", "mxnet", "runner.elastic"]


@pytest.mark.parametrize("name", MODULES)
def test_imports_say_what_is_missing(name: str) -> None:
    full = f"horovod.{name}"
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod\.\S+': .* docs/roadmap\.md") as raised:
        importlib.import_module(full)
    assert raised.value.name == full
    with pytest.raises(ImportError, match=r"docs/roadmap\.md"):
        exec(f"import {full} as hvd")
    assert importlib.util.find_spec(full) is None
    assert full not in sys.modules


def test_below_a_missing_module() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"docs/roadmap\.md"):
        importlib.import_module("horovod.tensorflow.keras")


def test_other_modules_are_missed_as_usual() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod.nonsense'$"):
        importlib.import_module("horovod.nonsense")
    assert not hasattr(horovod, "tensorflow")
    with pytest.raises(AttributeError, match=r"^module 'horovod' has no attribute 'nonsense'$"):
        _ = horovod.nonsense


def test_the_finder_is_there_once() -> None:
    watch_imports()
    assert len([finder for finder in sys.meta_path if isinstance(finder, _Finder)]) == 1
