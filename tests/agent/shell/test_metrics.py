"""Metrics and snapshot of an agent follow its core, its board and what its daemon knows."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field

from horovod import native
from horovod.agent.core import AgentCore
from horovod.agent.core import events as ev
from horovod.agent.core import values as v
from horovod.agent.core.tally import LOCAL, Tally
from horovod.agent.http import agent_pages
from horovod.agent.metrics import TABLE, AgentView, Facts, ShellState, agent_collector
from horovod.agent.snapshot import agent_snapshot

from tests.agent.core.fakes import World
from tests.observe.values import values_of


@dataclass
class FakeBoard:
    """Says what it is told to."""

    open_rounds: list[native.RoundInfo] = field(default_factory=list)
    infos: list[native.RankInfo] = field(default_factory=list)

    def rounds(self) -> list[native.RoundInfo]:
        return self.open_rounds

    def ranks(self) -> list[native.RankInfo]:
        return self.infos

    def board_bytes(self) -> int:
        return 4096

    def arena_bytes(self) -> list[int]:
        return [100, 200][: len(self.infos)]

    def times(self) -> None:
        """The tally has them already."""

    def net(self) -> native.NetInfo | None:
        return native.NetInfo(*range(13)) if self.infos else None


@dataclass
class FakeShell:
    """A shell without an outside."""

    core: AgentCore
    board: FakeBoard = field(default_factory=FakeBoard)
    output_backlog_bytes: int = 77


def view_of(shell: ShellState | None, tally: Tally | None = None) -> AgentView:
    return AgentView("a", "host-a", 4, tally or Tally(), lambda: shell, {"rack": "r1"})


def test_an_agent_without_a_job_has_its_totals_and_no_board() -> None:
    tally = Tally(jobs=3)
    tally.ran("allreduce", "local", 10, 8)
    values = values_of(agent_collector(view_of(None, tally)))
    assert (values["hvd_agent_jobs_total"], values["hvd_agent_local_slots"], values["hvd_agent_epoch"]) == (3, 4, 0)
    assert values['hvd_agent_rounds_total{collective="allreduce",plane="local"}'] == 10
    assert values['hvd_agent_round_payload_bytes_total{collective="allreduce",plane="local"}'] == 80
    assert not any(
        name.startswith(("hvd_agent_board", "hvd_agent_open", "hvd_agent_link", "hvd_agent_net")) for name in values
    )


def test_ranks_by_state() -> None:
    world = World()
    values = agent_values(world)
    assert sum(values[name] for name in values if name.startswith("hvd_agent_ranks{")) == 0
    world.start()
    assert agent_values(world)['hvd_agent_ranks{state="starting"}'] == 2
    world.rank(0, world.hello(0))
    values = agent_values(world)
    assert (values['hvd_agent_ranks{state="waiting"}'], values['hvd_agent_ranks{state="starting"}']) == (1, 1)
    world.begin()
    assert agent_values(world)['hvd_agent_ranks{state="ready"}'] == 2
    world.rank(1, v.Leave(1))
    world.tell(ev.ProcessEnded(0, 0))
    values = agent_values(world)
    assert (values['hvd_agent_ranks{state="left"}'], values['hvd_agent_ranks{state="gone"}']) == (1, 1)


def agent_values(world: World) -> dict[str, float]:
    return values_of(agent_collector(view_of(FakeShell(world.core), world.core.tally)))


def shell_in_an_epoch() -> FakeShell:
    world = World()
    world.begin()
    world.plan()
    now_ns = 5
    rounds = [
        native.RoundInfo(7, 448, 3, 2_500_000_000, 2, 1, 0),
        native.RoundInfo(7, 448, 2, 1_000_000_000, 2, 2, 1),
        native.RoundInfo(7, 448, 1, 9_000_000_000, 2, 2, 2),
    ]
    return FakeShell(
        world.core, FakeBoard(rounds, [native.RankInfo(9, 2, 7, now_ns, 0), native.RankInfo(8, 0, 0, 0, 0)])
    )


def test_open_rounds_their_age_and_what_ranks_use() -> None:
    shell = shell_in_an_epoch()
    values = values_of(agent_collector(view_of(shell)))
    assert (values["hvd_agent_epoch"], values["hvd_agent_plans"]) == (1, 1)
    assert [values[f'hvd_agent_open_rounds{{phase="{phase}"}}'] for phase in ("missing", "reducing", "unread")] == [
        1,
        1,
        1,
    ]
    assert values["hvd_agent_oldest_round_seconds"] == 2.5  # one that is complete does not count
    assert values['hvd_agent_rank_blocked_threads{rank="0"}'] == 2
    assert values['hvd_agent_arena_bytes{rank="1"}'] == 200
    assert (values["hvd_agent_board_bytes"], values["hvd_agent_output_backlog_bytes"]) == (4096, 77)
    assert (values["hvd_agent_net_parked_bytes"], values["hvd_agent_net_waiting_frames"]) == (11, 12)
    shell.core.epoch = None  # its board is about to go
    assert not any("rank=" in name for name in values_of(agent_collector(view_of(shell))))


def test_facts_of_the_daemon() -> None:
    facts = Facts(lambda: True, lambda: 2, lambda: {"reports": 5})
    values = values_of(agent_collector(view_of(None), facts))
    assert (values["hvd_agent_registered"], values["hvd_agent_sessions_total"]) == (1, 2)
    assert values['hvd_agent_unconfirmed_bytes{kind="reports"}'] == 5


def test_every_metric_of_the_table_can_have_a_value() -> None:
    tally = Tally(awaited_s={0: 1.0})
    tally.ran("allreduce", "local", 1, 4)
    tally.output_bytes["stdout"] += 5
    tally.sent_bytes["b"] = tally.received_bytes["b"] = tally.net["writes"] = 1
    tally.retransmits["b"] = tally.stages["ring", "copy", 3] = tally.stages[LOCAL, "wait", 3] = 1
    facts = Facts(lambda: True, lambda: 2, lambda: {"reports": 5})
    view = dataclasses.replace(view_of(shell_in_an_epoch(), tally), lobby=lambda: ("unix:/x", 2))
    assert agent_snapshot(view)["lobby"] == {"address": "unix:/x", "waiting": 2}
    values = values_of(agent_collector(view, facts))
    assert values["hvd_agent_waiting_processes"] == 2
    names = {re.sub("_(bucket|sum|count)$", "", name.partition("{")[0]) for name in values}
    assert names == {metric.name for metric in TABLE}


def test_stages_of_rounds_are_told_in_seconds() -> None:
    tally = Tally()
    tally.stages.update({("direct", "wait", 0): 2, ("direct", "wait", 1): 1, ("direct", "wait", 23): 4})
    tally.stage_ns["direct", "wait"] = 2_500_000_000
    values = values_of(agent_collector(view_of(None, tally)))
    of_stage = {name: value for name, value in values.items() if name.startswith("hvd_agent_net_stage_seconds")}
    label = 'algorithm="direct",stage="wait"'
    assert of_stage[f"hvd_agent_net_stage_seconds_sum{{{label}}}"] == 2.5
    buckets = [value for name, value in of_stage.items() if "_bucket" in name]
    assert buckets == [3] * 11 + [7]
    assert f'hvd_agent_net_stage_seconds_bucket{{{label},le="2.048e-06"}}' in of_stage


def test_stages_of_rounds_on_this_host_are_a_metric_of_their_own() -> None:
    tally = Tally()
    tally.stages.update({(LOCAL, "wait", 0): 2, (LOCAL, "reduce", 23): 1})
    tally.stage_ns.update({(LOCAL, "wait"): 1_000, (LOCAL, "reduce"): 3_000_000_000})
    values = values_of(agent_collector(view_of(None, tally)))
    assert values['hvd_agent_local_stage_seconds_count{stage="wait"}'] == 2
    assert values['hvd_agent_local_stage_seconds_sum{stage="reduce"}'] == 3.0
    assert not any(name.startswith("hvd_agent_net_stage_seconds") for name in values)


def test_ready_means_registered() -> None:
    registered = False
    pages = agent_pages(view_of(None), Facts(is_registered=lambda: registered))
    assert "not registered" in pages.reason_not_ready()
    registered = True
    assert pages.reason_not_ready() == ""
    assert agent_pages(view_of(None), Facts()).reason_not_ready() == ""


def test_the_snapshot_shows_ranks_and_open_rounds() -> None:
    state = json.loads(json.dumps(agent_snapshot(view_of(shell_in_an_epoch()))))
    assert (state["name"], state["labels"]) == ("a", {"rack": "r1"})
    job = state["job"]
    assert [rank["state"] for rank in job["ranks"]] == ["ready", "ready"]
    assert [(item["name"], item["round"], item["phase"]) for item in job["rounds"]] == [
        ("allreduce.x", 3, "missing"),
        ("allreduce.x", 2, "reducing"),
    ]
    assert [item["rank"] for item in job["blocked"]] == [0]
    assert (job["epoch"]["number"], job["epoch"]["ring"]) == (1, ["a"])
    assert json.loads(json.dumps(agent_snapshot(view_of(None))))["job"] is None


def test_the_snapshot_shows_no_nonce_no_secret_and_no_command() -> None:
    shell = shell_in_an_epoch()
    shown = json.dumps(agent_snapshot(view_of(shell)))
    assert shell.core.info.secret == "secret"
    assert not any(slot.nonce in shown for slot in shell.core.slots.values())
    assert all(word not in shown for word in ("secret", "train.py", "PATH", "key"))
