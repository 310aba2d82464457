"""Every order of the steps of two arrivals and a hold: either both operations run in the round or both go elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from tests.model.board import Block, Board, Payload
from tests.model.engine import OK, Engine, NativeOp, State

PLAN = 7
Actor = Callable[["Scene"], Generator[object, None, None]]


class NoSecondLook(Board):
    """Whoever arrives last opens the round, whatever the limit is by now."""

    def open_round(self, block: Block, number: int) -> bool:
        entry = block.entry(number)
        entry.opened = entry.opened or (not entry.closed and len(entry.arrived) == len(block.members))
        return entry.opened


class NothingCloses(Board):
    """Who leaves a round does not close it."""

    def close_unopened(self, block: Block, number: int, how: str) -> bool:
        return not block.entry(number).opened


class Both(NoSecondLook, NothingCloses):
    """Both mistakes."""


class Scene:
    """Two ranks that bind to round 0, and an agent that holds the plan, then gives it up."""

    def __init__(self, board: type[Board]) -> None:
        self.board = board("a", {}, (0, 1))
        self.offset = self.board.add(PLAN, 2, (0, 1), (0, 1))
        self.ops: dict[int, NativeOp] = {}
        self.retired = False

    def rank(self, number: int) -> Generator[object, None, None]:
        """Binds; told of the retirement, it takes its operation off if it can, else goes on waiting."""
        engine = Engine(self.board, number)
        op = self.ops[number] = engine.submit(Payload(number, "x", 0, "x"))
        status, _ = yield from engine.bind(op, self.offset)
        while not self.retired:
            yield "not told"
        limit = self.board.block(PLAN).limits["a"]
        if limit == 0:
            engine.unbind(op)
        elif status != OK:
            list(engine.bind(op, self.offset))
        engine.settle(op)

    def agent(self) -> Generator[object, None, None]:
        """Marks, reads, decides as for an eviction: rounds in which somebody has arrived still run."""
        block = self.board.block(PLAN)
        block.limits["a"] = 0
        yield "marked"
        arrived = max(block.arrivals.values(), default=0)
        yield "read"
        block.limits["a"] = arrived
        self.retired = True


def outcomes(board: type[Board]) -> set[tuple[bool, bool]]:
    """For every order of steps: whether the round opened for each rank's operation."""
    found = set()
    pending: list[tuple[int, ...]] = [()]
    while pending:
        order = pending.pop()
        scene, actors = _replay(board, order)
        enabled = [index for index, (steps, name) in enumerate(actors) if steps is not None and _can_move(scene, name)]
        pending += [(*order, index) for index in enabled]
        if not enabled:
            for number in (0, 1):
                Engine(scene.board, number).settle(scene.ops[number])
            found.add((_ran(scene.ops[0]), _ran(scene.ops[1])))
    return found


def _ran(op: NativeOp) -> bool:
    return op.state is State.COMPLETE


Moving = list[tuple[Generator[object, None, None] | None, str]]


def _replay(board: type[Board], order: tuple[int, ...]) -> tuple[Scene, Moving]:
    scene = Scene(board)
    actors: Moving = [(scene.rank(0), ""), (scene.rank(1), ""), (scene.agent(), "")]
    for index in order:
        steps, _ = actors[index]
        assert steps is not None
        try:
            actors[index] = (steps, str(next(steps)))
        except StopIteration:
            actors[index] = (None, "")
    return scene, actors


def _can_move(scene: Scene, last: str) -> bool:
    return last != "not told" or scene.retired


BOTH_OR_NONE = {(True, True), (False, False)}


@pytest.mark.parametrize("board", [Board, NoSecondLook, NothingCloses])
def test_both_run_or_both_leave(board: type[Board]) -> None:
    assert outcomes(board) == BOTH_OR_NONE


def test_without_either_guard_one_is_left_alone() -> None:
    assert not outcomes(Both) <= BOTH_OR_NONE
