"""The verbs of the full screen: each asks with the number concerned, does what the command does, and is recorded."""

from __future__ import annotations

import pytest

from qworker.client.namespace.audit import read_deeds
from qworker.client.namespace.paused_tasks import pause_task, read_paused_tasks
from qworker.wire.control import Answer
from qworker.wire.keys import leaving_key
from tests.cli.conftest import Shop
from tests.cli.top.conftest import Seat, answering, at_screen

pytestmark = pytest.mark.slow


def deeds(shop: Shop) -> list[tuple[str, str, str]]:
    """The audit trail, the latest first."""
    read = read_deeds(shop.client.execute, shop.namespace)
    return [(deed.verb, deed.target, deed.outcome) for deed in read]


def paused(shop: Shop, name: str = "emails") -> str:
    return shop.queue(name).inspect().paused


def test_a_queue_is_paused_in_a_direction_and_resumed(shop: Shop) -> None:
    """The question names the messages that would wait; the row says what holds."""
    shop.send("emails", 3)

    async def play(here: Seat) -> None:
        for key, direction in (("a", "all"), ("i", "in"), ("o", "out")):
            await here.press("u")
            await here.sees("Pause queue emails?", "3 ready messages of it would wait")
            await here.press(key)
            row = "paused" if direction == "all" else f"paused {direction}"
            await here.sees("emails: paused", row, gone="Pause queue")
            assert paused(shop) == direction
            await here.press("r")
            await here.sees("Resume queue emails?", "3 ready messages would be delivered")
            await here.press("y")
            await here.sees("emails: not paused")
            await here.sees("emails 3", " ok")
            assert paused(shop) == ""

    at_screen(shop, play)
    assert [verb for verb, *_ in deeds(shop)] == ["queue resume", "queue pause"] * 3


def test_no_changes_nothing(shop: Shop) -> None:
    """By each of three keys; neither does a key that is not an answer."""
    shop.bury("boom", "boom")
    shop.add_worker()

    async def play(here: Seat) -> None:
        await here.press("2")
        await here.sees("web-1-a")
        await here.press("d")
        await here.sees("Drain worker")
        await here.press("n")
        await here.sees("nothing was changed", gone="Drain worker")
        await here.press("1")
        for no in ("n", "escape", "q"):
            await here.press("u")
            await here.sees("Pause queue")
            await here.press("x", "enter", no)
            await here.sees("nothing was changed", gone="Pause queue")
        await here.press("4")
        await here.sees("2 emails")
        for key, no in (("x", "q"), ("X", "escape")):
            await here.press(key)
            await here.sees("Drop 2 dead letters of emails?")
            await here.press(no)
            await here.sees("nothing was changed", gone="Drop 2")
        await here.press("r")
        await here.sees("Redrive 2 dead letters of emails?")
        await here.press("escape")
        await here.sees("nothing was changed", gone="Redrive 2")

    at_screen(shop, play)
    assert paused(shop) == ""
    assert shop.queue().inspect().dead == 2
    assert deeds(shop) == []


@pytest.mark.nightly("test_one_dead_letter_is_read_redriven_and_dropped")
def test_dead_letters_of_a_kind_are_redriven_at_a_rate(shop: Shop) -> None:
    """Those that died of the same, and no others; a rate that is none is refused, and asked for again."""
    shop.bury(*["boom 1"] * 3, "other")

    async def play(here: Seat) -> None:
        await here.press("4")
        await here.sees("3 emails", "1 emails")
        while here.top.view.selected.group.count != 3:
            await here.press("down")
        await here.press("r")
        await here.sees("Redrive 3 dead letters of emails?", "At 10/s it takes 300ms")
        await here.press("end", *["backspace"] * 4)
        await here.type("fast")
        await here.press("enter")
        await here.sees("'fast' is not a rate")
        await here.press(*["backspace"] * 4)
        await here.type("100/s")
        await here.press("enter")
        await here.sees("3 of 3, done", gone="Redrive 3")
        await here.sees("1 emails", gone="3 emails")

    at_screen(shop, play)
    inspection = shop.queue().inspect()
    assert (inspection.ready, inspection.dead) == (3, 1)
    (_, _, end), (verb, target, start) = deeds(shop)
    assert (verb, target.split(" ")[:2]) == ("dead redrive", ["emails", "--fingerprint"])
    assert start == "started: 3 dead letters counted"
    assert end.startswith("3 dead letters redriven")


@pytest.mark.nightly("test_one_dead_letter_is_read_redriven_and_dropped")
def test_dead_letters_are_dropped_by_kind_and_all_of_a_queue(shop: Shop) -> None:
    """`x` those of the row, `X` all of its queue; others stay."""
    shop.bury("boom", "boom", "other", "third")
    shop.bury("boom", name="orders")

    async def play(here: Seat) -> None:
        here.top.operator.jobs.undo_s = 0.0
        await here.press("d")  # of the queue under the cursor alone
        await here.sees("2 emails", "of emails alone", gone="orders")
        await here.press("right")  # by their number
        await here.press("x")
        await here.sees("Drop 2 dead letters of emails?", "died of: boom")
        await here.press("y")
        await here.sees("drop emails: 2 of 2, done")
        await here.sees("1 emails", gone="2 emails")
        await here.press("X")
        await here.sees("Drop 2 dead letters of emails?", "of every kind")
        await here.press("y")
        await here.sees("no dead letter in queue emails")
        await here.press("escape")
        await here.sees("1 orders")
        await here.press("R")
        await here.sees("Redrive 1 dead letter of orders?")
        await here.press(*["backspace"] * 4, "enter")
        await here.sees("redrive orders: 1 of 1, done", "no dead letter in namespace")

    at_screen(shop, play)
    assert shop.queue().inspect().dead == 0
    assert shop.queue("orders").inspect().ready == 1


def test_one_dead_letter_is_read_redriven_and_dropped(shop: Shop) -> None:
    """Its page has error, body and what to do; the keys act on that one."""
    shop.bury("boom", "boom", "boom", name="orders")

    async def play(here: Seat) -> None:
        await here.press("4")
        await here.sees("3 orders")
        await here.press("enter")
        await here.sees("1-3 of 3", "orders: boom (Esc: back)")
        first = here.top.view.selected.entry_id
        await here.press("x")
        await here.sees("Drop 1 dead letter of orders?", first, "s undoes it")
        await here.press("y")
        await here.sees("drop orders: nothing yet, begins in", "s: undo")
        await here.press("s")
        await here.sees("undone: nothing was dropped", "1-3 of 3")
        here.top.operator.jobs.undo_s = 0.0
        await here.press("x", "y")
        await here.sees("drop orders: 1 of 1, done", "1-2 of 2")
        await here.press("enter")
        await here.sees("WHAT TO DO", "boom")
        second = here.top._page.row.entry_id
        await here.press("r")
        await here.sees("Redrive 1 dead letter of orders?", second)
        await here.press("y")
        await here.sees("1 dead letter redriven")
        await here.press("escape")
        await here.sees("1-1 of 1")
        await here.press("escape")
        await here.sees("1 orders")

    at_screen(shop, play, (100, 36))
    inspection = shop.queue("orders").inspect()
    assert (inspection.ready, inspection.dead) == (1, 1)
    assert [target.split(" ")[:2] for _, target, _ in deeds(shop)] == [["orders", "entry"]] * 5


def test_a_change_is_stopped_and_leaves_the_rest(shop: Shop) -> None:
    """At one a second there is time to think again."""
    shop.bury(*["boom"] * 30)

    async def play(here: Seat) -> None:
        await here.press("4")
        await here.sees("30 emails")
        await here.press("s")
        await here.sees("no change runs in emails")
        await here.press("r")
        await here.sees("Redrive 30 dead letters of emails?")
        await here.press(*["backspace"] * 4)
        await here.type("2/s")
        await here.press("enter")
        await here.sees("redrive emails: ", "of 30")
        await here.press("s")
        await here.sees("of 30, stopped; the rest is unchanged")

    at_screen(shop, play)
    assert shop.queue().inspect().dead >= 25
    assert "stopped; the rest is unchanged" in deeds(shop)[0][2]


def test_a_worker_is_scaled_and_drained(shop: Shop) -> None:
    """`+`, `-` and a number, which is checked before it is sent; a worker that is gone is not asked."""
    # Seen so late that it is not gone before a busy machine comes to the end.
    shop.add_worker("web-1-a", age_ms=-300_000)
    shop.add_worker("web-2-b", age_ms=60_000)

    def answer(verb: str, arguments: dict) -> Answer:
        if arguments.get("to") == 9:
            return Answer("web-1-a", False, "too many")
        return Answer("web-1-a", True, "", {"processes": 2, "before": 1})

    async def play(here: Seat) -> None:
        await here.press("2")
        await here.sees("web-2-b", "gone")
        await here.press("d", "plus")
        await here.sees("web-2-b is gone")
        await here.press("down", "plus")
        await here.sees("Add a process to worker web-1-a?", "It has 1 process.")
        await here.press("y")
        await here.sees("web-1-a: 2 processes (was 1)")
        await here.press("minus")
        await here.sees("Remove a process from worker web-1-a?")
        await here.press("y")
        await here.until(lambda: len(came) == 2)
        await here.press("equals_sign", "backspace")
        await here.type("many")
        await here.press("enter")
        await here.sees("'many' is not a number")
        await here.press(*["backspace"] * 4, "9", "enter")
        await here.sees("web-1-a: too many")
        await here.press("d")
        await here.sees("Drain worker web-1-a?", "when 1 running handler of it ended")
        await here.press("y")
        await here.sees("web-1-a: exits when its handlers have ended")

    with answering(shop, "web-1-a", answer) as came:
        at_screen(shop, play)
    assert came == [("scale", {"by": 1}), ("scale", {"by": -1}), ("scale", {"to": 9})]
    assert shop.ask("HKEYS", leaving_key(shop.namespace)) == [b"web-1-a"]
    assert [verb for verb, *_ in deeds(shop)] == ["worker drain", *["worker scale"] * 3]
    assert deeds(shop)[1][2].startswith("failed: ")


def test_a_worker_and_a_handler_show_their_live_stacks(shop: Shop) -> None:
    """Asked for when the page is opened."""
    shop.add_worker("web-1-a")
    handler = {
        "pid": 77,
        "id": "lease-1:0",
        "task": "send_email",
        "seconds": 3.2,
        "stack": 'File "smtp.py", line 7 in wait_for_ever',
    }

    async def play(here: Seat) -> None:
        await here.press("2", "enter")
        await here.sees("PROCESSES", "77 running", "line 7 in wait_for_ever")
        await here.press("escape", "3", "enter")
        await here.sees("receipt lease-1:0", "line 7 in wait_for_ever")
        await here.press("q")  # a page is left, not the screen
        await here.sees("3.2s send_email")

    answers = Answer("web-1-a", True, "", {"handlers": [handler]})
    with answering(shop, "web-1-a", lambda *_: answers) as came:
        at_screen(shop, play, (100, 36))
    assert came == [("stack", {})] * 2


@pytest.mark.nightly("test_a_queue_is_paused_in_a_direction_and_resumed")
def test_a_task_is_paused_and_resumed(shop: Shop) -> None:
    """From its row, or from that of a running handler."""
    shop.add_worker("web-1-a", tasks=["charge", "send_email"], age_ms=-300_000)

    def now() -> dict[str, int]:
        return read_paused_tasks(shop.client.execute, shop.namespace)

    async def play(here: Seat) -> None:
        await here.press("5")
        await here.sees("charge 1 0")
        await here.press("u")
        await here.sees("Pause task charge?", "0 running calls would end as usual")
        await here.press("y")
        await here.sees("charge: paused")
        await here.sees("charge 1 0 paused")
        assert set(now()) == {"charge"}
        await here.press("3", "u")
        await here.sees("Pause task send_email?", "1 running call would end")
        await here.press("y")
        await here.sees("send_email: paused")
        await here.press("r", "y")
        await here.sees("send_email: resumed")
        await here.press("r", "y")
        await here.sees("send_email: is not paused")
        await here.press("5")
        await here.sees("charge 1 0 paused")
        await here.press("r")
        await here.sees("Resume task charge?")
        await here.press("y")
        await here.sees("charge: resumed")
        await here.press("end", "enter")  # its handlers
        await here.sees("/send_email", "lease-1:0")

    at_screen(shop, play)
    assert now() == {}
    assert len(deeds(shop)) == 5


def test_a_paused_task_without_workers_is_shown(shop: Shop) -> None:
    """What waits for a resume is seen, whoever still knows the task."""
    pause_task(shop.client.execute, shop.namespace, "orphan", shop.now_ms() - 60_000)

    async def play(here: Seat) -> None:
        await here.press("5")
        await here.sees("orphan 0 0 paused 1m")

    at_screen(shop, play)


def test_the_page_of_a_queue_is_that_of_the_command_and_follows(shop: Shop) -> None:
    """With its attributes, counters and what to do; the verbs of the row work there too."""
    shop.send("emails", 2)

    async def play(here: Seat) -> None:
        await here.press("enter")
        await here.sees("LAST HOUR", "ready 2, the oldest", "visibility")
        shop.send("orders", 1)
        shop.send("emails", 5)
        await here.sees("ready 7, the oldest")
        await here.press("end")
        await here.sees("no worker receives from it")
        await here.press("u", "a")
        await here.sees("emails: paused")
        await here.press("home", "pagedown", "pageup", "down", "up")
        await here.sees("state paused")
        shop.queue("emails").remove()
        await here.sees("no longer exists")
        await here.press("escape")
        await here.sees("orders 1", "Queues 1")

    at_screen(shop, play)


@pytest.mark.bad_input("operator: two act at once on the same row")
def test_what_is_gone_is_said_to_be(shop: Shop) -> None:
    """The queue was removed, or the dead letters were taken, while the question was open."""
    shop.send("emails")
    shop.bury("boom", name="orders")

    async def play(here: Seat) -> None:
        await here.press("u")
        await here.sees("Pause queue emails?")
        shop.queue("emails").remove()
        await here.press("a")
        await here.sees("'emails' does not exist")
        await here.press("4")
        await here.sees("1 orders")
        await here.press("enter")
        await here.sees("1-1 of 1")
        shop.queue("orders").redrive(here.top.view.selected.entry_id)
        await here.press("r", "y")
        await here.sees("unchanged: it is foreign")

    at_screen(shop, play)
    assert not shop.queue("emails").inspect().exists


def test_help_lists_every_key_of_every_table(shop: Shop) -> None:
    """What the foot of a narrow screen leaves out is there."""

    async def play(here: Seat) -> None:
        await here.press("question_mark")
        await here.sees("EVERYWHERE", "QUEUES", "refuse sends")
        for view in here.top.views:
            for key in view.keys:
                assert key.help.split(" ")[0] in here.text
        await here.press("escape")
        await here.sees("Queues 0")

    at_screen(shop, play, (160, 60))


@pytest.mark.parametrize("opening", [("u",), ("2", "equals_sign"), ("enter",), ("slash", "x")])
def test_an_interrupt_ends_the_screen_from_anywhere(shop: Shop, opening: tuple[str, ...]) -> None:
    """From a question, a page or the filter as well; nothing is changed."""
    shop.send("emails")
    shop.add_worker()

    async def play(here: Seat) -> None:
        await here.sees("emails 1")
        await here.press(*opening)
        await here.press("ctrl+c")
        await here.until(lambda: here.top.return_code == 130)

    at_screen(shop, play)
    assert paused(shop) == ""


def test_a_broken_queue_refuses_verbs_with_the_reason(shop: Shop) -> None:
    """Nothing is changed; its page says what does."""
    shop.break_queue("odd")

    async def play(here: Seat) -> None:
        await here.sees("odd", "broken")
        await here.press("u")
        await here.sees("Pause queue odd?", gone="of it would wait")
        await here.press("a")
        await here.sees("holds a string")
        await here.press("enter")
        await here.sees("qworker fsck odd")

    at_screen(shop, play)
