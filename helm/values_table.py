"""The table of a chart's values, made from the comments of its `values.yaml`."""

import json
from collections.abc import Iterator

import yaml

MARK = "# -- "


def table(text: str) -> str:
    """A Markdown table of every value that has a comment, with its default.

    Raises:
        ValueError: a value without a comment, neither its own nor one of the object it is in.
    """
    rows = [f"| `{name}` | `{default}` | {description} |" for name, default, description in _rows(text)]
    return "\n".join(["| value | default | what it is |", "|---|---|---|", *rows]) + "\n"


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)  # noqa: S101 - a values file is a mapping
    yield from _values(root, "", text.splitlines())


def _values(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        description = _comment(lines, key.start_mark.line)
        if description:
            default = yaml.safe_load(yaml.serialize(value))
            yield name, json.dumps(default, ensure_ascii=False), description
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _values(value, f"{name}.", lines)
        else:
            raise ValueError(f"values.yaml: {name} has no comment that begins with {MARK!r}")


def _comment(lines: list[str], line: int) -> str:
    """The comment right above a line, from its mark on; empty if there is none."""
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        comment = lines[line].strip()
        if comment.startswith(MARK):
            return " ".join([comment.removeprefix(MARK), *found])
        found.insert(0, comment.removeprefix("# "))
    return ""
