"""Reports on their way to a real coordinator."""

from __future__ import annotations

import asyncio

import pytest
from horovod.agent import uplink as module
from horovod.agent.uplink import Uplink, UplinkOptions
from horovod.proto import control_pb2, worker_pb2
from horovod.proto.security import Security

from tests.coordinator.peers import run, serving

NAMES = [f"allreduce.x{number}" for number in range(300)]


class Listener:
    """Hears orders; anything else would be an error."""

    def __init__(self) -> None:
        self.registered = asyncio.Event()

    def ordered(self, order: control_pb2.Order) -> None:
        assert order.WhichOneof("body") == "registered"
        self.registered.set()

    def abandoned(self, reason: str) -> None:
        raise AssertionError(reason)

    def refused(self, text: str) -> None:
        raise AssertionError(text)


def announcement(name: str, epoch: int) -> control_pb2.AgentReport:
    item = control_pb2.Announcement(request=1, signature=worker_pb2.Signature(name=name))
    return control_pb2.AgentReport(epoch=epoch, announcements=control_pb2.Announcements(items=[item]))


def frames(*reports: control_pb2.AgentReport) -> list[control_pb2.AgentReport]:
    """What the coordinator gets when all of them are reported in one turn."""

    async def story() -> list[control_pb2.AgentReport]:
        got: list[control_pb2.AgentReport] = []
        async with serving() as peers:
            peers.service.reported = lambda _agent, report: got.append(report)  # type: ignore[method-assign]
            listener = Listener()
            register = control_pb2.Register(agent="a", host="h", slots=1)
            uplink = Uplink(UplinkOptions(peers.address, Security(), register), listener)
            uplink.start()
            await listener.registered.wait()
            for report in reports:
                uplink.report(report)
            while uplink.unconfirmed_bytes:
                await asyncio.sleep(0.01)
            await uplink.close()
        return got

    return run(story)


def test_announcements_of_one_turn_travel_together() -> None:
    (got,) = frames(*(announcement(name, 1) for name in NAMES))
    assert [item.signature.name for item in got.announcements.items] == NAMES


def test_what_lies_between_and_other_epochs_stay_apart() -> None:
    left = control_pb2.AgentReport(epoch=1, rank_left=control_pb2.RankLeft(rank=0))
    sent = [announcement("a", 1), announcement("b", 1), left, announcement("c", 1), announcement("d", 2)]
    got = frames(*sent)
    assert [report.epoch for report in got] == [1, 1, 1, 2]
    assert [report.WhichOneof("body") for report in got] == ["announcements", "rank_left", *["announcements"] * 2]
    assert [len(report.announcements.items) for report in got] == [2, 0, 1, 1]


def test_a_frame_grows_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_JOINED_BYTES", 3 * announcement(NAMES[0], 1).ByteSize())
    got = frames(*(announcement(name, 1) for name in NAMES[:10]))
    assert len(got) in (3, 4)
    assert [item.signature.name for report in got for item in report.announcements.items] == NAMES[:10]
