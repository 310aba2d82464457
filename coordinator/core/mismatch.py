"""Says how two announcements of one name differ, in words that Horovod's users know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.coordinator.core.values import Kind, Signature

DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "bfloat16")
OPS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")


def describe(signature: Signature) -> str:
    """The operation as a message names it."""
    return f"{signature.kind.name.lower()} {signature.name!r}"


def difference(mine: Signature, first: Signature) -> tuple[str, str, str] | None:
    """(what, my value, the first one's value) of the first thing that differs, None when the two agree."""
    kind = first.kind.name
    checks = (
        ("Mismatched operations", mine.kind.name.lower(), first.kind.name.lower()),
        ("Mismatched data types", _dtype(mine.dtype), _dtype(first.dtype)),
        (f"Mismatched {kind} CPU/GPU device selection", _device(mine.device), _device(first.device)),
        ("Mismatched reduction operation", _op(mine), _op(first)),
        ("Mismatched prescale and/or postscale factors", _factors(mine), _factors(first)),
        (f"Mismatched {kind} root ranks", f"root {mine.root}", f"root {first.root}"),
    )
    for what, my_value, first_value in checks:
        if my_value != first_value:
            return what, my_value, first_value
    if mine.shapes != first.shapes:
        return _shape_difference(mine, first)
    return _name_difference(mine, first)


def text(first: Signature, holders: Mapping[str, Sequence[int]], what: str, hosts: Mapping[int, str]) -> str:
    """One message for all members: every value with the ranks that hold it."""
    sides = "; ".join(f"{value} on {ranks_text(ranks, hosts)}" for value, ranks in holders.items())
    return (
        f"{what}: {describe(first)} was submitted with {sides}. All ranks of a process set must submit a name "
        "with the same arguments. The ranks are still in step: correct the call and go on."
    )


def ranks_text(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """``rank 1 (host a)`` or ``ranks 0, 2 (hosts a, b)``."""
    names = list(dict.fromkeys(hosts.get(rank, "?") for rank in ranks))
    plural = "s" if len(ranks) > 1 else ""
    host_word = "hosts" if len(names) > 1 else "host"
    return f"rank{plural} {', '.join(map(str, sorted(ranks)))} ({host_word} {', '.join(names)})"


def _shape_difference(mine: Signature, first: Signature) -> tuple[str, str, str]:
    what = f"Mismatched {first.kind.name} tensor shapes"
    if len(mine.shapes) != len(first.shapes):
        return what, f"{len(mine.shapes)} tensors", f"{len(first.shapes)} tensors"
    at = next(i for i, shape in enumerate(mine.shapes) if shape != first.shapes[i])
    return what, _tensor(mine, at), _tensor(first, at)


def _name_difference(mine: Signature, first: Signature) -> tuple[str, str, str] | None:
    # Groups whose tensors have other names would add unlike gradients, whatever their shapes.
    pairs = zip(mine.tensor_names, first.tensor_names, strict=False)
    found = next(((a, b) for a, b in pairs if a != b), None)
    return found and (f"Mismatched {first.kind.name} tensor names", f"tensor {found[0]!r}", f"tensor {found[1]!r}")


def _tensor(signature: Signature, index: int) -> str:
    dims = ["any" if dim < 0 else str(dim) for dim in signature.shapes[index]]
    name = f"tensor {signature.tensor_names[index]!r} " if index < len(signature.tensor_names) else ""
    return f"{name}shape [{', '.join(dims)}]"


def _dtype(number: int) -> str:
    return DTYPES[number] if number < len(DTYPES) else f"dtype {number}"


def _device(number: int) -> str:
    return "GPU" if number else "CPU"


def _op(signature: Signature) -> str:
    reduces = signature.kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER)
    return OPS[signature.op] if reduces and signature.op < len(OPS) else ""


def _factors(signature: Signature) -> str:
    return f"prescale {_factor(signature.prescale)}, postscale {_factor(signature.postscale)}"


def _factor(value: float) -> str:
    """In few digits where they say it; factors that differ never look alike."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
