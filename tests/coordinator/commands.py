"""Words of the scenario files: each line is an event, told in short.

    agent NAME HOST SLOTS             an agent registers
    job SIZE [WORD...]                a job is submitted
    up                                every rank starts and says Hello
    started RANK                      hello RANK [generation=1] [sets=0,1;1,2] [dynamic=yes] [join=extended]
    announce RANK REQUEST NAME        [kind= dtype= shape=2,3;4 names=a,b op= pre= post= root= set= device=
                                      contest=PLAN@ROUND noroom=BYTES gone=yes]
    held AGENT PLAN RANK:COUNT...     retired AGENT PLAN
    join RANK REQUEST                 quiet AGENT [PLAN...]
    addset RANK REQUEST 0,1           rmset RANK REQUEST ID
    left RANK [generation=1 reason=TEXT]  exit RANK CODE [signal= left=no lines=TEXT error=TEXT]
    observe AGENT [round=PLAN/ROUND/AGE/MISSING/HOLDERS] [rank=RANK/SUBMITS/BLOCKED/SECONDS/STATE]
                  [on=RANK/PLAN/ROUND/NAME[/CALL]] [used=PLAN]    may be repeated
    guests AGENT [ID[/RANK[/SIZE]]...] [resting=N]    processes that others have started wait; their pid is 200 + ID
    gather SIZE                       a launcher waits for such processes
    trips AGENT OTHER:SECONDS...      an agent has measured the way to others
    lost AGENT REASON                 cancel CODE REASON
    wait SECONDS                      time passes, then a tick

A plan is written p1, p2, ... (without the incarnation); ``@N`` before a word speaks of epoch N instead of the
current one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from horovod.coordinator.core import AgentLost, Event, GatheringOpened, JobCancelled, JobSubmitted, Report, Tick
from horovod.coordinator.core import events as ev
from horovod.coordinator.core.mismatch import DTYPES, OPS
from horovod.coordinator.core.values import (
    Announcement,
    BlockedOn,
    Guest,
    Kind,
    OpenRound,
    ProcessSet,
    RankCount,
    RankState,
    RoundTrip,
    Signature,
)

Options = dict[str, list[str]]
PLAN_BASE = 1 << 40


def plan_id(text: str) -> int:
    """``p3`` -> the id with incarnation 1; ``0`` stays 0."""
    return PLAN_BASE + int(text[1:]) if text.startswith("p") else int(text)


def ints(text: str) -> tuple[int, ...]:
    """``0,2`` -> (0, 2)."""
    return tuple(int(word) for word in text.split(",") if word)


def split(line: str) -> tuple[list[str], Options]:
    """Words and key=value options of a line."""
    words, options = [], Options()
    for word in shlex.split(line):
        key, sign, value = word.partition("=")
        if sign:
            options.setdefault(key, []).append(value)
        else:
            words.append(word)
    return words, options


def one(options: Options, key: str, default: str) -> str:
    """The last value of an option."""
    return options.get(key, [default])[-1]


def signature(name: str, options: Options) -> Signature:
    """From an announce line."""
    shapes = tuple(ints(shape) for shape in one(options, "shape", "4").split(";"))
    return Signature(
        kind=Kind[one(options, "kind", "allreduce").upper()],
        name=name,
        unnamed=".noname." in name,
        dtype=DTYPES.index(one(options, "dtype", "float32")),
        shapes=shapes,
        tensor_names=tuple(word for word in one(options, "names", "").split(",") if word),
        op=OPS.index(one(options, "op", "Sum")),
        prescale=float(one(options, "pre", "1")),
        postscale=float(one(options, "post", "1")),
        root=int(one(options, "root", "-1")),
        process_set=int(one(options, "set", "0")),
        device=int(one(options, "device", "0")),
    )


def _announce(words: list[str], options: Options) -> ev.Body:
    plan, _, number = one(options, "contest", "0@0").partition("@")
    numbers, no_room_bytes = (int(words[0]), int(words[1])), int(one(options, "noroom", "0"))
    gone = one(options, "gone", "no") == "yes"
    return ev.Announcements(
        (Announcement(*numbers, signature(words[2], options), plan_id(plan), int(number), no_room_bytes, gone),)
    )


def _hello(words: list[str], options: Options) -> ev.Body:
    sets = tuple(ProcessSet(0, ints(item)) for item in one(options, "sets", "").split(";") if item)
    rank, generation = int(words[0]), int(one(options, "generation", "1"))
    dynamic, extended = one(options, "dynamic", "no") == "yes", one(options, "join", "default") == "extended"
    return ev.RankHello(rank, generation, 100 + rank, sets, dynamic, extended)


def _exit(words: list[str], options: Options) -> ev.Body:
    rank = int(words[0])
    return ev.RankExited(
        rank,
        100 + rank,
        int(words[1]),
        int(one(options, "signal", "0")),
        one(options, "left", "yes") == "yes",
        one(options, "lines", ""),
        one(options, "error", ""),
    )


def _observe(words: list[str], options: Options) -> ev.Body:
    rounds, ranks, blocked = [], [], []
    for item in options.get("round", []):
        travels = item.endswith("travels")
        plan, number, age, missing, holders = item.removesuffix("travels").split("/")
        rounds.append(OpenRound(plan_id(plan), int(number), float(age), ints(missing), ints(holders), travels))
    for item in options.get("rank", []):
        rank, submits, threads, seconds, state = item.split("/")
        ranks.append(RankState(int(rank), int(submits), int(threads), 0, float(seconds), state))
    for item in options.get("on", []):
        rank, plan, number, name, *call = item.split("/")
        blocked.append(BlockedOn(int(rank), plan_id(plan), int(number), name, *map(int, call)))
    used = tuple(plan_id(item) for item in options.get("used", []))
    return ev.Observation(tuple(rounds), tuple(ranks), used, tuple(blocked))


def _trips(words: list[str], options: Options) -> ev.Body:
    pairs = (word.split(":") for word in words[1:])
    return ev.RoundTrips(tuple(RoundTrip(agent, float(seconds)) for agent, seconds in pairs))


def _held(words: list[str], options: Options) -> ev.Body:
    counts = [word.split(":") for word in words[2:]]
    return ev.Held(plan_id(words[1]), tuple(RankCount(int(rank), int(count)) for rank, count in counts))


def _guests(words: list[str], options: Options) -> ev.Body:
    items = []
    for word in words[1:]:
        number, rank, size = word.split("/") + ["-1", "0"][word.count("/") :]
        items.append(Guest(int(number), 200 + int(number), int(rank), int(size)))
    return ev.Guests(tuple(items), int(one(options, "resting", "0")))


BY_RANK: dict[str, Callable[[list[str], Options], ev.Body]] = {
    "started": lambda words, options: ev.RankStarted(int(words[0]), 100 + int(words[0])),
    "hello": _hello,
    "announce": _announce,
    "join": lambda words, options: ev.JoinRequested(int(words[0]), int(words[1])),
    "addset": lambda words, options: ev.SetAddRequested(int(words[0]), int(words[1]), ints(words[2])),
    "rmset": lambda words, options: ev.SetRemoveRequested(int(words[0]), int(words[1]), int(words[2])),
    "left": lambda words, options: ev.RankLeft(
        int(words[0]), int(one(options, "generation", "1")), one(options, "reason", "")
    ),
    "exit": _exit,
}


def _register(words: list[str], options: Options) -> ev.Body:
    labels = dict(label.split(":") for label in options.get("label", ()))
    return ev.Register(words[0], words[1], int(words[2]), labels, tuple(options.get("at", ())))


BY_AGENT: dict[str, Callable[[list[str], Options], ev.Body]] = {
    "agent": _register,
    "peerlost": lambda words, options: ev.PeerLost(words[1], " ".join(words[2:])),
    "held": _held,
    "retired": lambda words, options: ev.PlanRetired(plan_id(words[1])),
    "quiet": lambda words, options: ev.JoinQuiet(tuple(plan_id(word) for word in words[1:])),
    "observe": _observe,
    "guests": _guests,
    "trips": _trips,
}
OTHERS: dict[str, Callable[[list[str]], Event]] = {
    "job": lambda words: JobSubmitted(int(words[0]), tuple(words[1:]) or ("train",)),
    "gather": lambda words: GatheringOpened(int(words[0])),
    "lost": lambda words: AgentLost(words[0], " ".join(words[1:])),
    "cancel": lambda words: JobCancelled(int(words[0]), " ".join(words[1:])),
    "wait": lambda words: Tick(),
}


def event(word: str, words: list[str], options: Options, agents: dict[int, str], epoch: int) -> Event:
    """The event of one line; KeyError for an unknown word."""
    if word in BY_AGENT:
        return Report(words[0], epoch, BY_AGENT[word](words, options))
    if word in BY_RANK:
        return Report(agents.get(int(words[0]), "?"), epoch, BY_RANK[word](words, options))
    return OTHERS[word](words)
