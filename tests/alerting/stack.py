"""A whole way to the pager, on loopback: Prometheus, Alertmanager, and a receiver that writes down what it is sent."""

import contextlib
import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from tests.alerting.rules import ALERTS
from tests.programs import newer, system
from tests.sidecar import eventually, free_port

VERSIONS = {"2.42": system, "3.5": newer}


class Receiver:
    """What Alertmanager's receivers are sent, by receiver, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: list[tuple[float, str, str, dict]] = []
        received = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with received._lock:
                    for alert in body["alerts"]:
                        received._seen.append((time.time(), self.path.strip("/"), alert["status"], alert))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def of(self, receiver: str, status: str, alertname: str, since: float = 0.0) -> list[tuple[float, dict]]:
        """(unix seconds, alert) of what came."""
        with self._lock:
            return [
                (at, alert)
                for at, path, state, alert in self._seen
                if path == receiver and state == status and at >= since and alert["labels"]["alertname"] == alertname
            ]

    def names(self, receiver: str, status: str = "firing") -> set[str]:
        """Names of the alerts that a receiver was sent."""
        with self._lock:
            return {
                alert["labels"]["alertname"]
                for _, path, state, alert in self._seen
                if (path, state) == (receiver, status)
            }


@dataclass
class Stack:
    """A running Prometheus with its Alertmanager and receiver."""

    prometheus: str
    alertmanager: str
    receiver: Receiver = field(default_factory=Receiver)

    def query(self, expression: str, at: float | None = None) -> list[dict]:
        """An instant vector."""
        parameters = {"query": expression} | ({} if at is None else {"time": at})
        url = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def unhealthy_rules(self) -> dict[str, str]:
        """Rules whose last evaluation failed, with the error."""
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/rules", timeout=10) as answer:
            groups = json.load(answer)["data"]["groups"]
        return {
            rule["name"]: rule["lastError"] for group in groups for rule in group["rules"] if rule["health"] == "err"
        }

    def inhibited(self) -> set[tuple[str, str]]:
        """(alert, pod or target) of the alerts that another one mutes."""
        with urllib.request.urlopen(
            f"{self.alertmanager}/api/v2/alerts?inhibited=true&active=false", timeout=10
        ) as answer:
            return {
                (alert["labels"]["alertname"], alert["labels"].get("pod") or alert["labels"].get("target", ""))
                for alert in json.load(answer)
                if alert["status"]["inhibitedBy"]
            }


def alertmanager_config(receiver: str, *, quick: bool) -> dict:
    """The example, sent to our receiver; ``quick`` shortens its waiting."""
    config = yaml.safe_load((ALERTS / "alertmanager" / "alertmanager.yaml").read_text())
    for each in config["receivers"]:
        for webhook in each.get("webhook_configs", ()):
            webhook["url"] = f"{receiver}/{each['name']}"
    for route in (config["route"], *config["route"]["routes"]) if quick else ():
        route |= {"group_wait": "200ms", "group_interval": "500ms"}
    return config


def start(command: list, log: Path, ready: str) -> subprocess.Popen[bytes]:
    """Start a server and wait until it is ready."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(ready, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    eventually(answers, 60)
    return process


@contextlib.contextmanager
def alertmanager(version: str, directory: Path, receiver: str, *, quick: bool = True) -> Iterator[str]:
    """Alertmanager with the example configuration; gives its address."""
    url = f"http://127.0.0.1:{free_port()}"
    config = directory / "alertmanager.yaml"
    config.write_text(yaml.safe_dump(alertmanager_config(receiver, quick=quick)))
    command = [VERSIONS[version]("prometheus-alertmanager"), "--config.file", config]
    command += ["--storage.path", directory / "alertmanager", "--web.listen-address", url.removeprefix("http://")]
    process = start([*command, "--cluster.listen-address="], directory / "alertmanager.log", f"{url}/-/ready")
    try:
        yield url
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def stack(
    version: str,
    directory: Path,
    rules: Path,
    sidecar: str,
    *,
    interval: str,
    labels: dict[str, str],
    quick: bool = True,
) -> Iterator[Stack]:
    """Prometheus scraping one sidecar, evaluating the rules of a directory, with Alertmanager behind it."""
    directory.mkdir()
    receiver = Receiver()
    with alertmanager(version, directory, receiver.url, quick=quick) as manager:
        url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(rules / "*.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]},
            "scrape_configs": [
                {
                    "job_name": "vllm-sidecar",
                    "static_configs": [{"targets": [sidecar.removeprefix("http://")], "labels": labels}],
                }
            ],
        }
        path = directory / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [VERSIONS[version]("prometheus"), "--config.file", path, "--storage.tsdb.path", directory / "data"]
        command += ["--web.listen-address", url.removeprefix("http://")]
        if quick:
            command += ["--rules.alert.resend-delay=1s"]
        process = start(command, directory / "prometheus.log", f"{url}/-/ready")
        try:
            yield Stack(url, manager, receiver)
        finally:
            process.kill()
            process.wait()
            receiver.close()


def wait_for(condition: Callable[[], object], seconds: float, explain: Callable[[], object]) -> None:
    """Wait for something to come about; say what is there instead if it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)
