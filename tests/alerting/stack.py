"""A whole way to the pager, on loopback: Prometheus, Alertmanager, and a receiver that writes down what it is sent."""

import contextlib
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from tests.alerting.rules import ALERTS
from tests.programs import PROMETHEUS_VERSIONS
from tests.prometheus import Prometheus, serving
from tests.sidecar import eventually, free_port


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

    prometheus: Prometheus
    alertmanager: str
    receiver: Receiver

    def unhealthy_rules(self) -> dict[str, str]:
        """Rules whose last evaluation failed, with the error."""
        groups = self.prometheus.answer("rules")["groups"]
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


def alertmanager_config(receiver: str) -> dict:
    """The example, sent to our receiver, and with little waiting."""
    config = yaml.safe_load((ALERTS / "alertmanager" / "alertmanager.yaml").read_text())
    for each in config["receivers"]:
        for webhook in each.get("webhook_configs", ()):
            webhook["url"] = f"{receiver}/{each['name']}"
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "200ms", "group_interval": "500ms"}
    return config


@contextlib.contextmanager
def alertmanager(version: str, directory: Path, receiver: str) -> Iterator[str]:
    """The Alertmanager beside a version of Prometheus, with the example configuration; gives its address."""
    url = f"http://127.0.0.1:{free_port()}"
    config, log = directory / "alertmanager.yaml", directory / "alertmanager.log"
    config.write_text(yaml.safe_dump(alertmanager_config(receiver)))
    command = [PROMETHEUS_VERSIONS[version]("prometheus-alertmanager"), "--config.file", config]
    command += ["--storage.path", directory / "alertmanager", "--web.listen-address", url.removeprefix("http://")]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--cluster.listen-address="], stdout=output, stderr=output)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    try:
        eventually(ready, 60)
        yield url
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def stack(version: str, directory: Path, rules: Path, sidecar: str, labels: dict[str, str]) -> Iterator[Stack]:
    """Prometheus scraping one sidecar each second, evaluating a directory's rules, with Alertmanager behind it."""
    directory.mkdir()
    receiver = Receiver()
    with contextlib.closing(receiver), alertmanager(version, directory, receiver.url) as manager:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules / "*.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]},
            "scrape_configs": [
                {
                    "job_name": "vllm-sidecar",
                    "static_configs": [{"targets": [sidecar.removeprefix("http://")], "labels": labels}],
                }
            ],
        }
        program = PROMETHEUS_VERSIONS[version]("prometheus")
        flags = ["--rules.alert.resend-delay=1s"]
        with serving(directory, yaml.safe_dump(config), program=program, flags=flags) as prometheus:
            yield Stack(prometheus, manager, receiver)


def wait_for(condition: Callable[[], object], seconds: float, explain: Callable[[], object]) -> None:
    """Wait for something to come about; say what is there instead if it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)
