"""The image: what is in it, and that it runs where nothing is given and can never take its pod down."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from exporter import DEFAULT_PORT, __version__
from tests.image.container import Container, Image, built, running
from tests.programs import ROOT

OURS = "opt/vllm-sidecar"


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built() as image:
        yield image


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder that the image's user may read, like a mounted ConfigMap."""
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def normalized(packages: Mapping[str, str]) -> dict[str, str]:
    """Versions by the name in its one spelling (PEP 503)."""
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in packages.items()}


def installed(image: Image, files: Path) -> dict[str, str]:
    """Python packages of the image's environment, by name."""
    program = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    return normalized(json.loads(image.run(files, "python", "-c", program).stdout))


def locked() -> dict[str, str]:
    lines = re.findall(r"^[a-z].*(?= \\$)", (ROOT / "requirements/runtime.txt").read_text(), re.MULTILINE)
    requirements = [Requirement(line) for line in lines]
    python = {"python_version": "3.13", "python_full_version": "3.13.0"}
    return {r.name: str(r.specifier)[2:] for r in requirements if r.marker is None or r.marker.evaluate(python)}


def test_configuration(image: Image) -> None:
    """Numeric user (Kubernetes cannot prove a name is not root), exec-form command, the one default port, labels."""
    assert image.config["User"] == "65532:65532"
    assert image.config["Entrypoint"] == ["vllm-sidecar"]
    assert image.config["Cmd"] == [f"--web.listen-address=:{DEFAULT_PORT}"]
    assert image.config["ExposedPorts"] == {f"{DEFAULT_PORT}/tcp": {}}
    assert "Healthcheck" not in image.config
    assert image.config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_holds_the_lock_and_nothing_else(image: Image, files: Path) -> None:
    """No build tools, no extras, no lab: the environment is the runtime lock and the sidecar."""
    assert installed(image, files) == {**locked(), "vllm-sidecar": __version__}
    assert not list((image.root / OURS).glob("lib/*/site-packages/exporter/lab"))
    assert not list((image.root / OURS).glob("lib/*/site-packages/tests"))
    assert [name for name in ("cc", "gcc", "ld", "make") if (image.root / "usr/bin" / name).exists()] == []
    assert not (image.root / "src").exists()


def test_bill_of_materials_is_what_the_image_holds(image: Image, files: Path, tmp_path: Path) -> None:
    """`make sbom` names each Python package of the image at its version, and what they are the packages of."""
    subprocess.run([ROOT / ".ci/sbom", tmp_path / "sbom.json", sys.prefix], check=True)
    bill = json.loads((tmp_path / "sbom.json").read_text())
    components = [*bill["components"], bill["metadata"]["component"]]
    listed = normalized({component["name"]: component["version"] for component in components})
    assert listed == installed(image, files)


def test_is_small(image: Image) -> None:
    """At most 40 MiB over the base image, compiled bytecode included."""
    size = sum(path.lstat().st_size for path in (image.root / OURS).rglob("*"))
    assert size <= 40 * 2**20


def test_bytecode_is_compiled_at_build(image: Image) -> None:
    """A read-only root cannot cache bytecode, so each module brings its own."""
    packages = next((image.root / OURS / "lib").iterdir()) / "site-packages"
    modules = set(packages.rglob("*.py"))
    compiled = {path.parent.parent / f"{path.name.split('.')[0]}.py" for path in packages.rglob("__pycache__/*.pyc")}
    assert modules <= compiled


def test_version(image: Image, files: Path) -> None:
    """`--version` answers in the image."""
    done = image.run(files, *image.config["Entrypoint"], "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout


@pytest.mark.parametrize("command", ["simulate", "load", "plan"])
def test_lab_is_refused_in_one_line(image: Image, files: Path, command: str) -> None:
    """A command of the extra `lab` says what to install."""
    done = image.run(files, *image.config["Entrypoint"], command)
    assert done.returncode == 2
    assert "vllm-sidecar[lab]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_runs_with_nothing_given(image: Image, files: Path, port: int) -> None:
    """PID 1, user 65532 without name, home or capability, root file system read-only: healthy, and ends on SIGTERM."""
    with running(image, files, port) as sidecar:
        assert "vllm_sidecar_config_valid 1.0\n" in sidecar.get("/metrics")
        assert sidecar.get("/-/healthy")
        assert sidecar.get("/-/ready")
        assert sidecar.status("NSpid").split()[-1] == "1"
        assert set(sidecar.status("Uid").split() + sidecar.status("Gid").split()) == {"65532"}
        assert int(sidecar.status("CapEff"), 16) == 0
        assert "65532" not in (image.root / "etc/passwd").read_text()
        mounts = [line.split() for line in Path(f"/proc/{sidecar.pid}/mountinfo").read_text().splitlines()]
        assert [mount[5].split(",")[0] for mount in mounts if mount[4] == "/"] == ["ro"]
        assert "HOME=" not in Path(f"/proc/{sidecar.pid}/environ").read_text()
        sidecar.signal(signal.SIGTERM)
        assert sidecar.process.wait(timeout=2) == 0, sidecar.log.read_text()
        assert "Traceback" not in sidecar.log.read_text()


@pytest.mark.timeout(60)
def test_metrics_of_an_engine(image: Image, files: Path, port: int) -> None:
    """A real engine's recording, played back by the image itself, reaches the image's /metrics."""
    recording = f"/{next((image.root / OURS).glob('lib/*/site-packages/exporter/data/burst*')).relative_to(image.root)}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = f"127.0.0.1:{listener.getsockname()[1]}"
    played = image.command(files, [*image.config["Entrypoint"], "replay", recording, f"--serve={engine}"])
    with (
        subprocess.Popen(played, stdin=subprocess.DEVNULL) as playing,
        running(image, files, port, environment=[f"VLLM_SIDECAR_URL=http://{engine}"]) as sidecar,
    ):
        try:
            up = f'vllm_sidecar_target_up{{target="{engine}"}} 1.0\n'
            while up not in sidecar.get("/metrics"):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    playing.wait(timeout=0.2)
                assert playing.poll() is None
            assert re.search(r"^vllm_sidecar_running_requests\{.+\} \d", sidecar.get("/metrics"), re.MULTILINE)
        finally:
            Container(playing, files / "log", port).signal(signal.SIGKILL)


MISCONFIGURED = {
    "unknown setting": b"ulr: http://localhost:8000\n",
    "unknown setting below": b"slo: {ttft: 2}\n",
    "negative price": b"gpu_hour_dollars: -1\n",
    "SLO of 0": b"slo: {ttft_seconds: 0}\n",
    "wrong type": b"scrape: fast\n",
    "URL without host": b"url: http://\n",
    "unreadable token": b"scrape: {bearer_token_file: /mnt/none}\n",
    "overlapping engine lists": b"targets: [{name: a, engines: ['0']}, {name: b, engines: ['0', '1']}]\n",
    "a list": b"- url: http://localhost:8000\n",
    "a scalar": b"yes\n",
    "not YAML": b"url: [http://localhost:8000\n",
    "two documents": b"url: http://a:1\n---\nurl: http://b:1\n",
    "a tag of Python": b"url: !!python/object/apply:os._exit [3]\n",
    "an alias bomb": b"a: &a [x, x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (c, c, b", ".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("k"))
    ),
    "deeply nested": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe\x00url",
    "NUL bytes": bytes(1000),
    "a model's weights": bytes(2**21),
}  # fmt: skip


@pytest.mark.parametrize("content", MISCONFIGURED.values(), ids=MISCONFIGURED.keys())
def test_a_wrong_file_is_served_not_died_of(image: Image, files: Path, port: int, content: bytes) -> None:
    """Under --never-exit a wrong configuration file is `config_valid 0`, in a process that is healthy and ends well."""
    (files / "config.yaml").write_bytes(content)
    with running(image, files, port, ["--never-exit", "--config.file=/mnt/config.yaml"]) as sidecar:
        assert_invalid_but_alive(sidecar)


WRONG = {
    "no file": (["--config.file=/mnt/none.yaml"], []),
    "a folder for a file": (["--config.file=/mnt"], []),
    "a file not to be read": (["--config.file=/etc/shadow"], []),
    "an endless file": (["--config.file=/dev/zero"], []),
    "unknown flag": (["--web.listen-adress=:1"], []),
    "unknown level": (["--log.level=loud"], []),
    "unknown format": (["--log.format=xml"], []),
    "unexpected argument": (["serve"], []),
    "wrong variable": ([], ["VLLM_SIDECAR_GPU_HOUR_DOLLARS=free"]),
    "unknown variable": ([], ["VLLM_SIDECAR_ULR=http://localhost:8000"]),
}


@pytest.mark.parametrize(("arguments", "environment"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_served_not_died_of(
    image: Image, files: Path, port: int, arguments: list[str], environment: list[str]
) -> None:
    """Under --never-exit wrong flags, variables and files are `config_valid 0` too."""
    with running(image, files, port, ["--never-exit", *arguments], environment) as sidecar:
        assert_invalid_but_alive(sidecar)


def assert_invalid_but_alive(sidecar: Container) -> None:
    assert "vllm_sidecar_config_valid 0.0\n" in sidecar.get("/metrics")
    assert sidecar.get("/-/healthy")
    log = sidecar.log.read_text()
    assert "Traceback" not in log
    assert "level=error" in log
    sidecar.signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=2) == 0


def test_a_port_in_use_is_waited_for(image: Image, files: Path) -> None:
    """Under --never-exit a port that another holds does not end the sidecar, which serves when it is free."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        number = holder.getsockname()[1]
        with running(image, files, number, ["--never-exit"]) as sidecar:
            holder.settimeout(60)
            while "address" not in sidecar.log.read_text().lower():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    sidecar.process.wait(timeout=0.1)
                assert sidecar.process.poll() is None, sidecar.log.read_text()
            holder.close()
            assert "vllm_sidecar_config_valid 1.0\n" in sidecar.get("/metrics")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM])
def test_other_signals_do_not_end_it(image: Image, files: Path, port: int, number: signal.Signals) -> None:
    """Only SIGTERM and SIGINT are asked for; what else a node sends leaves it serving."""
    with running(image, files, port, ["--never-exit"]) as sidecar:
        sidecar.get("/-/healthy")
        sidecar.signal(number)
        assert sidecar.get("/-/healthy")
        assert sidecar.process.poll() is None
