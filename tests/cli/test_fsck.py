"""`qworker fsck`: what it prints, asks and exits with."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.conftest import Ran, Shop, Terminal

Run = Callable[..., Ran]


def damage(shop: Shop) -> None:
    """A foreign item and a wrong counter."""
    shop.send(number=2)
    shop.ask("RPUSH", shop.keys().ready[0], "hello")
    shop.ask("HSET", shop.keys().stats, "unacked", 7)


def test_a_clean_namespace_is_told_and_exits_with_0(shop: Shop, run: Run) -> None:
    """The number of messages shows that something was looked at."""
    shop.send(number=3)
    ran = run("fsck")
    assert (ran.code, ran.out, ran.err) == (0, "clean: 3 messages looked at\n", "")
    assert run("fsck", "emails", "--json").json == {
        "clean": True,
        "findings": [],
        "unchecked": [],
    }


def test_a_look_changes_nothing_and_exits_with_3(shop: Shop, run: Run) -> None:
    """What is wrong, where, and what a repair would do."""
    damage(shop)
    before = shop.dump()
    ran = run("fsck")
    assert ran.code == 3
    words = [line.split() for line in ran.lines]
    assert words[0] == ["QUEUE", "KIND", "WHERE", "PROBLEM", "REPAIR"]
    assert words[1][:4] == ["emails", "foreign", "item", "ready"]
    assert words[2][:4] == ["emails", "counter", "stats", "unacked"]
    assert "-> foreign item: qworker dead ls emails" in ran.lines
    assert ran.lines[-1] == "2 findings, 3 messages looked at; qworker fsck --repair mends them"
    assert shop.dump() == before


def test_repaired_findings_are_told_and_the_next_look_is_clean(shop: Shop, run: Run) -> None:
    """Something was found, so the exit code is 3; then it is 0."""
    damage(shop)
    ran = run("fsck", "--repair", "--yes", "--json")
    assert ran.code == 3
    assert [(each["kind"], each["repaired"]) for each in ran.json["findings"]] == [
        ("foreign item", True),
        ("counter", True),
    ]
    assert run("fsck").code == 0
    assert [letter.reason for letter in shop.queue().dead()] == ["foreign"]


def test_many_findings_of_one_kind_are_summed_up(shop: Shop, run: Run) -> None:
    """A table stays readable; JSON has all of them."""
    shop.send(number=1)
    shop.ask("RPUSH", shop.keys().ready[0], *(f"x{number}" for number in range(700)))
    ran = run("fsck")
    assert "emails: 680 more of foreign item (--json)" in ran.lines
    assert len(run("fsck", "--json").json["findings"]) == 700
    assert "700 findings repaired, 701 messages looked at" in run("fsck", "--repair", "-y").lines
    assert run("fsck").out == "clean: 701 messages looked at\n"


def test_a_key_of_another_type_stops_the_look_at_its_queue_only(shop: Shop, run: Run) -> None:
    """The others are looked at, and what was left out is said."""
    damage(shop)
    shop.break_queue("broken")
    ran = run("fsck")
    assert ran.code == 3
    assert {line.split()[0] for line in ran.lines[1:4]} == {"broken", "emails"}
    assert "broken: nothing else was looked at" in ran.err


def test_what_is_no_queue_is_bad_input(shop: Shop, run: Run) -> None:
    """Exit code 2, with the nearest name."""
    shop.send(number=1)
    assert run("fsck", "emial").code == 2
    ran = run("fsck", "email")
    assert ran.code == 2
    assert "did you mean 'emails'?" in ran.err
    assert run("fsck", "No Queue").code == 2


def test_without_a_terminal_a_repair_needs_yes(shop: Shop, run: Run) -> None:
    """Nobody can be asked, and nothing is changed."""
    damage(shop)
    before = shop.dump()
    ran = run("fsck", "--repair")
    assert ran.code == 2
    assert "give --yes to repair" in ran.err
    assert shop.dump() == before


def test_on_a_terminal_what_is_found_is_shown_before_it_asks(
    shop: Shop, run: Run, terminal: Callable[..., Terminal]
) -> None:
    """No changes nothing and exits with 1; yes repairs."""
    damage(shop)
    no = terminal("fsck", "--repair")
    assert "unacked" in no.read_until("repair 2 findings? [y/N]")
    no.write("n\n")
    assert no.wait() == 1
    assert run("fsck").code == 3
    yes = terminal("fsck", "--repair")
    yes.read_until("repair 2 findings? [y/N]")
    yes.write("y\n")
    assert yes.wait() == 3
    assert "2 findings repaired" in yes.seen
    assert run("fsck").code == 0


def test_messages_that_are_gone_are_counted(shop: Shop, run: Run) -> None:
    """Where a list was deleted by hand, `doctor` says how many messages are gone, and `fsck` how many it wrote off."""
    shop.send(number=3)
    shop.ask("DEL", shop.keys().ready[0])
    told = run("doctor")
    assert "messages that were stored are nowhere now: emails 3" in " ".join(told.out.split())
    found = run("fsck")
    assert found.code == 3
    assert "3 messages that had been stored are gone, and are not counted off yet" in found.out
    mended = run("fsck", "--repair", "--yes")
    assert "3 messages that had been stored are gone, and are written off" in mended.out
    assert run("fsck").code == 0
    assert "nowhere now" not in run("doctor").out
