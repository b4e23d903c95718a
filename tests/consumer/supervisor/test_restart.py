"""A child's slot: when the next one starts."""

from __future__ import annotations

from qworker.consumer.supervisor.processes.restart import LONGEST_PAUSE_S, ChildSlot


def test_a_slot_is_free_until_a_restart_is_due() -> None:
    """A new slot waits for no child; one that is to be filled is due from that moment on."""
    slot = ChildSlot()
    assert not slot.is_due(1e9)
    slot.restart(5.0)
    assert (slot.is_due(4.9), slot.is_due(5.0)) == (False, True)


def test_pauses_grow_until_a_child_works() -> None:
    """Children that do not work are started after 0.5 s, 1 s, 2 s … 30 s; one that works restarts the series."""
    slot = ChildSlot()
    pauses = []
    for _ in range(8):
        slot.restart_later(100.0)
        pauses.append((slot.restart_at or 0.0) - 100.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    slot.restart(100.0)
    slot.restart_later(100.0)
    assert slot.restart_at == 100.5


def test_a_second_stall_in_a_row_says_that_a_new_child_does_not_help() -> None:
    """A child that has handled something before it fell silent restarts the series."""
    slot = ChildSlot()
    assert [slot.stalled(handled) for handled in (0, 0, 7, 0)] == [False, True, False, True]
