"""Names that scripts import from ``horovod.common.util``, the error tree, and handles."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from horovod.common import exceptions, util
from horovod.common.exceptions import ErrorKind, error_of_kind
from horovod.common.handles import HandleTable


def test_env_sets_and_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_TEST_A", "before")
    monkeypatch.delenv("HVD_TEST_B", raising=False)
    with util.env(HVD_TEST_A=None, HVD_TEST_B="new"):
        assert "HVD_TEST_A" not in os.environ
        assert os.environ["HVD_TEST_B"] == "new"
    assert os.environ["HVD_TEST_A"] == "before"
    assert "HVD_TEST_B" not in os.environ


def test_cache_remembers_by_arguments() -> None:
    calls: list[object] = []
    cached = util._cache(lambda *args, **kwargs: calls.append((args, kwargs)) or len(calls))
    assert [cached(1), cached(1), cached(2), cached(1, a=3), cached(1, a=3)] == [1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("items", "parts", "expected"),
    [([1, 2, 3, 4, 5], 2, [[1, 2, 3], [4, 5]]), ([1, 2], 3, [[1], [2]]), ([], 2, []), ([1, 2, 3], 1, [[1, 2, 3]])],
)
def test_split_list(items: list[int], parts: int, expected: list[list[int]]) -> None:
    assert util.split_list(items, parts) == expected


def test_powers_of_two() -> None:
    assert [n for n in range(-2, 10) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    with pytest.raises(ValueError, match="power of two"):
        util.check_num_rank_power_of_2(3)


@pytest.mark.parametrize(
    ("have", "want", "answer"),
    [("2.1.0", "2.1.0", True), ("2.13.0+cpu", "2.9.1", True), ("1.0.0", "1.0.1", False), ("2.0.0rc1", "1.9.9", True)],
)
def test_version_comparison(have: str, want: str, answer: bool) -> None:
    assert util.is_version_greater_equal_than(have, want) is answer


@pytest.mark.parametrize(("have", "want"), [("2.1", "2.1.0"), ("2.1.0", "2.1"), ("2.1.0", "a.b.c"), (2, "1.0.0")])
def test_version_comparison_refuses(have: str, want: str) -> None:
    with pytest.raises(ValueError):
        util.is_version_greater_equal_than(have, want)


def test_average_argument() -> None:
    choose = util.get_average_backwards_compatibility_fun(SimpleNamespace(Average=0, Sum=1))
    assert choose(None, None) == 0
    assert choose(3, None) == 3
    with pytest.warns(DeprecationWarning, match="average"):
        assert choose(None, False) == 1
    with pytest.raises(ValueError, match="Both"):
        choose(0, True)


def test_what_is_built() -> None:
    assert util.gloo_built()
    assert not any((util.mpi_built(), util.nccl_built(), util.ddl_built(), util.ccl_built(), util.gpu_available("x")))
    assert not util.extension_available("no_such_framework", verbose=True)
    assert util.is_iterable([])
    assert not util.is_iterable(3)
    with pytest.raises(ImportError, match="framework"):
        util.check_extension("horovod.no_such_framework")
    with pytest.raises(exceptions.HorovodVersionMismatchError, match="has version none"):
        util.check_installed_version("no-such-distribution", "1.0")


def test_error_tree() -> None:
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    for kind in ErrorKind:
        base = ValueError if kind is ErrorKind.INVALID else exceptions.HorovodInternalError
        assert isinstance(error_of_kind(kind, "text"), base)
    assert type(error_of_kind(77, "text")) is exceptions.HorovodInternalError
    for name in ("UsageError", "NotInitializedError", "DuplicateNameError", "StartError"):
        assert issubclass(getattr(exceptions, name), ValueError)
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync
    assert set(exceptions.__all__) == {name for name in vars(exceptions) if _is_own(name)}


def _is_own(name: str) -> bool:
    return getattr(getattr(exceptions, name), "__module__", "") == exceptions.__name__ and not name.startswith("_")


def test_handles_restart() -> None:
    table: HandleTable[str] = HandleTable()
    first = table.advance()
    table.put(first, "a")
    assert table.advance() == first + 1
    assert (table.get(first), table.pop(first), table.pop(first), len(table)) == ("a", "a", None, 0)
    table.reset()
    assert table.advance() == first
