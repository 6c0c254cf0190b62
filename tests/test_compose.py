"""The compose file: every path is there, every flag is understood, every name meets."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import DEFAULT_PORT, cli
from exporter.lab import load, simulate
from exporter.schema_types import split_address
from exporter.settings import load as load_settings
from tests.programs import PROMETHEUS_VERSIONS, ROOT, newer

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def mounts(service: str) -> dict[str, Path]:
    """Files of the repository by where a service sees them."""
    found = [volume.split(":") for volume in SERVICES[service].get("volumes", [])]
    assert all(options == "ro" for _, _, options in found)
    return {target: ROOT / source for source, target, _ in found}


def test_every_mounted_path_is_there() -> None:
    """Docker makes an empty folder of a path that is missing, and the service fails far from the reason."""
    for service in SERVICES:
        assert all(path.exists() for path in mounts(service).values())


def test_ports_are_on_the_loopback() -> None:
    """A demo without passwords is for this machine alone."""
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in published)


def test_sidecar_is_as_strict_as_in_a_pod() -> None:
    """Its flags are the sidecar's, its settings valid, its root read-only and its port the default."""
    sidecar = SERVICES["sidecar"]
    options = cli._parser().parse_args(sidecar["command"])
    assert options.listen_address == f":{DEFAULT_PORT}"
    assert sidecar["read_only"] is True
    assert sidecar["cap_drop"] == ["ALL"]
    settings = load_settings(mounts("sidecar")[str(options.config_file)])
    assert settings.url == "http://engine:8000"
    served = [DEFAULT_PORT, split_address(settings.served_page_address)[1]]
    assert sidecar["ports"] == [f"127.0.0.1:{port}:{port}" for port in served]


def test_engine_and_load_understand_their_flags() -> None:
    """The simulated engine listens where the load and the sidecar look for it."""
    command, *flags = SERVICES["engine"]["command"]
    assert command == "simulate"
    engine = simulate.parser().parse_args(flags)
    assert simulate.read_layout(engine).models == ("llama",)
    assert (engine.host, engine.port) == ("0.0.0.0", 8000)
    command, *flags = SERVICES["load"]["command"]
    assert command == "load"
    assert load.parser().parse_args(flags).url == "http://engine:8000"


@pytest.mark.parametrize("version", PROMETHEUS_VERSIONS)
def test_prometheus_takes_its_configuration_and_our_rules(version: str, tmp_path: Path) -> None:
    """Checked with the rules where the container has them; what it scrapes are services of this file."""
    config = mounts("prometheus")["/etc/prometheus/prometheus.yml"].read_text()
    file = tmp_path / "prometheus.yml"
    file.write_text(config.replace("/etc/prometheus/rules", str(mounts("prometheus")["/etc/prometheus/rules"])))
    promtool = PROMETHEUS_VERSIONS[version]("promtool")
    done = subprocess.run([promtool, "check", "config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout
    targets = re.findall(r"targets: \[(.+)\]", config)
    assert targets == ["alertmanager:9093", f"sidecar:{DEFAULT_PORT}", "engine:8000"]
    assert {target.split(":")[0] for target in targets} <= SERVICES.keys()


def test_alertmanager_takes_its_configuration() -> None:
    file = mounts("alertmanager")["/etc/alertmanager/alertmanager.yml"]
    done = subprocess.run([newer("amtool"), "check-config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_is_provisioned_from_what_is_mounted() -> None:
    """The data source is the Prometheus of this file, the dashboards are where the provider looks for them."""
    files = mounts("grafana")
    provisioning = "/etc/grafana/provisioning"
    (source,) = yaml.safe_load(files[f"{provisioning}/datasources/prometheus.yaml"].read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load(files[f"{provisioning}/dashboards/vllm-sidecar.yaml"].read_text())["providers"]
    assert list(files[provider["options"]["path"]].glob("*.json"))
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (files[provider["options"]["path"]] / Path(home).name).exists()


def test_lab_image_holds_what_the_image_leaves_out() -> None:
    """Its own list of ignored files lets exporter/lab through, which the image's does not."""
    dockerfile = ROOT / SERVICES["engine"]["build"]["dockerfile"]
    ignored = Path(f"{dockerfile}.dockerignore").read_text().splitlines()
    assert "!exporter" in ignored
    assert "exporter/lab" not in ignored
    assert "exporter/lab" in (ROOT / ".dockerignore").read_text().splitlines()
    assert "--requirement requirements/lab.txt" in dockerfile.read_text()
