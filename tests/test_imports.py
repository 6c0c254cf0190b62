"""The shape of the package: one direction, pure where it is promised, modules that can be read in one sitting."""

import ast
from functools import cache
from pathlib import Path

import pytest

import exporter

ROOT = Path(exporter.__file__).parent
FLOW = ("cli", "settings", "app", "targets", "scrape", "exposition", "history", "signals", "collect")
"""A module may import those to its right, never one to its left."""
NEUTRAL = frozenset(
    {
        "upstream",
        "snapshot",
        "schema",
        "schema_types",
        "files",
        "engine_schema",
        "catalogue",
        "hardware",
        "model_geometry",
        "speculation",
    }
    | {"signals.view", "signals.window", "signals.histogram", "signals.levels"}
)
"""Tables, and the types of what flows: open to all."""
PURE = (
    *("exposition", "sample_line", "history", "places", "sums", "signals", "catalogue", "hardware", "pipeline"),
    *("accrual", "judgement", "billing", "calibration", "replicas", "collect", "render", "replay", "upstream"),
)
IMPURE = frozenset(
    {"httpx", "asyncio", "time", "datetime", "threading", "socket", "os", "fastapi", "uvicorn", "random"}
)


@cache
def modules():
    """Every module by its name within the package, and what it imports, also where only a type checker looks."""
    files = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(ROOT.rglob("*.py"))}
    names = {name.removesuffix(".__init__"): path for path, name in files.items()}
    return {name: frozenset(imported(path, set(names))) for name, path in names.items()}


def imported(path, names):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.removeprefix("exporter.")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            module = (node.module or "").removeprefix("exporter").removeprefix(".")
            inside = {f"{module}.{alias.name}".removeprefix(".") for alias in node.names} & names
            yield from inside or {module}


def reached(name, through=lambda _: True):
    """All modules of ours that importing one imports, itself included."""
    found, ahead = set(), [name]
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead += [each for each in modules()[module] if each in modules() and through(each)]
    return found


def part_of(name, package):
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("position", range(len(FLOW)), ids=FLOW)
def test_no_module_imports_one_to_its_left(position):
    """Directly or over others: a snapshot flows right, nothing flows back."""
    mine = [name for name in modules() if part_of(name, FLOW[position]) and name not in NEUTRAL]
    everything = {each for name in mine for each in reached(name, lambda module: module not in NEUTRAL)}

    assert mine
    assert {left: [name for name in everything if part_of(name, left)] for left in FLOW[:position]} == {
        left: [] for left in FLOW[:position]
    }


def test_neutral_modules_stand_on_nothing_but_each_other():
    """The catalogue alone also names the signals, which fill its rows."""
    ours = {name: modules()[name] & modules().keys() - NEUTRAL for name in NEUTRAL}

    assert {name for name, others in ours.items() if others} == {"catalogue"}
    assert all(part_of(name, "signals") for name in ours["catalogue"])


def test_no_module_imports_itself_over_others():
    """No cycle anywhere in the package."""
    cycles = [name for name in modules() if any(name in reached(each) for each in modules()[name] if each in modules())]

    assert cycles == []


@pytest.mark.parametrize("package", PURE)
def test_pure_modules_know_no_http_no_asyncio_and_no_clock(package):
    """Neither they nor any module of ours that they import: time is a value."""
    mine = [name for name in modules() if part_of(name, package)]
    everything = {each for name in mine for each in reached(name)}
    outside = {each.split(".")[0] for name in everything for each in modules()[name] if each not in modules()}

    assert mine
    assert outside & IMPURE == set()


def test_the_runtime_does_not_need_the_lab():
    """It is another extra, and not in the image."""
    importing = {name for name, others in modules().items() if any(part_of(each, "lab") for each in others)}

    assert {name for name in importing if not part_of(name, "lab")} <= {"cli"}


def test_modules_are_short():
    """350 lines at the very most."""
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py")}

    assert {name: length for name, length in lengths.items() if length > 350} == {}
