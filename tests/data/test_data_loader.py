"""Data loaders in a thread: the same batches in the same order, failures where they are consumed, nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader

pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("no_leaks")]


class Numbers(BaseDataLoader):
    """Counts; fails after ``fails_after`` batches."""

    def __init__(self, count: int, fails_after: int | None = None) -> None:
        self.count, self.fails_after = count, fails_after
        self.made: list[int] = []
        self.ended = threading.Event()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                if number == self.fails_after:
                    raise OSError(f"disk failed at {number}")
                self.made.append(number)
                yield number
        finally:
            self.ended.set()

    def _process_batch(self, batch: Any) -> Any:
        return batch, threading.current_thread().name


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    """The same, ahead of its consumer."""


def numbers(loader: BaseDataLoader) -> list[int]:
    return [number for number, _ in loader]


@pytest.mark.parametrize("size", [0, 1, 3, 64])
def test_batches_come_in_order_and_are_processed_by_the_consumer(size: int) -> None:
    loader = AsyncNumbers(size, False, 10)
    assert len(loader) == 10
    for _ in range(2):
        assert list(loader) == [(n, threading.current_thread().name) for n in range(10)]
    assert list(Numbers(3)) == list(AsyncNumbers(size, count=3))


def test_batches_are_made_ahead_and_no_more_than_asked_for() -> None:
    loader = AsyncNumbers(3, count=100)
    passing = iter(loader)
    assert next(passing)[0] == 0
    while len(loader.made) < 4:  # one was taken; three wait, and one may be held by the thread
        pass
    assert len(loader.made) <= 5
    passing.close()  # type: ignore[attr-defined]
    assert loader.ended.is_set()


@pytest.mark.parametrize("size", [0, 1, 64])
def test_a_failure_is_raised_where_batches_are_consumed(size: int) -> None:
    passing, got = iter(AsyncNumbers(size, count=10, fails_after=4)), []
    with pytest.raises(OSError, match="disk failed at 4"):
        got.extend(number for number, _ in passing)
    assert got == [0, 1, 2, 3]


def test_a_consumer_that_stops_early_ends_the_thread() -> None:
    loader = AsyncNumbers(1, count=1000)
    for number, _ in loader:
        if number == 2:
            break
    del number
    assert loader.ended.wait(10)
    assert numbers(loader) == list(range(1000))


def test_closing_ends_the_running_passes() -> None:
    loader = AsyncNumbers(2, count=1000)
    first, second = iter(loader), iter(loader)
    assert (next(first)[0], next(second)[0], next(first)[0]) == (0, 0, 1)
    loader.close_async_loader()
    assert list(first) == list(second) == []
    loader.close_async_loader()
    assert numbers(loader) == list(range(1000))


def test_two_passes_side_by_side_have_all_batches() -> None:
    loader = AsyncNumbers(2, count=20)
    pairs = [(a[0], b[0]) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(n, n) for n in range(20)]


def test_a_loader_that_is_dropped_leaves_no_thread() -> None:
    loader = AsyncNumbers(1, count=1000)
    ended, passing = loader.ended, iter(loader)
    next(passing)
    del loader, passing
    assert ended.wait(10)


def test_debugging_says_how_long_a_pass_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers(AsyncNumbers(4, True, count=3)) == [0, 1, 2]
    assert capsys.readouterr().out == "AsyncNumbers: a pass of 3 batches has ended\n"


def test_a_base_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError):
        list(BaseDataLoader())
