"""`qworker fsck`: what it prints, asks and exits with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qworker import QWorker, SyncRun, group
from tests.cli.conftest import Ran, Shop, Terminal

Run = Callable[..., Ran]


def damage(shop: Shop) -> None:
    """A foreign item and a wrong counter."""
    shop.send(number=2)
    shop.ask("RPUSH", shop.keys().ready[0], "hello")
    shop.ask("HSET", shop.keys().stats, "unacked", 7)


def test_a_clean_namespace_is_reported_and_exits_with_0(shop: Shop, run: Run) -> None:
    """The number of messages shows that something was checked."""
    shop.send(number=3)
    ran = run("fsck")
    assert (ran.code, ran.out, ran.err) == (0, "clean: 3 messages checked\n", "")
    assert run("fsck", "emails", "--json").json == {
        "clean": True,
        "findings": [],
        "unchecked": [],
    }


def test_a_check_changes_nothing_and_exits_with_3(shop: Shop, run: Run) -> None:
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
    assert ran.lines[-1] == "2 findings, 3 messages checked; qworker fsck --repair repairs them"
    assert shop.dump() == before


def test_repaired_findings_are_reported_and_the_next_check_is_clean(shop: Shop, run: Run) -> None:
    """Something was found, so the exit code is 3; then it is 0."""
    damage(shop)
    ran = run("fsck", "--repair", "--yes", "--json")
    assert ran.code == 3
    assert [(finding["kind"], finding["repaired"]) for finding in ran.json["findings"]] == [
        ("foreign item", True),
        ("counter", True),
    ]
    assert run("fsck").code == 0
    assert [dead_letter.reason for dead_letter in shop.queue().dead()] == ["foreign"]


def test_a_finding_that_no_repair_may_touch_is_left(shop: Shop, run: Run) -> None:
    """The last line does not promise a repair; the table says why, and what you should do."""
    app = QWorker(shop.namespace, url=shop.url)
    keys = shop.keys("back")
    call, last = app.task(result="1h")(_one), app.task(queue="back", result="1h")(_sum)
    work = app.workflow(queue="back")(_work)
    with app.client:
        group([call.call()], policy="successes").then(last).start(id="both")
        # No start gives an id twice any more.
        shop.ask("RENAME", keys.join("both"), keys.join("aside"))
        work.options(id="both").start()
        shop.ask("RENAME", keys.join("aside"), keys.join("both"))
    for words, end in (
        ((), "1 finding, 2 messages checked; qworker fsck --repair leaves them"),
        (("--repair", "--yes"), "0 findings repaired, 1 left, 2 messages checked"),
    ):
        ran = run("fsck", *words)
        assert (ran.code, ran.lines[-1]) == (3, end)
        assert ran.lines[1].endswith("none: either may be in use")
        assert any(line.startswith("-> shared id: end one of them") for line in ran.lines)
    assert [one["left"] for one in run("fsck", "--json").json["findings"]] == [True]


@pytest.mark.slow
def test_many_findings_of_one_kind_are_summed_up(shop: Shop, run: Run) -> None:
    """A table stays readable; JSON has all of them."""
    shop.send(number=1)
    shop.ask("RPUSH", shop.keys().ready[0], *(f"x{number}" for number in range(700)))
    ran = run("fsck")
    assert "emails: 680 more of foreign item (--json)" in ran.lines
    assert len(run("fsck", "--json").json["findings"]) == 700
    assert "700 findings repaired, 701 messages checked" in run("fsck", "--repair", "-y").lines
    assert run("fsck").out == "clean: 701 messages checked\n"


@pytest.mark.bad_input("data found: a broken queue is seen")
def test_a_key_of_another_type_stops_the_check_of_its_queue_only(shop: Shop, run: Run) -> None:
    """The others are checked, and the omission is reported."""
    damage(shop)
    shop.break_queue("broken")
    ran = run("fsck")
    assert ran.code == 3
    assert {line.split()[0] for line in ran.lines[1:4]} == {"broken", "emails"}
    assert "broken: only its keys were checked" in ran.err


def test_an_unknown_queue_is_bad_input(shop: Shop, run: Run) -> None:
    """Exit code 2, with the nearest name."""
    shop.send(number=1)
    assert run("fsck", "emial").code == 2
    ran = run("fsck", "email")
    assert ran.code == 2
    assert "did you mean 'emails'?" in ran.err
    assert run("fsck", "No Queue").code == 2


def test_without_a_terminal_a_repair_needs_yes(shop: Shop, run: Run) -> None:
    """Without a terminal it cannot prompt, and changes nothing."""
    damage(shop)
    before = shop.dump()
    ran = run("fsck", "--repair")
    assert ran.code == 2
    assert "pass --yes to repair" in ran.err
    assert shop.dump() == before


@pytest.mark.slow
def test_on_a_terminal_findings_are_shown_before_it_asks(
    shop: Shop, run: Run, terminal: Callable[..., Terminal]
) -> None:
    """No changes nothing and exits with 1; yes repairs."""
    damage(shop)
    no = terminal("fsck", "--repair")
    assert "unacked" in no.read_until("Repair 2 findings? [y/N]")
    no.write("n\n")
    assert no.wait() == 1
    assert run("fsck").code == 3
    yes = terminal("fsck", "--repair")
    yes.read_until("Repair 2 findings? [y/N]")
    yes.write("y\n")
    assert yes.wait() == 3
    assert "2 findings repaired" in yes.seen
    assert run("fsck").code == 0


def test_messages_that_are_gone_are_counted(shop: Shop, run: Run) -> None:
    """After a list was deleted, `doctor` counts the missing messages, and `fsck` those that it wrote off."""
    shop.send(number=3)
    shop.ask("DEL", shop.keys().ready[0])
    told = run("doctor")
    assert "stored messages have disappeared: emails 3" in " ".join(told.out.split())
    ran = run("fsck")
    assert ran.code == 3
    assert "3 stored messages gone, and not written off yet" in ran.out
    mended = run("fsck", "--repair", "--yes")
    assert "3 stored messages gone and written off" in mended.out
    assert run("fsck").code == 0
    assert "disappeared" not in run("doctor").out


def _one() -> int:
    return 1


def _sum(values: list[int]) -> int:
    return sum(values)


def _work(run: SyncRun) -> None:
    run.wait(str, name="go")
