"""Columns and their places: slots are only ever added, and what was not seen is absent."""

from exporter.snapshot import TARGET, Engine, Layout, Slot, Snapshot
from exporter.upstream import Column

ENGINE = Engine("m", "0")
RUNNING, WAITING = Column("running"), Column("waiting")


def test_a_column_keeps_its_slot():
    """A second look finds the same place, and another owner has another."""
    layout = Layout()

    assert layout.slot(ENGINE, RUNNING) == 0
    assert layout.slot(Engine("m", "1"), RUNNING) == 1
    assert layout.slot(ENGINE, RUNNING) == 0
    assert layout.slots == [Slot(ENGINE, RUNNING), Slot(Engine("m", "1"), RUNNING)]


def test_columns_by_owner():
    """An engine's, the target's own, and none of an engine never seen."""
    layout = Layout()
    layout.slot(ENGINE, RUNNING)
    layout.slot(TARGET, Column("process_start"))

    assert layout.columns(ENGINE) == {RUNNING: 0}
    assert layout.columns(TARGET) == {Column("process_start"): 1}
    assert layout.columns(Engine("other", "0")) == {}
    assert list(layout.engines) == [ENGINE]


def test_a_slot_added_later_is_absent_in_an_older_snapshot():
    """An older, shorter row keeps its meaning."""
    snapshot = Snapshot([1.0])

    assert snapshot.value(0) == 1
    assert snapshot.value(5) is None
