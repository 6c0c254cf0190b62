"""Build the project's image, and run it as a strict container runtime does."""

import contextlib
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs import ROOT, TOOLS, system

BASE = "docker.io/library/python:3.13-slim"
AS_ROOT = () if os.geteuid() == 0 else ("sudo",)

# In namespaces of its own: the root file system ($1) read-only, the folder of mounted files ($2) at /mnt, and the
# image's user ($3) in place of root, in bounded memory. `exec` keeps the process id, so what runs is PID 1.
ENTER = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" &&
mount --bind -o ro "$2" "$1/mnt" && mount --bind /dev "$1/dev" && mount -t proc proc "$1/proc" || exit 125
root=$1 user=$3
shift 3
ulimit -v 1048576
exec chroot --userspec="$user" --groups= "$root" env -i "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """A built image: where its root file system is mounted, and its configuration as the OCI names it."""

    root: Path
    config: dict[str, Any]

    def command(self, files: Path, program: Sequence[str], environment: Sequence[str] = ()) -> list[str]:
        """What runs ``program`` in the image, with ``files`` at /mnt and ``NAME=value`` added to its environment."""
        namespaces = ("--mount", "--pid", "--ipc", "--uts", "--fork")
        enter = ("sh", "-c", ENTER, "sh", str(self.root), str(files), self.config["User"])
        return [*AS_ROOT, system("unshare"), *namespaces, *enter, *self.config["Env"], *environment, *program]

    def run(self, files: Path, *program: str) -> subprocess.CompletedProcess[str]:
        """Run ``program`` in the image to its end."""
        return subprocess.run(self.command(files, program), capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def built() -> Iterator[Image]:
    """The Dockerfile's image over a stand-in base, made of this tree."""
    store = TOOLS / "images"
    buildah = (
        *AS_ROOT,
        system("buildah"),
        "--storage-driver",
        "vfs",
        "--root",
        str(store),
        "--runroot",
        f"{store}/run",
    )

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    system("debootstrap")
    run(*AS_ROOT, ".ci/base-image", str(store), BASE)
    image = run(*buildah, "bud", "--quiet", "--isolation", "chroot", "--pull-never", "--tag", "vllm-sidecar:test", ".")
    container = run(*buildah, "from", "--pull-never", image)
    try:
        config = json.loads(run(*buildah, "inspect", container))["OCIv1"]["config"]
        yield Image(root=Path(run(*buildah, "mount", container)), config=config)
    finally:
        run(*buildah, "rm", container)
        run(*buildah, "rmi", "--force", image)


@dataclass(frozen=True, slots=True)
class Container:
    """The image's own entry point, running."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int

    @property
    def pid(self) -> int:
        """PID 1 of the container, as the host counts."""
        found = _first_in_namespace(self.process.pid)
        assert found is not None, self.log.read_text()
        return found

    def status(self, key: str) -> str:
        """A line of the container's /proc/1/status."""
        return dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())[
            key
        ].strip()

    def signal(self, number: signal.Signals) -> None:
        """Send PID 1 a signal from outside, as a kubelet does."""
        subprocess.run([*AS_ROOT, "kill", f"-{number.value}", str(self.pid)], check=True)

    def get(self, path: str) -> str:
        """The body of one answer, asked for until the port answers at all; a container that ended fails the test."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            try:
                with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
                    return response.read().decode()
            except urllib.error.HTTPError:
                raise
            except OSError:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=0.1)
                assert self.process.poll() is None, self.log.read_text()


@contextlib.contextmanager
def running(
    image: Image, files: Path, port: int, arguments: Sequence[str] = (), environment: Sequence[str] = ()
) -> Iterator[Container]:
    """The image started with ``arguments`` after its entry point."""
    log = files / "log"
    program = (*image.config["Entrypoint"], f"--web.listen-address=127.0.0.1:{port}", *arguments)
    with log.open("wb") as output:
        process = subprocess.Popen(
            image.command(files, program, environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield Container(process, log, port)
    finally:
        if process.poll() is None:
            Container(process, log, port).signal(signal.SIGKILL)
        process.wait(timeout=10)


def _first_in_namespace(pid: int) -> int | None:
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        status = Path(f"/proc/{child}/status").read_text()
        ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if len(ids) > 1 and ids[-1] == "1":
            return child
        if (found := _first_in_namespace(child)) is not None:
            return found
    return None
