"""Where settings come from, which are refused and how, and how they change in a running sidecar."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.app import Sidecar
from exporter.schema import Config, TargetConfig
from exporter.serve import Reloader
from exporter.settings import ENV_PREFIX, BadSettingsError, load


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sidecar.yaml"


def refusal(path: Path | None = None, **flags: Any) -> str:
    with pytest.raises(BadSettingsError) as refused:
        load(path, **flags)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_nothing_needs_to_be_set() -> None:
    """One engine beside us, no price, no secret."""
    config = load()
    [target] = config.all_targets()
    assert (target.url, target.label) == ("http://localhost:8000", "localhost:8000")
    assert target.gpu_hour_dollars is None
    assert config.listen_address == ":10077"


def test_an_empty_file_sets_nothing(file: Path) -> None:
    """A ConfigMap key with nothing or only comments in it."""
    file.write_text("# nothing yet\n")
    assert load(file) == load()


def test_flags_beat_the_environment_and_that_beats_the_file(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Three sources that disagree on three settings."""
    file.write_text("log_level: error\nlog_format: json\nurl: http://file:1\nslo: {ttft_seconds: 9, itl_seconds: 1}\n")
    monkeypatch.setenv("VLLM_SIDECAR_LOG_FORMAT", "logfmt")
    monkeypatch.setenv("VLLM_SIDECAR_URL", "http://environment:1")
    monkeypatch.setenv("VLLM_SIDECAR_SLO__TTFT_SECONDS", "3")
    config = load(file, url="http://flag:1")
    assert (config.log_level, config.log_format, config.url) == ("error", "logfmt", "http://flag:1")
    # What is nested is merged: the file's other objective stands.
    assert (config.slo.ttft_seconds, config.slo.itl_seconds) == (3.0, 1.0)


def test_several_targets_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in the environment is JSON; what stands at the top holds for each that does not say otherwise."""
    monkeypatch.setenv("VLLM_SIDECAR_GPU_HOUR_DOLLARS", "2")
    monkeypatch.setenv(
        "VLLM_SIDECAR_TARGETS", '[{"url": "http://a:1"}, {"url": "http://b:1", "gpu_hour_dollars": 3, "engines": [0]}]'
    )
    one, two = load().all_targets()
    assert (one.label, one.gpu_hour_dollars) == ("a:1", 2.0)
    assert (two.label, two.gpu_hour_dollars, two.engines) == ("b:1", 3.0, ("0",))


def test_targets_at_different_addresses_are_not_compared_with_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 there would be 124,750 pairs, in which a reload held up scraping for seconds."""
    compared: list[tuple[str, str]] = []

    def overlap(one: TargetConfig, other: TargetConfig) -> bool:
        compared.append((one.url, other.url))
        return False

    monkeypatch.setattr("exporter.schema.overlap", overlap)
    beside = {"url": "http://a:1", "name": "beside", "engines": [1]}
    Config.model_validate({"targets": [*({"url": f"http://a:{port}"} for port in range(1, 501)), beside]})
    assert compared == [("http://a:1", "http://a:1")]


NO_SUCH = "/nonexistent/file"
CANNOT_READ = f"cannot read {NO_SUCH}: No such file or directory"
GROUP_NAMES = "'traffic', 'scheduler', 'latency', 'cost', 'roofline', 'speculation', 'kv' or 'use'"
OVERLAP = "targets x and y overlap: the same engines of http://a:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prize: 2", "prize: unknown setting"),
        ("slo: {ttft: 2}", "slo.ttft: unknown setting"),
        ("targets: [{url: http://a:1, prize: 2}]", "targets.0.prize: unknown setting"),
        ("gpu_hour_dollars: -0.01", "gpu_hour_dollars: Input should be greater than or equal to 0"),
        ("gpu_hour_dollars: .inf", "gpu_hour_dollars: Input should be a finite number"),
        ("gpu_hour_dollars: .nan", "gpu_hour_dollars: Input should be a finite number"),
        ("slo: {ttft_seconds: 0}", "slo.ttft_seconds: Input should be greater than 0"),
        ("slo: {itl_seconds: -1}", "slo.itl_seconds: Input should be greater than 0"),
        ("slo: {objective_ratio: 1}", "slo.objective_ratio: Input should be less than 1"),
        (f"scrape: {{bearer_token_file: {NO_SUCH}}}", f"scrape.bearer_token_file: {CANNOT_READ}"),
        (f"scrape: {{ca_file: {NO_SUCH}}}", f"scrape.ca_file: {CANNOT_READ}"),
        (f"scrape: {{cert_file: {NO_SUCH}, key_file: {NO_SUCH}}}",
         f"scrape.cert_file: {CANNOT_READ}; scrape.key_file: {CANNOT_READ}"),
        (f"scrape: {{cert_file: {__file__}}}", "scrape: cert_file and key_file go together"),
        ('scrape: {server_name: ""}', "scrape.server_name: not the name of a host"),
        ('scrape: {server_name: "a\\0b"}', "scrape.server_name: not the name of a host"),
        ("scrape: {server_name: a..b}", "scrape.server_name: not the name of a host"),
        (f"scrape: {{server_name: {'a' * 64}}}", "scrape.server_name: not the name of a host"),
        ("scrape: {bearer_token_file: /}", "scrape.bearer_token_file: cannot read /: not a regular file"),
        ("scrape: {interval_seconds: 0}", "scrape.interval_seconds: Input should be greater than or equal to 0.2"),
        ("engines: ['0', '0']", "engines lists an engine twice"),
        ("targets: [{url: http://a:1}, {url: http://a:1}]", "two targets are called a:1; give them a name each"),
        ("targets: [{url: http://a:1, name: x}, {url: http://b:1, name: x}]",
         "two targets are called x; give them a name each"),
        ("targets: [{url: http://a:1, name: x}, {url: http://a:1/, name: y}]", OVERLAP),
        ("targets: [{url: http://a:1, name: x, engines: ['0', '1']}, {url: http://a:1, name: y, engines: [1]}]",
         OVERLAP),
        ("targets: [{url: http://a:1, name: x}, {url: http://a:1, name: y, engines: [1]}]", OVERLAP),
        ("url: localhost:8000", "url: not an http, https or http+unix URL, such as http://localhost:8000"),
        ("url: http://:8000", "url: the URL names no host; an IPv6 address stands in brackets: http://[::1]:8000"),
        ("url: http://::1:8000", "url: not a URL: its host or port cannot be read"),
        ("url: http://a:99999", "url: not a URL: its host or port cannot be read"),
        ("url: http://a b:1", "url: a URL must not hold blanks or control characters"),
        ("listen_address: '10077'", "listen_address: '10077' is not HOST:PORT, :PORT or [IPV6]:PORT"),
        ("listen_address: '::1:10077'", "listen_address: '::1:10077': an IPv6 address stands in brackets: [::]:10077"),
        ("windows: [1m, 1h]", "windows.1: '1h' is not a window such as 30s or 5m"),
        ("windows: [1m, 16m]",
         "windows.1: window '16m' must lie between 15s and 15m; longer ones are Prometheus's job"),
        ("log_level: loud", "log_level: Input should be 'debug', 'info', 'warning' or 'error'"),
        ("disabled_groups: [nothing]", f"disabled_groups.0: Input should be {GROUP_NAMES}"),
        ("prize: 2\ngpu_hour_dollars: -1",
         "gpu_hour_dollars: Input should be greater than or equal to 0; prize: unknown setting"),
    ],
)  # fmt: skip
def test_a_refused_setting_is_one_line_that_names_it(file: Path, text: str, message: str) -> None:
    """What is wrong, and where, in the words of the file."""
    file.write_text(text)
    assert refusal(file) == message


@pytest.mark.parametrize(
    "text",
    ["a: b: c", "\t- x", "{", "a: !!python/object:os.system {}", "a: 2026-02-31", "a: " + "9" * 5000],
    ids=lambda text: text[:20],
)
def test_what_is_no_yaml_is_one_line(file: Path, text: str) -> None:
    """Whatever the text does to the reader of YAML."""
    file.write_text(text)
    assert refusal(file).startswith(f"{file} is not YAML: ")


def test_bytes_that_are_no_text(file: Path) -> None:
    """A binary file given by mistake."""
    file.write_bytes(b"url: \x80\x81")
    assert refusal(file).startswith(f"{file} is not YAML: ")


def test_a_file_that_nests_without_end(file: Path) -> None:
    """Python's stack is not the reader's business."""
    for nesting in ("[", "- ", "? ", "{a: "):
        file.write_text(nesting * 50_000)
        assert refusal(file).startswith(f"{file} is not YAML: ")


@pytest.mark.parametrize("text", ["url: &a [*a]", "slo: &a {ttft_seconds: *a}\ntargets: [{slo: *a}]"])
def test_a_file_that_holds_itself(file: Path, text: str) -> None:
    """YAML can refer to what it is part of."""
    file.write_text(text)
    assert refusal(file)


def test_a_file_that_is_no_settings_file(tmp_path: Path, file: Path) -> None:
    """A folder, a device that never ends, the weights of a model."""
    assert refusal(tmp_path) == f"cannot read {tmp_path}: not a regular file"
    assert refusal(Path("/dev/zero")) == "cannot read /dev/zero: not a regular file"
    file.write_bytes(b"#" * (2**20 + 1))
    assert refusal(file) == f"cannot read {file}: larger than 1048576 bytes"


@pytest.mark.parametrize(
    "setting",
    [
        "scrape: {{bearer_token_file: {pipe}}}",
        "scrape: {{ca_file: {pipe}}}",
        "scrape: {{cert_file: {pipe}, key_file: {pipe}}}",
        "model: {{config_file: {pipe}}}",
        "web_config_file: {pipe}",
    ],
)
def test_a_pipe_is_not_waited_for(file: Path, tmp_path: Path, setting: str) -> None:
    """Opening one that nobody writes to would hold up the start, or with a changed file every scrape, for good."""
    os.mkfifo(pipe := tmp_path / "pipe")
    file.write_text(setting.format(pipe=pipe))
    assert f"cannot read {pipe}: not a regular file" in refusal(file)


def test_a_file_that_is_a_list(file: Path) -> None:
    """YAML, and not settings."""
    file.write_text("- url: http://a:1\n")
    assert refusal(file) == f"{file} must hold settings by name"


def test_a_file_that_is_not_there(file: Path) -> None:
    """A wrong path is said as the system says it."""
    assert refusal(file) == f"cannot read {file}: No such file or directory"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PRIZE", "2", "VLLM_SIDECAR_PRIZE: unknown setting"),
        ("SLO__TTFT", "2", "slo.ttft: unknown setting"),
        ("GPU_HOUR_DOLLARS", "-1", "gpu_hour_dollars: Input should be greater than or equal to 0"),
        ("SLO__TTFT_SECONDS", "0", "slo.ttft_seconds: Input should be greater than 0"),
        ("PORT", "10077", "VLLM_SIDECAR_PORT: unknown setting"),
        ("WEB_PORT", "10077", "VLLM_SIDECAR_WEB_PORT: unknown setting"),
    ],
)
def test_the_environment_is_held_to_the_same(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    """A misspelt variable is not silently without effect."""
    monkeypatch.setenv(ENV_PREFIX + name, value)
    assert refusal() == message


@pytest.mark.parametrize("service", ["", "METRICS_", "A_B_2_"], ids=["vllm-sidecar", "vllm-sidecar-metrics", "longer"])
def test_variables_of_kubernetes_services_are_not_settings(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    """What the kubelet sets beside a Service named so (docs: "Accessing the Service", environment variables)."""
    for name, value in {
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "10077",
        "SERVICE_PORT_METRICS": "10077",
        "PORT": "tcp://10.0.0.11:10077",
        "PORT_10077_TCP": "tcp://10.0.0.11:10077",
        "PORT_10077_TCP_PROTO": "tcp",
        "PORT_10077_TCP_PORT": "10077",
        "PORT_10077_TCP_ADDR": "10.0.0.11",
    }.items():
        monkeypatch.setenv(f"{ENV_PREFIX}{service}{name}", value)
    assert load() == Config()


@pytest.mark.parametrize(
    "url",
    [
        "http://somebody:hunter2@a:1",
        "ftp://somebody:hunter2@a:1",
        "http://a:1/?token=hunter2",
        "http://a:1/#hunter2",
        "http://a:hunter2",
        "http://x y:hunter2@a",
        "hunter2",
    ],
)
def test_a_refused_url_is_not_repeated(url: str) -> None:
    """It may hold a secret, and the line goes to the log."""
    assert "hunter2" not in refusal(url=url)


def test_the_body_limit_can_be_raised(file: Path) -> None:
    """64 MiB, for a thousand adapters."""
    file.write_text("scrape: {max_body_bytes: 67108864}")
    assert load(file).scrape.max_body_bytes == 64 * 2**20


@pytest.fixture
async def running(file: Path) -> Any:
    """A sidecar on a settings file as it runs, the timer's tick in our hand."""
    file.write_text("url: http://127.0.0.1:9\nscrape: {interval_seconds: 60}\n")
    sidecar = Sidecar()
    reloader = Reloader(lambda: load(file), BadSettingsError, file)
    reloader.apply(sidecar)

    def tick() -> None:
        if reloader.changed() or not sidecar.config_valid:
            reloader.apply(sidecar)

    yield sidecar, tick
    await sidecar.targets.stop()


Running = tuple[Sidecar, Callable[[], None]]


async def test_price_and_objectives_change_in_a_running_sidecar(running: Running, file: Path) -> None:
    """The target goes on being watched, by the same timer and with its totals."""
    sidecar, tick = running
    [before] = sidecar.targets
    file.write_text(
        "url: http://127.0.0.1:9\nscrape: {interval_seconds: 60}\ngpu_hour_dollars: 2\nslo: {ttft_seconds: 1}"
    )
    tick()
    [after] = sidecar.targets
    assert after is before
    assert after.pipeline is before.pipeline
    assert (after.config.gpu_hour_dollars, after.config.slo.ttft_seconds) == (2.0, 1.0)


async def test_targets_come_and_go_and_the_others_stay(running: Running, file: Path) -> None:
    """A second target is added, then the first is taken away: the one that stays is not begun again."""
    sidecar, tick = running
    scrape = "scrape: {interval_seconds: 60}\n"
    file.write_text(scrape + "targets: [{url: http://127.0.0.1:9}, {url: http://127.0.0.1:19}]")
    first = list(sidecar.targets)
    tick()
    both = list(sidecar.targets)
    assert [target.config.label for target in both] == ["127.0.0.1:9", "127.0.0.1:19"]
    assert both[0] is first[0]
    file.write_text(scrape + "targets: [{url: http://127.0.0.1:19}]")
    tick()
    assert list(sidecar.targets) == both[1:]


async def test_how_a_target_is_scraped_changes_and_its_totals_stay(running: Running, file: Path) -> None:
    """Another interval, deadline or token is no other engine."""
    sidecar, tick = running
    [before] = sidecar.targets
    file.write_text("url: http://127.0.0.1:9\nscrape: {interval_seconds: 30, timeout_seconds: 1}\n")
    tick()
    [after] = sidecar.targets
    assert after.pipeline is before.pipeline
    assert after.config.scrape.timeout_seconds == 1.0


async def test_an_invalid_file_leaves_the_last_good_one_in_force(
    running: Running, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """config_valid 0 and one line while it is wrong, however often it is looked at; then it recovers."""
    sidecar, tick = running
    [target] = sidecar.targets
    good = file.read_text()
    reloaded = sidecar.config_reload_unix_seconds
    with caplog.at_level(logging.ERROR):
        file.write_text("gpu_hour_dollars: -1")
        for _ in range(5):
            tick()
    assert sidecar.config_valid is False
    assert list(sidecar.targets) == [target]
    assert sidecar.config_reload_unix_seconds == reloaded
    [line] = caplog.records
    assert line.fields["reason"] == "gpu_hour_dollars: Input should be greater than or equal to 0"
    file.write_text(good)
    tick()
    assert sidecar.config_valid is True
    assert list(sidecar.targets) == [target]


async def test_a_file_that_goes_and_comes_back(running: Running, file: Path) -> None:
    """An editor that writes by removing."""
    sidecar, tick = running
    text = file.read_text()
    file.unlink()
    tick()
    assert sidecar.config_valid is False
    file.write_text(text)
    tick()
    assert sidecar.config_valid is True


async def test_a_token_that_is_mounted_late(running: Running, file: Path, tmp_path: Path) -> None:
    """The settings file does not change; the file that it names comes."""
    sidecar, tick = running
    token = tmp_path / "token"
    file.write_text(f"url: http://127.0.0.1:9\nscrape: {{interval_seconds: 60, bearer_token_file: {token}}}\n")
    tick()
    assert sidecar.config_valid is False
    token.write_text("secret")
    tick()
    assert sidecar.config_valid is True


async def test_a_config_map_is_replaced_by_swapping_a_link(tmp_path: Path) -> None:
    """The kubelet mounts sidecar.yaml -> ..data/sidecar.yaml and ..data -> ..1; then a link to ..2 is renamed over."""
    for version, price in (("..1", 1), ("..2", 2)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "sidecar.yaml").write_text(f"gpu_hour_dollars: {price}\n")
        # Same size, same time: only the content tells.
        os.utime(tmp_path / version / "sidecar.yaml", (1e9, 1e9))
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "sidecar.yaml"
    file.symlink_to("..data/sidecar.yaml")
    reloader = Reloader(lambda: load(file), BadSettingsError, file)
    assert not reloader.changed()
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert reloader.changed()
    assert load(file).gpu_hour_dollars == 2.0
    assert not reloader.changed()


def watched(file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Reloader, list[bytes | None]]:
    """A reloader of a file that has been seen to stand still, and what it reads of it from then on."""
    reloader = Reloader(lambda: load(file), BadSettingsError, file)
    reloader.changed()
    read: list[bytes | None] = []
    content = reloader._content_now

    def counted() -> bytes | None:
        read.append(content())
        return read[-1]

    monkeypatch.setattr(reloader, "_content_now", counted)
    return reloader, read


def test_a_file_that_does_not_change_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at once a second for months. After an edit it is read twice, then rests."""
    file.write_text("gpu_hour_dollars: 1")
    reloader, read = watched(file, monkeypatch)
    assert [reloader.changed() for _ in range(5)] == [False] * 5
    assert read == []
    file.write_text("gpu_hour_dollars: 22")
    assert [reloader.changed() for _ in range(5)] == [True, False, False, False, False]
    assert read == [b"gpu_hour_dollars: 22"] * 2


def test_a_second_edit_in_the_same_second_is_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system whose times are whole seconds, both edits leave the same version; of the same length."""
    file.write_text("gpu_hour_dollars: 1")
    reloader, _ = watched(file, monkeypatch)
    monkeypatch.setattr("exporter.serve.file_version", lambda path: "the same second")
    for price in (2, 3):
        file.write_text(f"gpu_hour_dollars: {price}")
        assert reloader.changed()
    assert not reloader.changed()
