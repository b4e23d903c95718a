"""A child's place: when the next one starts."""

from __future__ import annotations

from qworker.consumer.places import LONGEST_PAUSE_S, Place


def test_a_place_is_free_until_it_is_said_when_to_fill_it() -> None:
    """A new place waits for nobody; one that is to be filled is due from that moment on."""
    place = Place()
    assert not place.is_due(1e9)
    place.restart(5.0)
    assert (place.is_due(4.9), place.is_due(5.0)) == (False, True)


def test_pauses_grow_until_a_child_works() -> None:
    """Children that do not work are started after 0.5 s, 1 s, 2 s … 30 s; one that works begins the row anew."""
    place = Place()
    pauses = []
    for _ in range(8):
        place.restart_later(100.0)
        pauses.append((place.restart_at or 0.0) - 100.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    place.restart(100.0)
    place.restart_later(100.0)
    assert place.restart_at == 100.5


def test_a_second_stall_in_a_row_says_that_a_new_child_does_not_help() -> None:
    """A child that has handled something before it fell silent begins the row anew."""
    place = Place()
    assert [place.stalled(handled) for handled in (0, 0, 7, 0)] == [False, True, False, True]
