"""Metrics and snapshot of a coordinator follow what happens to it."""

from __future__ import annotations

import json

from horovod.coordinator.core import Config, Coordinator, JobSubmitted, Report
from horovod.coordinator.core import events as ev
from horovod.coordinator.metrics import TABLE, CoordinatorState, Facts, coordinator_collector
from horovod.coordinator.snapshot import coordinator_snapshot
from horovod.observe.metrics import MOST_LABELS, StateCollector

from tests.coordinator.scenario import Player
from tests.observe.values import values_of

TWO_RANKS = ("agent a alpha 1", "agent b beta 2", "job 2", "up")


class Scene:
    """A coordinator whose metrics are read after each story."""

    def __init__(self, *lines: str, config: Config | None = None) -> None:
        self.player = Player(config)
        self.collector = _collector(self.player)
        self.play(*lines)

    def play(self, *lines: str) -> dict[str, float]:
        for line in lines:
            self.player.line(line)
        self._compare()
        return values_of(self.collector)

    def _compare(self) -> None:
        """The short way to the ages of waits says what the long one says."""
        epoch, now = self.player.core.epoch, self.player.now
        if epoch is not None:
            assert sorted(epoch.wait_ages(now)) == sorted(wait.age_s for wait in epoch.waits(now))

    def state(self) -> dict[str, object]:
        return json.loads(json.dumps(coordinator_snapshot(self.player.core, self.player.now)))  # type: ignore[no-any-return]


def _collector(player: Player, facts: Facts | None = None) -> StateCollector:
    core: CoordinatorState = player.core
    return coordinator_collector(core, lambda: player.now, facts)


def test_a_coordinator_without_agents_has_all_metrics_that_it_can_know() -> None:
    values = Scene().play()
    named = {name.partition("{")[0] for name in values}
    absent = {metric.name for metric in TABLE} - named
    assert absent == {
        "hvd_agent_slots",
        "hvd_agent_silence_seconds",
        "hvd_agent_reconnects_total",
        "hvd_jobs_waiting",
        "hvd_job_last_exit_code",
        "hvd_rank_awaited_reports_total",
    }
    incarnation = values.pop("hvd_coordinator_incarnation")
    assert incarnation == 1
    assert set(values.values()) == {0}


def test_agents_and_ranks_by_state() -> None:
    scene = Scene("agent a alpha 1", "agent b beta 2", "agent c gamma 1")
    values = scene.play("job 3", "started 0", "hello 1")
    assert (values['hvd_agents{state="busy"}'], values['hvd_agents{state="idle"}']) == (2, 1)
    assert (values["hvd_slots"], values['hvd_agent_slots{agent="b"}']) == (4, 2)
    assert (values["hvd_job_running"], values["hvd_job_ranks"]) == (1, 3)
    states = {state: values[f'hvd_ranks{{state="{state}"}}'] for state in ("starting", "running", "waiting", "ready")}
    assert states == {"starting": 1, "running": 1, "waiting": 1, "ready": 0}
    values = scene.play("lost c power")
    assert (values["hvd_agents_gone_total"], values['hvd_agents{state="idle"}']) == (1, 0)


def test_epochs_by_the_reason_of_their_end() -> None:
    scene = Scene(*TWO_RANKS)
    values = scene.play()
    assert (values["hvd_epoch"], values["hvd_epoch_ranks"], values["hvd_ring_hosts"]) == (1, 2, 2)
    values = scene.play("left 0")
    assert (values["hvd_epoch_ranks"], values['hvd_epoch_ends_total{reason="shut_down"}']) == (1, 1)
    values = scene.play("left 1", "hello 0 generation=2", "hello 1 generation=2")
    assert (values["hvd_epoch"], values["hvd_epochs_total"]) == (2, 2)
    values = scene.play("exit 1 1 signal=9 left=no", "exit 0 1 left=no")
    assert values['hvd_epoch_ends_total{reason="lost"}'] == 1
    assert (values["hvd_epoch"], values["hvd_epochs_total"]) == (0, 2)


def test_jobs_by_result() -> None:
    scene = Scene(*TWO_RANKS)
    values = scene.play("job 1")
    assert values['hvd_jobs_total{result="refused"}'] == 1
    assert "hvd_job_last_exit_code" not in values
    values = scene.play("left 0", "left 1", "exit 0 0", "exit 1 0")
    assert (values['hvd_jobs_total{result="succeeded"}'], values["hvd_job_running"]) == (1, 0)
    values = scene.play("job 1", "exit 0 3 left=no")
    assert (values['hvd_jobs_total{result="failed"}'], values["hvd_job_last_exit_code"]) == (1, 3)
    values = scene.play("job 1", "cancel 130 Ctrl-C", "exit 0 0", "job 99")
    assert values['hvd_jobs_total{result="cancelled"}'] == 1
    assert values['hvd_jobs_total{result="refused"}'] == 2
    assert values["hvd_job_last_exit_code"] == 130


def test_negotiations_plans_and_their_retirement() -> None:
    scene = Scene(*TWO_RANKS)
    values = scene.play("announce 0 1 x")
    assert (values["hvd_negotiations"], values["hvd_waits"]) == (1, 1)
    values = scene.play("announce 1 1 x")
    assert (values["hvd_announcements_total"], values["hvd_plans_made_total"]) == (2, 1)
    assert (values["hvd_negotiations"], values['hvd_plans{state="live"}']) == (0, 1)
    values = scene.play("announce 0 2 x shape=2 contest=p1@3")
    assert (values["hvd_contests_total"], values['hvd_plans{state="held"}']) == (1, 1)
    values = scene.play("held a p1 0:3", "held b p1 1:3")
    assert values['hvd_plans{state="retiring"}'] == 1
    values = scene.play("retired a p1", "retired b p1")
    assert (values["hvd_plans_retired_total"], values['hvd_plans{state="retiring"}']) == (1, 0)


def test_mismatches_and_refusals_count_over_epochs() -> None:
    scene = Scene(*TWO_RANKS)
    values = scene.play("announce 0 1 x", "announce 1 1 x dtype=float64")
    assert values["hvd_mismatches_total"] == 1
    assert values['hvd_refusals_total{reason="mismatch"}'] == 2
    values = scene.play(
        "left 0", "left 1", "hello 0 generation=2", "hello 1 generation=2", "announce 0 2 x root=9 kind=broadcast"
    )
    assert values["hvd_mismatches_total"] == 1
    assert values['hvd_refusals_total{reason="invalid"}'] == 1


def test_a_name_that_waits_for_a_rank_that_was_told_is_no_other_mismatch() -> None:
    scene = Scene("agent a alpha 3", "job 3", "up")
    values = scene.play("announce 0 1 x", "announce 1 1 x shape=9", "announce 2 1 x")
    assert values["hvd_mismatches_total"] == 1
    assert values['hvd_refusals_total{reason="mismatch"}'] == 3


def test_stalls_deadlocks_and_who_is_awaited() -> None:
    scene = Scene(*TWO_RANKS, "announce 0 1 x", "announce 1 1 x")
    values = scene.play("wait 5", "observe a round=p1/0/5/1/")
    assert values["hvd_oldest_wait_seconds"] == 5
    assert values['hvd_rank_awaited_reports_total{rank="1"}'] == 1
    values = scene.play("observe a round=p1/0/61/1/", "observe b round=p1/0/61/1/ round=p1/1/2/1,77/", "wait 0")
    assert values['hvd_rank_awaited_reports_total{rank="1"}'] == 3
    assert 'hvd_rank_awaited_reports_total{rank="77"}' not in values
    assert values["hvd_stall_warnings_total"] == 1
    values = scene.play("announce 0 3 a", "announce 1 3 b")
    cycle = ("observe a rank=0/1/1/3/running on=0/0/0/a", "observe b rank=1/1/1/3/running on=1/0/0/b")
    values = scene.play(*cycle, "wait 0", *cycle, "wait 0")
    assert values["hvd_deadlocks_total"] == 1
    values = scene.play("observe a", "observe b", "lost b power")
    assert (values["hvd_waits"], values["hvd_oldest_wait_seconds"]) == (0, 0)


def test_stale_messages_joined_ranks_and_process_sets() -> None:
    scene = Scene(*TWO_RANKS)
    values = scene.play("@7 announce 0 1 x", "join 0 1", "addset 0 2 0", "addset 1 2 0")
    assert values["hvd_stale_messages_total"] == 1
    assert values["hvd_joined_ranks"] == 1
    assert values["hvd_process_sets"] == 2
    assert values["hvd_coordinator_events_total"] == scene.player.core.handled


def test_facts_of_the_daemon() -> None:
    facts = Facts(silence_s=lambda: {"a": 0.5}, reconnects=lambda: 3, waiting_jobs=lambda: 2)
    values = values_of(_collector(Player(), facts))
    assert values['hvd_agent_silence_seconds{agent="a"}'] == 0.5
    assert (values["hvd_agent_reconnects_total"], values["hvd_jobs_waiting"]) == (3, 2)


def test_labels_are_bounded() -> None:
    player = Player()
    for number in range(MOST_LABELS + 10):
        player.log(Report(f"agent{number}", 0, ev.Register(f"agent{number}", "host", 1)))
        player.core.tally.awaited[number] = 2
    values = values_of(_collector(player))
    assert sum(name.startswith("hvd_agent_slots{") for name in values) == MOST_LABELS
    assert values['hvd_agents{state="idle"}'] == MOST_LABELS + 10
    assert values['hvd_rank_awaited_reports_total{rank="other"}'] == 20
    assert sum(name.startswith("hvd_rank_awaited_reports_total{") for name in values) == MOST_LABELS + 1


def test_the_snapshot_says_who_is_there_what_waits_and_why_epochs_ended() -> None:
    scene = Scene(*TWO_RANKS, "announce 0 1 x", "wait 5")
    state = scene.state()
    assert state["incarnation"] == 1
    assert [(agent["name"], agent["state"]) for agent in state["agents"]] == [("a", "busy"), ("b", "busy")]  # type: ignore[attr-defined]
    job, epoch = state["job"], state["epoch"]
    assert isinstance(job, dict)
    assert isinstance(epoch, dict)
    assert (job["size"], [rank["state"] for rank in job["ranks"]]) == (2, ["ready", "ready"])
    assert (epoch["number"], epoch["ring"], epoch["ring_reason"]) == (1, ["a", "b"], "by name")
    (wait,) = epoch["waits"]
    assert ("'x'" in wait["what"], wait["age_s"], wait["missing"]) == (True, 5, [1])
    scene.play("exit 1 1 signal=9 left=no", "exit 0 1 left=no")
    state = scene.state()
    assert (state["job"], state["epoch"]) == (None, None)
    (past,) = state["past_epochs"]  # type: ignore[misc]
    assert past["reason"] == "lost"  # type: ignore[has-type]
    assert "signal 9" in past["text"]  # type: ignore[has-type]


def test_the_snapshot_shows_no_environment_no_arguments_no_output_and_no_key() -> None:
    core = Coordinator(Config(), secret=b"hidden-key")
    player = Player()
    player.core = core
    player.line("agent a alpha 1")
    command = ("python", "train.py", "--password=hidden-argument")
    player.log(JobSubmitted(1, command, {"TOKEN": "hidden-variable"}, "/hidden-directory"))
    player.line("up")
    player.line("exit 0 1 left=no lines=hidden-output")
    player.log(JobSubmitted(1, command, {"TOKEN": "hidden-variable"}, "/hidden-directory"))
    player.line("up")
    shown = json.dumps(coordinator_snapshot(core, 0.0))
    assert '"python"' in shown
    assert "hidden" not in shown


def test_processes_that_others_have_started_are_seen() -> None:
    scene = Scene()
    values = scene.play("standing 2", "agent a alpha 4", "guests a 1 2/5")
    assert (values["hvd_self_started_size"], values["hvd_self_started_waiting"]) == (2, 1)
    waiting = [{"agent": "a", "pid": 201, "rank": None}]
    wanted = {"size": 2, "attached": False, "waiting": waiting, "waiting_count": 1}
    assert scene.state()["self_started"] == wanted
    values = scene.play("guests a 1 3", "guests a", "up")
    assert (values["hvd_self_started_waiting"], values["hvd_job_ranks"]) == (0, 2)
    job = scene.state()["job"]
    assert isinstance(job, dict)
    assert job["self_started"] is True
