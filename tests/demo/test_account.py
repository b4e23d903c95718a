"""The demo's account: nothing is subtracted, so nothing can hide."""

from __future__ import annotations

from qworker.demo.account import DeadKey, settle_account
from tests.tables import each

DEAD = DeadKey("d", "max_receives", "SyntaxError")


def test_a_message_that_is_neither_handled_nor_dead_is_lost():
    account = settle_account(sent={"a", "b", "d"}, handled={"a"}, dead=[DEAD])
    assert account.lost == {"b"}
    assert (account.sent, account.handled, account.dead) == (3, 1, 1)


def test_numbers_that_add_up_do_not_hide_a_lost_message():
    """Three sent and three handled, but not the same three: by subtraction nothing would be lost."""
    account = settle_account(sent={"a", "b", "c"}, handled={"a", "b", "x"}, dead=[])
    assert account.lost == {"c"}


def test_a_message_handled_before_its_sender_noted_it_counts_as_sent():
    account = settle_account(sent={"a"}, handled={"a", "x"}, dead=[])
    assert (account.sent, account.lost) == (2, frozenset())


def test_waiting_messages_are_not_lost():
    account = settle_account(sent={"a", "b"}, handled={"a"}, dead=[], waiting=frozenset("ab"))
    assert (account.waiting, account.lost) == (1, frozenset())


@each(
    "others, dead, redelivered",
    [({"a", "b"}, [], 2), ({"a"}, [], 1), (set(), [DEAD], 1), (set(), [], 0)],
)
def test_redelivered_are_messages_held_by_the_killed_worker_that_another_one_ended(
    others, dead, redelivered
):
    account = settle_account(
        sent={"a", "b", "d"},
        handled={"a", "b"},
        dead=dead,
        held=frozenset("abd"),
        handled_by_others=others,
    )
    assert account.redelivered == redelivered


def test_the_dead_are_counted_by_reason_with_the_errors_they_died_of():
    dead_letters = [DEAD, DeadKey("e", "rejected", "Bury"), DeadKey("f", "max_receives", "OSError")]
    dead_letters.append(DeadKey("g", "max_receives", "SyntaxError"))
    account = settle_account(sent=set("defg"), handled=set(), dead=dead_letters)
    assert account.dead_by_reason == {"max_receives": 3, "rejected": 1}
    assert account.errors_by_reason == {
        "max_receives": ("SyntaxError", "OSError"),
        "rejected": ("Bury",),
    }
