"""Pages that are made from the code are as the code makes them."""

import runpy

import pytest
from pydantic import BaseModel

from exporter.catalogue import TABLE
from exporter.schema import Config
from tests.programs import ROOT

PAGES = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_a_made_page_is_current(name):
    """If not: make docs."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_metric_is_documented():
    page = PAGES["metrics.md"]()

    assert [row.name for row in TABLE if f"| `{row.full_name}` |" not in page] == []


def test_every_setting_is_documented_with_its_meaning():
    """Nested ones by their path, with the variable that sets them."""
    page = PAGES["settings.md"]()

    assert [name for name in _settings(Config) if f"| `{name}` | `VLLM_SIDECAR_" not in page] == []
    assert "| `slo.ttft_seconds` | `VLLM_SIDECAR_SLO__TTFT_SECONDS` | `2.5` |" in page
    assert not any(row.endswith("|  |") for row in page.splitlines())


def _settings(model):
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from (f"{name}.{below}" for below in _settings(field.annotation))
        else:
            yield name
