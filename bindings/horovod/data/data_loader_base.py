"""A base for data loaders, and a mix-in that runs one in a thread: ``class Mine(AsyncDataLoaderMixin, MyLoader)``.

Each pass has a thread of its own, which ends with it: at the end of the data, when the consumer stops early, when
``close_async_loader`` is called, or when the loader is gone.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

_LOOK_S = 0.1  # how often a producer with a full queue looks whether anybody still wants its batches


class BaseDataLoader:
    """Subclasses say how long they are and make the batches of a pass."""

    def __len__(self) -> int:
        """How many batches a pass has."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """The batches of one pass."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """The batch as the consumer gets it, made in the consumer's thread."""
        return batch


class _Failure:
    """Stands in the queue for what the producer died of."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Pass:
    """One pass in a thread: batches, then None or a failure."""

    def __init__(self, batches: Iterator[Any], size: int) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(size)
        self._batches = batches
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="hvd-async-data-loader", daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        last: _Failure | None = None
        try:
            for batch in self._batches:
                if not self._put((batch,)):
                    return
        except BaseException as error:
            last = _Failure(error)
        finally:
            self._put(last)

    def _put(self, entry: Any) -> bool:
        """False once nobody wants it any more."""
        while not self._stopped.is_set():
            try:
                self._queue.put(entry, timeout=_LOOK_S)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[Any]:
        try:
            while (entry := self._next()) is not None:
                if isinstance(entry, _Failure):
                    raise entry.error
                yield entry[0]
        finally:
            self.close()

    def _next(self) -> Any:
        while not self._stopped.is_set():
            try:
                return self._queue.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
        return None

    def close(self) -> None:
        """Ends the thread; a batch that it is making is made first."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


class AsyncDataLoaderMixin:
    """Prepares up to ``async_loader_queue_size`` batches ahead; 0 prepares none, in the consumer's thread.

    An exception of the loader is raised where its batches are consumed.  ``debug_data_loader`` prints the length of passes.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the passes that are running; others can be begun."""
        for running in list(self._passes):
            running.close()

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for batch in self._batches():
            count += 1
            yield self._process_batch(batch)  # type: ignore[attr-defined]
        if self.debug_data_loader:
            print(f"{type(self).__name__}: a pass of {count} batches has ended", flush=True)

    def _batches(self) -> Iterator[Any]:
        made: Iterator[Any] = self._iterate()  # type: ignore[attr-defined]
        if self.async_loader_queue_size <= 0:
            return made
        begun = _Pass(made, self.async_loader_queue_size)
        self._passes.add(begun)
        return iter(begun)
