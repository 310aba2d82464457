"""The coordinator inside another process: messages in, messages out."""

from __future__ import annotations

import pytest
from horovod.coordinator.core import Config, JobEnded, JobSubmitted, Tick
from horovod.coordinator.core import commands as cmd
from horovod.coordinator.core import events as ev
from horovod.coordinator.embedded import EmbeddedCoordinator, Handlers
from horovod.proto import control_pb2, worker_pb2
from horovod.proto.codec import snake


class Outside:
    """What a launcher would see."""

    def __init__(self) -> None:
        self.now = 0.0
        self.orders: list[tuple[str, control_pb2.Order]] = []
        self.ends: list[JobEnded] = []
        handlers = Handlers(order=lambda agent, order: self.orders.append((agent, order)), job_ended=self.ends.append)
        self.coordinator = EmbeddedCoordinator(Config(start_timeout_s=5), lambda: self.now, handlers)

    def report(self, agent: str, **bodies: object) -> list[control_pb2.Order]:
        self.orders.clear()
        epoch = self.coordinator.core.epochs
        self.coordinator.report(agent, control_pb2.AgentReport(epoch=epoch, **bodies))
        return [order for _, order in self.orders]


@pytest.fixture
def outside() -> Outside:
    made = Outside()
    (order,) = made.report("a", register=control_pb2.Register(agent="a", host="alpha", slots=2, labels={"rack": "1"}))
    assert order.registered.incarnation == 1
    made.coordinator.handle(JobSubmitted(2, ("python", "train.py"), {"KEY": "value"}, "/data"))
    return made


def test_a_job_from_start_to_end(outside: Outside) -> None:
    start = outside.orders[-1][1].start_ranks
    assert list(start.command) == [b"python", b"train.py"]
    assert [(item.name, item.value) for item in start.environment] == [(b"KEY", b"value")]
    assert start.job == 1
    assert list(start.places.local_rank) == [0, 1]
    sets = [worker_pb2.ProcessSet(ranks=[0])]
    outside.report("a", rank_hello=control_pb2.RankHello(rank=0, generation=1, process_sets=sets))
    (order,) = outside.report("a", rank_hello=control_pb2.RankHello(rank=1, generation=1, process_sets=sets))
    assert order.epoch == 1
    assert [list(item.ranks) for item in order.epoch_start.process_sets] == [[0, 1], [0]]
    signature = worker_pb2.Signature(
        kind=worker_pb2.ALLGATHER, name="g", dtype=7, shapes=[worker_pb2.Shape(dims=[-1, 3])]
    )
    items = [control_pb2.Announcement(rank=rank, request=7 + rank, signature=signature) for rank in (0, 1)]
    (order,) = outside.report("a", announcements=control_pb2.Announcements(items=items))
    assert order.plan_made.signature == signature
    assert [(item.rank, item.request) for item in order.plan_made.requests] == [(0, 7), (1, 8)]
    for rank in (0, 1):
        outside.report("a", rank_left=control_pb2.RankLeft(rank=rank, generation=1))
    for rank in (0, 1):
        outside.report("a", rank_exited=control_pb2.RankExited(rank=rank, left=True))
    assert [(end.code, end.text) for end in outside.ends] == [(0, "")]


def test_time_comes_from_the_clock(outside: Outside) -> None:
    outside.report("a", rank_hello=control_pb2.RankHello(rank=0, generation=1))
    outside.now = 6.0
    outside.orders.clear()
    outside.coordinator.handle(Tick())
    assert [order.WhichOneof("body") for _, order in outside.orders] == ["rank_rejected", "stop_ranks"]


def test_an_empty_report_is_refused(outside: Outside) -> None:
    with pytest.raises(KeyError, match="AgentReport has no body"):
        outside.report("a")


def test_every_body_is_a_message_and_every_message_a_body() -> None:
    reports = {field.name for field in control_pb2.AgentReport.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert {snake(kind.__name__) for kind in ev.BODIES} == reports
    orders = {field.name for field in control_pb2.Order.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert {snake(kind.__name__) for kind in cmd.Body.__args__} == orders
