"""Makes a random program from a seed: what every rank calls, in which order and on which thread.

A program is a list of steps.  Between two steps all ranks meet in a barrier, inside a step each rank runs its calls in
an order and on threads of its own.  Whatever a seed yields must be legal: no rank waits for a call that another rank
makes only after it.  To that end all calls of a step are submitted (asynchronously) before any is waited for, unless the
whole step is made of blocking calls in one order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

AVERAGE, SUM, MIN, MAX, PRODUCT = 0, 1, 3, 4, 5
SIZES = (0, 1, 2, 3, 7, 64, 1023, 1025, 16_384, 16_385, 40_000, 131_072, 300_001)
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "float16")
KINDS = ("allreduce", "allreduce", "allreduce", "grouped", "allgather", "broadcast", "alltoall", "reducescatter")


@dataclass(frozen=True)
class Call:
    """One collective as all its members make it; ``odd_rank`` (>= 0) submits another shape, so that all are refused."""

    index: int
    kind: str
    name: str | None
    dtype: str
    count: int
    op: int = SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    members: tuple[int, ...] = ()
    in_place: bool = False
    odd_rank: int = -1
    parts: int = 1


@dataclass(frozen=True)
class Step:
    """``orders[rank]`` is the order of submission, ``threads`` share the calls, ``blocking`` waits at each."""

    calls: tuple[Call, ...]
    orders: tuple[tuple[int, ...], ...]
    threads: int
    blocking: bool


@dataclass(frozen=True)
class Program:
    """``sets`` are the rank lists given to init; ``tail[rank]`` counts allreduces before this rank joins."""

    seed: int
    size: int
    sets: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    tail: tuple[int, ...] = field(default=())


def make_program(seed: int, size: int, steps: int) -> Program:
    """A legal program for ``size`` ranks; equal arguments give equal programs."""
    rng = random.Random(seed)
    with_sets = size > 1 and rng.random() < 0.5
    sets = _sets(rng, size) if with_sets else ()
    made = tuple(_step(rng, size, number, sets) for number in range(steps))
    tail = tuple(rng.randrange(5) for _ in range(size)) if rng.random() < 0.6 else ()
    return Program(seed, size, sets, made, tail)


def _sets(rng: random.Random, size: int) -> tuple[tuple[int, ...], ...]:
    found: list[tuple[int, ...]] = []
    for _ in range(rng.randint(1, 3)):
        ranks = tuple(sorted(rng.sample(range(size), rng.randint(1, size))))
        if len(ranks) < size and ranks not in found:
            found.append(ranks)
    return tuple(found)


def _step(rng: random.Random, size: int, number: int, sets: tuple[tuple[int, ...], ...]) -> Step:
    blocking = rng.random() < 0.3
    unnamed = not sets and rng.random() < 0.3
    calls = tuple(_call(rng, size, number, i, sets, unnamed) for i in range(rng.randint(1, 12)))
    same_order = blocking or unnamed
    base = tuple(range(len(calls)))
    orders = tuple(base if same_order else tuple(rng.sample(base, len(base))) for _ in range(size))
    threads = 1 if same_order else rng.choice((1, 1, 2, 3))
    return Step(calls, orders, threads, blocking)


def _call(
    rng: random.Random, size: int, number: int, index: int, sets: tuple[tuple[int, ...], ...], unnamed: bool
) -> Call:
    members = rng.choice((*sets, tuple(range(size))))
    kind = rng.choice(KINDS)
    # Few names over many steps, so that a name comes back with another size, dtype or kind.
    fresh = rng.random() < 0.2
    name = None if unnamed else f"{kind}.{index}" + (f".{number}" if fresh else "")
    refused = len(members) > 1 and kind in ("allreduce", "broadcast") and not unnamed and rng.random() < 0.06
    reducing = kind in ("allreduce", "grouped", "reducescatter")
    op = rng.choice((SUM, AVERAGE)) if kind == "reducescatter" else rng.choice((SUM, SUM, AVERAGE, MIN, MAX, PRODUCT))
    scaled = reducing and rng.random() < 0.2
    return Call(
        index=index,
        kind=kind,
        name=name,
        dtype=rng.choice(DTYPES) if reducing else rng.choice((*DTYPES, "int8", "int16")),
        count=rng.choice(SIZES[1:9] if kind == "alltoall" else SIZES),
        op=op if reducing else SUM,
        prescale=rng.choice((0.5, 2.0)) if scaled else 1.0,
        postscale=rng.choice((0.25, 3.0)) if scaled else 1.0,
        root=rng.choice(members),
        members=members,
        in_place=rng.random() < 0.5,
        odd_rank=rng.choice(members) if refused else -1,
        parts=rng.randint(1, 5) if kind == "grouped" else 1,
    )
