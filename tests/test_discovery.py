"""Targets that come, go and move: files, DNS, what is dropped, what is said."""

import asyncio
import json
import logging
import os
import struct
from pathlib import Path

import dns.asyncresolver
import pytest

from exporter import collect
from exporter.app import Sidecar
from exporter.discovery import Discovery
from exporter.file_sd import BadSourceError, parse_file_sd
from exporter.schema import Config, DnsSource, Role, TargetConfig
from exporter.settings import BadSettingsError, load


def settings(**discovery: object) -> Config:
    return Config.model_validate({"gpu_hour_dollars": 2.5, "discovery": discovery})


def group(*targets: str, **labels: str) -> dict[str, object]:
    return {"targets": list(targets), "labels": labels}


async def found(config: Config) -> tuple[Discovery, list[TargetConfig]]:
    discovery = Discovery()
    discovery.use(config)
    await discovery.refresh(0.0)
    return discovery, discovery.targets()


YAML = b"""
- targets: ['10.0.0.1:8000', '[fd00::1]:8000']
  labels: {pod: vllm-0, team: search, __scheme__: https, __metrics_path__: /engine/metrics}
- targets: ['10.0.0.2:8000']
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_file_sd_is_read_as_prometheus_reads_it(as_json: bool) -> None:
    """Groups, scheme and path; of the labels those that are asked for, under the name set for them."""
    import yaml

    content = json.dumps(yaml.safe_load(YAML)).encode() if as_json else YAML
    config = settings(file_sd=["t.yaml"], labels={"pod": "engine_pod", "zone": "engine_zone"})
    first, second, third = parse_file_sd(content, config)
    assert (first.url, second.url, third.url) == (
        "https://10.0.0.1:8000", "https://[fd00::1]:8000", "http://10.0.0.2:8000",
    )  # fmt: skip
    assert first.scrape.path == "/engine/metrics"
    assert first.labels == {"engine_pod": "vllm-0"}
    assert third.labels == {}
    assert third.gpu_hour_dollars == 2.5


def test_settings_of_a_target_come_with_its_labels() -> None:
    """Also those a level down; what is set at the top holds for the rest."""
    labels = {"__sidecar_role": "prefill", "__sidecar_slo__ttft_seconds": "1.5", "__sidecar_name": "p0"}
    [target] = parse_file_sd(json.dumps([group("10.0.0.1:8000", **labels)]).encode(), settings(file_sd=["t"]))
    assert (target.role, target.slo.ttft_seconds, target.label) == (Role.PREFILL, 1.5, "p0")
    assert target.slo.tpot_seconds == 0.1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[{]", "neither JSON nor YAML"),
        (b"[" * 100_000, "neither JSON nor YAML"),
        (b"- " * 100_000, "neither JSON nor YAML"),
        (b"- targets: [2026-02-31]", "neither JSON nor YAML"),
        (b"targets: []", "not a list of groups"),
        (b"- labels: {}", "group 1 has no list of targets"),
        (b'[{"targets": ["a:1"], "labelz": {}}]', "group 1: unknown key labelz"),
        (b'[{"targets": ["a:1"]}, {"targets": ["http://a:1"]}]', "group 2: a target must be HOST:PORT"),
        (b'[{"targets": ["a:notaport"]}]', "group 1: url"),
        (b'[{"targets": ["a:1"], "labels": {"x": 1}}]', "group 1: labels must be strings"),
        (b'[{"targets": ["a:1"], "labels": {"__sidecar_rolle": "both"}}]', "group 1: rolle"),
        (b'[{"targets": ["a:1"], "labels": {"__sidecar_scrape__bearer_token_file": "/etc/shadow"}}]', "cannot be set"),
        (b'[{"targets": ["a:1"], "labels": {"__scheme__": "file"}}]', "group 1: url"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_an_invalid_file_is_told_in_one_line(content: bytes, told: str) -> None:
    with pytest.raises(BadSourceError, match=r"^[^\n]*$") as refused:
        parse_file_sd(content, settings(file_sd=["t"]))
    assert told in str(refused.value)


async def test_files_are_read_again_on_change_and_keep_the_last_good_targets(tmp_path: Path) -> None:
    """A second file comes, the first turns invalid, is mended, and goes; each step is in the metrics."""
    one, two = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text(json.dumps([group("10.0.0.1:8000")]))
    discovery, targets = await found(settings(file_sd=[tmp_path / "*.json"]))
    assert [target.label for target in targets] == ["10.0.0.1:8000"]
    assert not await discovery.refresh(1.0)
    two.write_text(json.dumps([group("10.0.0.2:8000")]))
    one.write_text("[nonsense")
    assert await discovery.refresh(2.0)
    assert [target.label for target in discovery.targets()] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    [source] = discovery.views()
    assert (source.valid, source.targets) == (False, 2)
    one.write_text(json.dumps([group("10.0.0.3:8000")]))
    assert await discovery.refresh(3.0)
    assert [target.label for target in discovery.targets()] == ["10.0.0.3:8000", "10.0.0.2:8000"]
    assert discovery.views()[0].valid
    one.unlink()
    assert await discovery.refresh(4.0)
    assert [target.label for target in discovery.targets()] == ["10.0.0.2:8000"]


@pytest.mark.parametrize("harm", ["invalid", "gone"])
async def test_new_settings_keep_the_last_good_targets_of_a_file_that_cannot_be_read(tmp_path: Path, harm: str) -> None:
    """All files are read again for them, and what one named stays until it can be; then the new settings hold."""
    path = tmp_path / "a.json"
    good = json.dumps([group("10.0.0.1:8000")])
    path.write_text(good)
    discovery, _ = await found(settings(file_sd=[path]))
    if harm == "gone":
        path.unlink()
    else:
        path.write_text(good[:-1])
    discovery.use(settings(file_sd=[path]).model_copy(update={"gpu_hour_dollars": 3.0}))
    await discovery.refresh(1.0)
    assert [(target.label, target.gpu_hour_dollars) for target in discovery.targets()] == [("10.0.0.1:8000", 2.5)]
    assert not discovery.views()[0].valid
    path.write_text(good)
    await discovery.refresh(2.0)
    assert [(target.label, target.gpu_hour_dollars) for target in discovery.targets()] == [("10.0.0.1:8000", 3.0)]


async def test_a_file_that_could_not_be_read_is_forgotten_when_it_goes(tmp_path: Path) -> None:
    """Such as a link that leads nowhere while a volume is written: once it is gone nothing is wrong with the source."""
    (tmp_path / "a.json").write_text(json.dumps([group("10.0.0.1:8000")]))
    (tmp_path / "b.json").symlink_to(tmp_path / "nothing")
    discovery, _ = await found(settings(file_sd=[tmp_path / "*.json"]))
    assert not discovery.views()[0].valid
    (tmp_path / "b.json").unlink()
    await discovery.refresh(1.0)
    assert discovery.views()[0].valid
    assert [target.label for target in discovery.targets()] == ["10.0.0.1:8000"]


async def test_a_pipe_among_the_files_holds_up_nobody(tmp_path: Path) -> None:
    """It would be waited for in one of the two threads that also compress what Prometheus reads."""
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps([group("10.0.0.1:8000")]))
    discovery, targets = await found(settings(file_sd=[tmp_path / "*.json"]))
    assert [target.label for target in targets] == ["10.0.0.1:8000"]
    assert not discovery.views()[0].valid
    assert not await discovery.refresh(1.0)  # what was never wholly good is no news each time it is asked


async def test_a_file_that_goes_leaves_its_targets_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "targets.yaml"
    path.write_text("- targets: ['10.0.0.1:8000']")
    discovery, _ = await found(settings(file_sd=[path]))
    path.unlink()
    for turn in range(3):
        assert not await discovery.refresh(turn)
    assert [target.label for target in discovery.targets()] == ["10.0.0.1:8000"]
    assert caplog.text.count("targets cannot be found") == 1


async def test_the_same_engine_again_is_dropped_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By address in whatever spelling; other engines behind the same port are other targets, if they have a name."""
    (tmp_path / "t.json").write_text(
        json.dumps([
            group("[fd00::1]:80", "[FD00:0::1]:80", "[fd00::1]"),
            group("10.0.0.1:8000", __sidecar_engines="0"),
            group("10.0.0.1:8000", __sidecar_engines="1", __sidecar_name="second"),
            group("10.0.0.1:8000", __sidecar_name="third"),
        ])
    )  # fmt: skip
    config = settings(file_sd=[tmp_path / "t.json"])
    discovery, targets = await found(config)
    assert [target.label for target in targets] == ["[fd00::1]:80", "10.0.0.1:8000", "second"]
    discovery.targets()
    assert caplog.text.count("target dropped") == 3
    assert discovery.views()[0].dropped == 3
    at_start = Discovery()
    at_start.use(config)
    with pytest.raises(BadSourceError, match="the same engine again"):
        await at_start.check()


async def test_settings_come_before_what_is_found(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([group("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")]))
    config = Config.model_validate({
        "targets": [{"url": "http://10.0.0.2:8000", "name": "mine"}],
        "discovery": {"file_sd": [tmp_path / "t.json"], "max_targets": 2, "expected_targets": 3},
    })  # fmt: skip
    discovery, targets = await found(config)
    assert [target.label for target in targets] == ["mine", "10.0.0.1:8000"]
    assert discovery.views()[0].dropped == 2


async def test_a_name_is_as_many_targets_as_it_has_addresses() -> None:
    """localhost is 127.0.0.1 to whoever asks for A. A certificate is compared with the name, not the address."""
    config = settings(
        dns=[{"name": "localhost", "port": 8000, "scheme": "https", "settings": {"role": "decode", "model_name": "m"}}]
    )
    discovery, [target] = await found(config)
    assert target.url == "https://127.0.0.1:8000"
    assert (target.role, target.model_name, target.gpu_hour_dollars) == (Role.DECODE, "m", 2.5)
    assert target.scrape.server_name == "localhost"
    assert discovery.views()[0].name == "dns:A:localhost:8000"


async def test_a_name_that_does_not_resolve_is_told_and_asked_again() -> None:
    """A name under .invalid never resolves (RFC 6761). It is asked again when its time has come."""
    config = settings(dns=[{"name": "engines.invalid", "port": 8000}], dns_refresh_seconds=30)
    discovery, targets = await found(config)
    assert targets == []
    [source] = discovery.views()
    assert (source.valid, source.targets, source.good_unix_seconds) == (False, 0, None)
    [inner] = discovery._sources.values()
    assert inner.due_at == 30.0


async def test_a_source_that_fails_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose token is gone for a moment, one that hits a fault of ours: told once, and the file is still read."""
    path, token = tmp_path / "t.json", tmp_path / "token"
    path.write_text("[]")
    token.write_text("secret")
    with_token = {"name": "localhost", "port": 8000, "settings": {"scrape": {"bearer_token_file": str(token)}}}
    config = settings(dns=[with_token, {"name": "x.test", "type": "SRV"}], file_sd=[path], dns_refresh_seconds=1)

    async def faulty(name: str) -> None:
        raise ArithmeticError

    monkeypatch.setattr("exporter.discovery._srv", faulty)
    discovery, targets = await found(config)
    assert [target.label for target in targets] == ["127.0.0.1:8000"]
    token.unlink()
    path.write_text(json.dumps([group("10.0.0.1:8000")]))
    assert await discovery.refresh(60.0)
    assert [target.label for target in discovery.targets()] == ["10.0.0.1:8000", "127.0.0.1:8000"]
    assert [source.valid for source in discovery.views()] == [True, False, False]
    reasons = [record.fields.get("reason") for record in caplog.records]  # type: ignore[attr-defined]
    assert f"scrape.bearer_token_file: cannot read {token}: No such file or directory" in reasons
    await discovery.refresh(120.0)
    assert caplog.text.count("a source failed inside the sidecar") == 1


class NameServer(asyncio.DatagramProtocol):
    """Answers every question with SRV records, RFC 2782: priority, weight, port, host. One says that there is none."""

    RECORDS = (
        (0, 0, 8001, b"\x05vllm1\x04test\x00"),
        (0, 0, 8000, b"\x05vllm0\x04test\x00"),
        (0, 0, 0, b"\x00"),
    )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = data[12 : data.index(b"\0", 12) + 5]
        answers = b""
        for priority, weight, port, host in self.RECORDS:
            record = struct.pack("!HHH", priority, weight, port) + host
            answers += b"\xc0\x0c" + struct.pack("!HHIH", 33, 1, 60, len(record)) + record
        header = data[:2] + b"\x81\x80" + struct.pack("!HHHH", 1, len(self.RECORDS), 0, 0)
        self.transport.sendto(header + question + answers, addr)  # type: ignore[attr-defined]


async def test_srv_records_bring_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of a real name server on a port of its own."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = ["127.0.0.1"]
    resolver.port = transport.get_extra_info("sockname")[1]
    monkeypatch.setattr(dns.asyncresolver, "default_resolver", resolver)
    _, targets = await found(settings(dns=[{"name": "_http._tcp.vllm.test", "type": "SRV"}]))
    transport.close()
    assert [target.url for target in targets] == ["http://vllm0.test:8000", "http://vllm1.test:8001"]


@pytest.mark.parametrize(
    "source",
    [
        {"name": "x"},
        {"name": "x", "type": "SRV", "port": 80},
        {"name": "x y", "port": 80},
        {"name": "x", "port": 80, "settings": {"rolle": "both"}},
        {"name": "x", "port": 80, "settings": {"url": "http://a"}},
    ],
)
def test_a_source_that_cannot_be_is_refused_at_the_start(source: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps({"discovery": {"dns": [source]}}))
    with pytest.raises(BadSettingsError, match=r"discovery\.dns\.0"):
        load(path)


def test_labels_that_stand_already_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps({"discovery": {"labels": {"pod": "target"}}}))
    with pytest.raises(BadSettingsError, match="'target' cannot be the name of a label on target_info"):
        load(path)


def samples(sidecar: Sidecar, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    views = sidecar.views()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in collect.families(sidecar.view(views), views)
        for sample in family.samples
        if sample.name == f"vllm_sidecar_{name}"
    }


async def test_targets_come_go_and_move_and_fewer_than_expected_is_a_metric(tmp_path: Path) -> None:
    """Who stays is not touched; a named target at another address is the same target."""
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps(
            [group("127.0.0.1:1", pod="vllm-0", __sidecar_name="zero"), group("127.0.0.1:2"), group("127.0.0.1:3")]
        )
    )
    config = settings(file_sd=[path], labels={"pod": "engine_pod"}, expected_targets=3)
    sidecar = Sidecar()
    sidecar.use(config)
    assert list(sidecar.targets) == []
    assert samples(sidecar, "targets_missing") == {(): 3.0}
    await sidecar.discovery.refresh(0.0)
    sidecar.watch_targets()
    before = {target.config.label: target for target in sidecar.targets}
    assert list(before) == ["zero", "127.0.0.1:2", "127.0.0.1:3"]
    assert samples(sidecar, "targets_missing") == {(): 0.0}
    assert samples(sidecar, "discovery_targets") == {(("source", f"file:{path}"),): 3.0}
    assert (("engine_pod", "vllm-0"), ("model_name", ""), ("role", "both"), ("target", "zero")) in samples(
        sidecar, "target_info"
    )
    path.write_text(json.dumps([group("127.0.0.1:9", pod="vllm-0", __sidecar_name="zero"), group("127.0.0.1:2")]))
    await sidecar.discovery.refresh(1.0)
    sidecar.watch_targets()
    after = {target.config.label: target for target in sidecar.targets}
    assert list(after) == ["zero", "127.0.0.1:2"]
    assert after["zero"] is before["zero"]
    assert after["127.0.0.1:2"] is before["127.0.0.1:2"]
    assert after["zero"].config.url == "http://127.0.0.1:9"
    assert samples(sidecar, "targets_missing") == {(): 1.0}
    assert samples(sidecar, "fleet_targets") == {(("model_name", ""), ("role", "both"), ("state", "loading")): 2.0}
    await sidecar.targets.stop()


async def test_what_goes_wrong_unforeseen_does_not_end_the_search(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the next turn comes."""
    caplog.set_level(logging.INFO)
    discovery = Discovery()
    discovery.use(settings(dns=[{"name": "localhost", "port": 80}]))
    turned = asyncio.Event()

    def changed() -> None:
        turned.set()
        raise RuntimeError("unforeseen")

    watching = asyncio.create_task(discovery.watch(changed))
    await turned.wait()
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()
    assert "finding targets failed inside the sidecar" in caplog.text


def test_a_source_needs_a_port_unless_it_brings_one() -> None:
    assert DnsSource(name="engines", port=8000).type == "A"
    assert DnsSource(name="_http._tcp.engines", type="SRV").port is None
