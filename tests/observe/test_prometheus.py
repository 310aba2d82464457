"""Prometheus and Grafana as they are shipped: every metric exists, the tools accept the files, a real server scrapes us."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from horovod.agent.core.tally import Tally
from horovod.agent.http import agent_pages
from horovod.agent.metrics import AgentView, Facts
from horovod.coordinator.http import coordinator_pages
from horovod.observe.http import Pages
from horovod.observe.metrics import Kind, Metric
from prometheus_client import generate_latest

from tests.aio import in_loop
from tests.coordinator.scenario import Player
from tests.observe import page
from tests.observe.client import Answer, read_end, serving

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "docker" / "prometheus"
GRAFANA = ROOT / "docker" / "grafana"


def series(metric: Metric) -> list[str]:
    """Names that its values have."""
    if metric.kind is not Kind.HISTOGRAM:
        return [metric.name]
    return [f"{metric.name}_{part}" for part in ("bucket", "sum", "count")]


METRICS = {name: metric for table in page.SERVICES.values() for metric in table for name in series(metric)}
OF_PROMETHEUS = {"instance", "job"}
NAME = re.compile(r"\bhvd_\w+")
LIMIT_S = 40.0
Where = tuple[str, int]

WHERE_FROM = "is not installed: apt-get install prometheus"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=f"promtool {WHERE_FROM}")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=f"prometheus {WHERE_FROM}")


def dashboards() -> list[Path]:
    return sorted((GRAFANA / "dashboards").glob("*.json"))


def targets(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Expression and legend of every curve."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """All expressions, each with the text that names its labels."""
    shown = [pair for path in dashboards() for pair in targets(json.loads(path.read_text()))]
    return shown + [(rule["expr"], rule["annotations"]["summary"]) for rule in rules()]


def test_every_metric_that_is_shown_exists() -> None:
    assert len(expressions()) > 50
    unknown = {name for expression, _ in expressions() for name in NAME.findall(expression)} - METRICS.keys()
    assert unknown == set()


def test_every_label_that_is_named_belongs_to_its_metric() -> None:
    for expression, text in expressions():
        known = {label for name in NAME.findall(expression) for label in METRICS[name].labels} | OF_PROMETHEUS
        named = set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}", text))
        grouped = {label.strip() for found in re.findall(r"\bby \(([^)]*)\)", expression) for label in found.split(",")}
        matched = set(re.findall(r"(\w+)=~?\"", expression))
        assert named | grouped | matched <= known, expression


def test_counters_are_never_shown_bare() -> None:
    for expression, _ in expressions():
        for name in NAME.findall(expression):
            is_in_rate = re.search(rf"\b(rate|increase)\({name}\b", expression) is not None
            assert is_in_rate == (METRICS[name].kind is not Kind.GAUGE), expression


def test_dashboards_use_the_datasource_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert dashboards()
    for path in dashboards():
        board = json.loads(path.read_text())
        panels = board["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert {panel["datasource"]["uid"] for panel in panels if "datasource" in panel} == {source["uid"]}


def test_the_page_of_the_docs_is_current() -> None:
    assert page.PAGE.read_text() == page.page(), "run scripts/metrics-doc"


# ---- the real tools


def promtool(*arguments: str, given: str | None = None, folder: Path = PROMETHEUS) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, input=given, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_configuration_and_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "alerts_test.yml")


@needs_promtool
def test_promtool_understands_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    shown = [expression for path in dashboards() for expression, _ in targets(json.loads(path.read_text()))]
    made = [
        {"record": f"hvd:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(shown)
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": made}]}))
    promtool("check", "rules", "rules.yml", folder=tmp_path)


def coordinator() -> Pages:
    player = Player()
    for line in ("agent a alpha 2", "job 2", "up", "announce 0 1 x", "announce 1 1 x", "observe a round=p1/0/5/1/"):
        player.line(line)
    return coordinator_pages(player.core, lambda: player.now, lambda: True)


def agent() -> Pages:
    tally = Tally(jobs=1, awaited_s={0: 1.5})
    tally.ran("allreduce", "local", 3, 4096)
    return agent_pages(AgentView("a", "host-a", 2, tally, lambda: None), Facts(is_registered=lambda: True))


@needs_promtool
@pytest.mark.parametrize("pages", [coordinator, agent])
def test_promtool_has_nothing_to_say_about_our_names(pages: Any) -> None:
    promtool("check", "metrics", given=generate_latest(pages().registry).decode())


@asynccontextmanager
async def prometheus(folder: Path, ports: dict[str, int]) -> AsyncIterator[Where]:
    """A server that scrapes these, with the rules that are shipped; where it is."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in ports.items()]
    shutil.copy(PROMETHEUS / "alerts.yml", folder)
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "100ms", "evaluation_interval": "100ms"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({**config, "scrape_configs": jobs}))
    # An address of this host that nobody else uses keeps the port free until the server takes it.
    host = f"127.{secrets.randbelow(100) + 100}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"
    with socket.create_server((host, 0)) as free:
        where = (host, int(free.getsockname()[1]))
    log = (folder / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={where[0]}:{where[1]}",
        cwd=folder,
        stdout=log,
        stderr=log,
    )
    try:
        yield where
    finally:
        process.terminate()
        await process.wait()
        log.close()


async def query(where: Where, expression: str) -> list[dict[str, Any]]:
    """What the server knows; nothing while it does not answer."""
    try:
        reader, writer = await asyncio.open_connection(*where)
    except OSError:
        return []
    path = f"/api/v1/query?query={quote(expression)}"
    writer.write(f"GET {path} HTTP/1.0\r\nHost: test\r\n\r\n".encode())
    data = await read_end(reader)
    writer.close()
    answer = Answer(data)
    found: list[dict[str, Any]] = json.loads(answer.body)["data"]["result"] if answer.status == 200 else []
    return found


async def until_known(where: Where, expression: str, log: Path) -> list[dict[str, Any]]:
    end = time.monotonic() + LIMIT_S
    while not (found := await query(where, expression)):
        assert time.monotonic() < end, log.read_text()
        await asyncio.sleep(0.05)
    return found


@needs_prometheus
@pytest.mark.timeout(90)
@pytest.mark.usefixtures("no_leaks")
@in_loop
async def test_a_real_prometheus_scrapes_both_services(tmp_path: Path) -> None:
    async with serving(coordinator()) as first, serving(agent()) as second:
        ports = {"hvd-coordinator": first.port, "hvd-agent": second.port}
        async with prometheus(tmp_path, ports) as where:
            log = tmp_path / "log"
            (made,) = await until_known(where, "hvd_plans_made_total", log)
            assert (made["metric"]["job"], made["value"][1]) == ("hvd-coordinator", "1")
            (rounds,) = await until_known(where, 'hvd_agent_rounds_total{collective="allreduce"}', log)
            assert (rounds["metric"]["plane"], rounds["value"][1]) == ("local", "3")
            assert {item["value"][1] for item in await until_known(where, "up", log)} == {"1"}
            assert len(await until_known(where, "hvd_build_info", log)) == 2
            assert await until_known(where, "rate(hvd_process_cpu_seconds_total[10s]) >= 0", log)
