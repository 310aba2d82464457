"""Image, compose file and Prometheus' configuration agree with each other; the small scripts around them do what they say."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.compose.stand_in import pip_settings

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
METRICS = re.compile(r"--metrics-port (\d+)")
OURS = {
    name: METRICS.findall(made["command"])[0]
    for name, made in SERVICES.items()
    if METRICS.search(made.get("command", ""))
}


def scraped() -> list[tuple[str, str]]:
    """Host and port of each target."""
    configuration = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())
    groups = (group for job in configuration["scrape_configs"] for group in job["static_configs"])
    return [tuple(target.split(":")) for group in groups for target in group["targets"]]


def test_prometheus_scrapes_every_service_that_has_metrics_and_nothing_else() -> None:
    assert len(OURS) == 4
    assert sorted(scraped()) == sorted(OURS.items())


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_how_it_is_is_restarted_and_waits_for_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    needed = service.get("depends_on", {})
    assert (name == "coordinator") == (not needed)
    assert all(how == {"condition": "service_healthy"} for how in needed.values())
    assert needed.keys() <= SERVICES.keys()
    assert not {"shm_size", "privileged", "network_mode", "ipc", "pid", "cap_add", "networks"} & service.keys()
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_an_image_of_one_version_and_files_that_exist(name: str) -> None:
    service = SERVICES[name]
    assert (
        service["image"] == "hvd:local" if name in OURS else re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"])
    )
    for volume in service.get("volumes", []):
        source, _, how = volume.split(":")
        assert (ROOT / source).is_dir()
        assert how == "ro"


def test_agents_are_alike_and_offer_two_slots() -> None:
    agents = {name: dict(made) for name, made in SERVICES.items() if name.startswith("agent-")}
    assert len(agents) == 3
    assert all(made.pop("hostname") == name for name, made in agents.items())
    first, *others = agents.values()
    assert all(other == first for other in others)
    assert "--slots 2" in first["command"]


def test_grafana_finds_its_datasource_and_its_dashboards() -> None:
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    (source,) = yaml.safe_load((ROOT / "docker/grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    where = urlsplit(source["url"])
    assert where.hostname in SERVICES
    assert SERVICES[where.hostname]["ports"] == [f"127.0.0.1:{where.port}:{where.port}"]
    (provider,) = yaml.safe_load((ROOT / "docker/grafana/provisioning/dashboards/hvd.yml").read_text())["providers"]
    assert provider["options"]["path"] in mounted.values()
    assert mounted["./docker/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    folder = next(source for source, target in mounted.items() if target == str(Path(home).parent))
    assert (ROOT / folder / Path(home).name).is_file()


# ---- the image


def test_the_final_stage_has_a_user_a_token_a_health_check_and_no_compiler() -> None:
    _, builder, final = re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)
    assert "g++" in builder
    assert "apt-get" not in final
    assert re.search(r"^USER (?!root)\w+$", final, flags=re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", final, flags=re.MULTILINE)
    assert "HVD_TOKEN_FILE=/run/secrets/hvd_token" in final
    copied = [line.split()[-2] for line in final.splitlines() if line.startswith("COPY ") and "--from" not in line]
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_base_is_pinned_and_no_feature_of_one_builder_is_used() -> None:
    assert re.search(r"^ARG BASE=python:3\.\d+-slim-\w+$", DOCKERFILE, flags=re.MULTILINE)
    assert not re.search(r"^#\s*syntax=|--mount=|<<E", DOCKERFILE, flags=re.MULTILINE)


def test_the_image_installs_the_torch_that_the_makefile_installs() -> None:
    (torch,) = re.findall(r"^ARG TORCH=torch==(.*)$", DOCKERFILE, flags=re.MULTILINE)
    assert f"TORCH_VERSION ?= {torch}\n" in (ROOT / "Makefile").read_text()


# ---- the token


def test_the_secret_stays_out_of_git_and_of_the_image() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    file = Path(compose["secrets"]["hvd_token"]["file"])
    assert all(made["secrets"] == ["hvd_token"] for name, made in SERVICES.items() if name in OURS)
    assert str(file.parent) in (ROOT / ".dockerignore").read_text().splitlines()
    assert f"{file.parent}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_token_is_made_once_and_only_its_owner_gets_at_it(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("token", "common.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    made = []
    for _ in range(2):
        subprocess.run([tmp_path / "scripts/token"], check=True, capture_output=True, timeout=20)
        made.append((tmp_path / "docker/secrets/token").read_text())
    assert made[0] == made[1]
    assert re.fullmatch(r"[0-9a-f]{64}", made[0])
    folder = tmp_path / "docker/secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()] == [("token", 0o444)]


# ---- the scripts


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"docker": 'echo "docker $@"'}, "docker compose up --build"),
        ({"docker": "exit 1", "docker-compose": 'echo "old $@"'}, "old up --build"),
        ({"docker-compose": 'echo "old $@"'}, "old up --build"),
        ({}, "Docker with Compose is needed"),
    ],
)
def test_compose_is_whichever_there_is(tmp_path: Path, programs: dict[str, str], said: str) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!{shutil.which('bash')}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    command = [str(ROOT / "scripts/compose"), "up", "--build"]
    done = subprocess.run(["bash", *command], env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=20)
    assert done.returncode == (0 if programs else 1)
    assert said in done.stdout + done.stderr


@contextmanager
def answering(status: int, text: str) -> Iterator[int]:
    """A service that says this to whoever asks whether it is ready; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_arguments: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def ask(port: int) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "docker/healthcheck.py"), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize(("status", "text", "code"), [(200, "ready\n", 0), (503, "not registered\n", 1)])
def test_the_health_check_says_what_the_service_says(status: int, text: str, code: int) -> None:
    with answering(status, text) as port:
        assert ask(port) == (code, text)


def test_the_health_check_names_the_port_where_nothing_answers() -> None:
    with answering(200, "") as port:
        pass
    code, text = ask(port)
    assert code == 1
    assert text.startswith(f"nothing answers at port {port}: ")


def test_an_image_gets_of_pip_s_settings_what_holds_in_it_too() -> None:
    listed = {
        "cert": "/a.crt",
        "find-links": "/wheels",
        "index-url": "https://a/simple",
        "extra-index-url": "file:///b https://c",
    }
    assert pip_settings(listed) == {"index-url": "https://a/simple", "extra-index-url": "https://c"}
