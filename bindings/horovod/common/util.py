"""Small helpers that scripts and bindings import by name."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from horovod.common import config
from horovod.common.exceptions import HorovodVersionMismatchError

__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "check_num_rank_power_of_2",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def env(**values: str | None) -> Iterator[None]:
    """Sets environment variables for a while; None removes one."""
    before = config.replace_variables(values)
    try:
        yield
    finally:
        config.replace_variables(before)


def _cache(function: F) -> F:
    """Remembers results by the arguments' representation."""
    results: dict[str, Any] = {}

    def cached(*args: Any, **kwargs: Any) -> Any:
        key = repr((args, sorted(kwargs.items())))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached  # type: ignore[return-value]


_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "mxnet": "mxnet", "keras": "keras"}


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the binding of this framework can be used here: the framework and the binding are installed."""
    framework = _FRAMEWORKS.get(ext_base_name, ext_base_name)
    found = [name for name in (framework, f"horovod.{ext_base_name}") if importlib.util.find_spec(name) is not None]
    if verbose and len(found) < 2:
        print(f"{ext_base_name}: not available, found only {found}")
    return len(found) == 2


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Raises ImportError where the binding's framework is missing; bindings need no build step of their own."""
    if importlib.util.find_spec(ext_name.rpartition(".")[2]) is None:
        raise ImportError(f"{ext_name} needs its framework: install it with pip, hvd need not be reinstalled.")


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Raises HorovodVersionMismatchError when the installed distribution has another version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        found = installed(name)
    except PackageNotFoundError:
        found = "none"
    if found != version:
        raise HorovodVersionMismatchError(name, version, found) from exception


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether collectives run on GPUs of this framework."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """No: nothing here is built on MPI."""
    return False


def gloo_built(verbose: bool = False) -> bool:
    """Yes, in the sense of the question: jobs run without MPI."""
    return True


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL is built in."""
    return False


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM DDL is built in."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL is built in."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether the number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Raises ValueError where Adasum can't work with so many ranks."""
    if not num_rank_is_power_2(num_rank):
        raise ValueError(f"Adasum needs a power of two of ranks, got {num_rank}.")
    return True


def split_list(items: Sequence[T], num_parts: int) -> list[list[T]]:
    """Cuts into that many parts, the first ones longer by one; parts that would be empty are left out."""
    parts: list[list[T]] = []
    start = 0
    for index in range(num_parts):
        stop = start + len(items) // num_parts + (index < len(items) % num_parts)
        if stop > start:
            parts.append(list(items[start:stop]))
        start = stop
    return parts


def is_iterable(value: object) -> bool:
    """Whether ``iter`` accepts it."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _version_numbers(text: str) -> tuple[int, int, int]:
    parts = text.split("+")[0].split(".")
    if len(parts) < 3 or not all(part[:1].isdigit() for part in parts[:3]):
        raise ValueError(f"Version {text!r} must look like x.y.z.")
    major, minor, patch = (int("".join(_leading_digits(part))) for part in parts[:3])
    return major, minor, patch


def _leading_digits(text: str) -> Iterable[str]:
    for character in text:
        if not character.isdigit():
            return
        yield character


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compares versions of the form x.y.z; ValueError for others."""
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError("Versions must be strings.")
    if len(target.split(".")) != 3 or not all(part.isdigit() for part in target.split(".")):
        raise ValueError(f"Version {target!r} must look like x.y.z.")
    return _version_numbers(ver) >= _version_numbers(target)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function (op, average) -> op that honours the old ``average`` argument.

    ValueError when both are given; a DeprecationWarning when ``average`` is; Average when neither is.
    """

    def choose(op: Any, average: bool | None) -> Any:
        if op is not None and average is not None:
            raise ValueError("Both op and average are given: give op only.")
        if op is not None:
            return op
        if average is None:
            return reduce_ops.Average
        warnings.warn("Parameter `average` is deprecated, use op=Average or op=Sum.", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return choose
