"""What the pages tell people to do can be done: links lead somewhere, commands are understood, settings are taken."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml

from exporter import DEFAULT_PORT, cli
from exporter.lab import load, plan, simulate
from exporter.schema import Config
from tests.programs import ROOT

FOLDERS = ("alerts", "docs", "examples", "helm", "tests/data")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
EVERY = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
LAB = {"simulate": simulate.parser, "load": load.parser, "plan": plan._parser}
MAKEFILE = (ROOT / "Makefile").read_text()


def blocks(page: Path, *languages: str) -> list[str]:
    """Fenced blocks of code in these languages; with none, all."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages or not languages]


def commands() -> list[list[str]]:
    """Each call of ours in a block of code, without what stands before or after it in the shell."""
    lines = [line for page in PAGES for text in blocks(page) for line in text.replace("\\\n", " ").splitlines()]
    calls = [re.match(r" *(?:\$ )?(?:[A-Z_]+=\S+ )*vllm-sidecar( .*)?$", line) for line in lines]
    return [shlex.split(found[1] or "", comments=True) for found in calls if found]


@EVERY
def test_a_link_leads_to_what_is_there(page: Path) -> None:
    """Files and folders of the project, and headings of pages."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        titles = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if heading else []
        assert not heading or heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("arguments", commands(), ids=shlex.join)
def test_a_command_is_understood(arguments: list[str]) -> None:
    """Its flags and arguments are those of the program."""
    name, *rest = arguments or [""]
    parsed = LAB[name]().parse_args(rest) if name in LAB else cli._parser().parse_args(arguments)
    assert isinstance(parsed, argparse.Namespace)


@EVERY
def test_what_make_is_asked_for_is_a_target(page: Path) -> None:
    named = re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    assert [target for target in named if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


def test_an_address_of_ours_serves_what_is_asked_of_it() -> None:
    """Unless set otherwise metrics and probes are at the one port, page and API at the next, on the loopback."""
    text = "\n".join(page.read_text() for page in PAGES)
    found = re.findall(r"localhost:(100\d\d)(/[\w/.-]+)", text)
    assert len(found) >= 2
    for port, path in found:
        metrics = path == "/metrics" or path.startswith("/-/")
        assert int(port) == (DEFAULT_PORT if metrics else DEFAULT_PORT + 1), path


def test_settings_shown_are_taken() -> None:
    """Those that name no file of the reader's."""
    texts = [text for page in PAGES for text in blocks(page, "yaml") if "_file" not in text and "{{" not in text]
    contents = [content for text in texts if isinstance(content := yaml.safe_load(text), dict)]
    shown = [content for content in contents if content.keys() <= Config.model_fields.keys()]
    assert len(shown) >= 3
    for content in shown:
        Config.model_validate(content)


@EVERY
def test_nobody_is_sent_to_an_index_for_the_package(page: Path) -> None:
    """It is on none: whoever puts that name there is not us."""
    assert not re.search(r"pip install\b[^\n]*\bvllm-sidecar", page.read_text())


@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("simulator", {"600": "200"}),
        ("rehearsal", {"600": "60", "(4.0, 5.0, 6.0, 7.0)": "(4.0,)", "range(5)": "range(1)"}),
    ],
)
def test_programs_shown_run(name: str, shorter: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """As printed, but for less traffic; what they print is of the shape that the page shows or speaks of."""
    (text,) = blocks(ROOT / f"docs/{name}.md", "python")
    for whole, part in shorter.items():
        assert whole in text
        text = text.replace(whole, part)
    exec(compile(text, name, "exec"), {})
    shape = {
        "simulator": r"WindowTruth\(start=60, end=180, arrivals=\d+",
        "rehearsal": r"4\.0/s: 0\.\d{4} preemptions per",
    }
    assert re.match(shape[name], capsys.readouterr().out)
