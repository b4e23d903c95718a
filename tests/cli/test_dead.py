"""`qworker dead`."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from qworker.cli.dead.filter import error_line
from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.pages import DeadLetterScan
from tests.cli.conftest import table
from tests.tables import each


def test_ls_shows_reasons_and_lists_dead_letters(run, shop):
    """Groups first, then the dead letters, oldest first, then the next steps."""
    shop.bury("Traceback …\nValueError: bad address", "timeout")
    shop.bury("no such page", task="render_pdf")

    ran = run("dead", "ls", "emails")

    assert ran.lines[0] == "by reason  3 rejected"
    assert ran.lines[1] == "by task    2 send_email, 1 render_pdf"
    rows = table(ran.lines[3:6])
    assert [row["ERROR"] for row in rows] == ["ValueError: bad address", "timeout"]
    assert rows[0]["REASON"] == "rejected"
    entry = shop.queue("emails").dead(1)[0].entry_id
    assert f"one in full     qworker dead show emails {entry}" in ran.out
    assert "after the fix   qworker dead redrive emails --all" in ran.out
    assert "or give up      qworker dead drop emails --all" in ran.out


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/app/jobs.py", line 3, in load
  | ExceptionGroup: two failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: a
    +------------------------------------"""


@each(
    "error_class, error, line",
    [
        (
            "WorkerDiedError",
            "Fatal Python error: Aborted in f (jobs.py:3): the process …\nFatal …\n\nExtension modules: a",
            "WorkerDiedError: Fatal Python error: Aborted in f (jobs.py:3): the process …",
        ),
        ("TimeLimitError", "ran for 2 s. It was at:\n  File x", "TimeLimitError: ran for 2 s. It was at:"),
        (
            "TimeLimitError",
            "Traceback (most recent call last):\n  File x\nqworker.errors.TimeLimitError: past its limit",
            "qworker.errors.TimeLimitError: past its limit",
        ),
        ("ValueError", "Traceback:\n  File x\nValueError: one\ntwo", "ValueError: one"),
        ("ValueError", "Traceback:\nKeyError: 1\n\nDuring …:\n  File x\nValueError: 2", "ValueError: 2"),
        ("DecodeError", "Traceback:\njson.decoder.DecodeError: bad: 1", "json.decoder.DecodeError: bad: 1"),
        ("ValueError", "Traceback:\nValueError", "ValueError"),
        ("ExceptionGroup", GROUP, "ExceptionGroup: two failed (2 sub-exceptions)"),
        ("Bury", "no such page", "Bury: no such page"),
        ("Odd.Class(", "one\ntwo", "two"),
        ("", "one\ntwo", "two"),
    ],
)  # fmt: skip
def test_ls_shows_the_line_with_the_error(error_class, error, line):
    """The error itself: not the end of a stack, of a drawing, or of a message of several lines."""
    assert error_line(SimpleNamespace(error_class=error_class, error=error)) == line


def test_ls_of_all_queues_names_the_queue_of_each(run, shop):
    """Without a queue, those of all; of a broken one, too, unless its dead letters are what is broken. It is named."""
    shop.bury("one", name="emails")
    shop.bury("two", name="odd")
    shop.bury("three", name="pdf")
    shop.break_queue("odd")
    shop.bury("four", name="lost")
    shop.break_queue("lost")
    shop.ask("DEL", shop.keys("lost").dead)
    shop.ask("SET", shop.keys("lost").dead, "x")

    ran = run("dead", "ls")

    assert [row["QUEUE"] for row in table(ran.lines[3:7])] == ["emails", "odd", "pdf"]
    assert f"warning: queue odd is broken: key '{shop.keys('odd').delayed}'" in ran.err
    assert f"warning: queue lost cannot be read: key '{shop.keys('lost').dead}'" in ran.err


def test_ls_of_all_queues_takes_a_filter_that_fits_in_one_of_them(run, shop):
    """A task that only one queue knows is not a typing error."""
    shop.bury("one", name="emails")
    shop.bury("two", name="pdf", task="render_pdf")

    document = run("dead", "ls", "--task", "render_pdf", "--json").json

    assert [dead_letter["error"] for dead_letter in document["dead_letters"]] == ["two"]


def test_ls_can_begin_with_the_newest_and_be_limited(run, shop):
    """--newest turns the order; what is left out is counted."""
    shop.bury("first")
    shop.bury("second")
    shop.bury("third")

    ran = run("dead", "ls", "emails", "--newest", "--limit", "2")

    assert [row["ERROR"] for row in table(ran.lines[3:6])] == ["third", "second"]
    assert "2 of 3 listed (--limit)" in ran.out


def test_ls_as_json(run, shop):
    """The groups, and each dead letter with its message."""
    shop.bury("boom")

    document = run("dead", "ls", "emails", "--json").json

    (dead_letter,) = document.pop("dead_letters")
    assert document == {
        "total": 1,
        "by_reason": {"rejected": 1},
        "by_error_class": {"": 1},
        "by_task": {"send_email": 1},
    }
    assert dead_letter["reason"] == "rejected"
    assert dead_letter["error"] == "boom"
    assert dead_letter["message"]["task"] == "send_email"


def test_ls_of_nothing_says_so(run, shop):
    """No dead letter is good news, reported as such."""
    shop.send("emails")

    assert run("dead", "ls", "emails").err == "no dead letter in emails\n"
    assert run("dead", "ls", "emails", "--json").json["dead_letters"] == []


def test_filters_fit_together(run, shop):
    """Every filter that is given must fit."""
    shop.bury("boom")
    shop.bury("bang", task="render_pdf")
    wanted = shop.queue("emails").dead(2)[1]

    by_task = run("dead", "ls", "emails", "--task", "render_pdf", "--json").json
    by_message = run("dead", "ls", "emails", "--id", wanted.message.id, "--json").json
    by_entry = run("dead", "ls", "emails", "--id", wanted.entry_id, "--json").json
    old = run("dead", "ls", "emails", "--older-than", "1h", "--json").json
    new = run("dead", "ls", "emails", "--task", "render_pdf", "--newer-than", "1h", "--json").json
    by_text = run("dead", "ls", "emails", "--error", "BAN", "--json").json
    none = run("dead", "ls", "emails", "--task", "render_pdf", "--older-than", "1h", "--json").json

    for document in (by_task, by_message, by_entry, new, by_text):
        assert [dead_letter["error"] for dead_letter in document["dead_letters"]] == ["bang"]
    assert old["total"] == 0
    assert none["total"] == 0


@pytest.mark.parametrize(
    ("flag", "value", "hint"),
    [
        ("--reason", "rejcted", "did you mean 'rejected'?"),
        ("--task", "send_emial", "did you mean 'send_email'?"),
        ("--error-class", "ValueError", "none of them has one"),
        ("--reason", "zzz", "known are rejected"),
    ],
)
@pytest.mark.parametrize("verb", ["ls", "redrive", "drop"])
def test_a_filter_that_fits_nothing_is_probably_mistyped(run, shop, verb, flag, value, hint):
    """The nearest value that occurs is named; nothing is changed."""
    shop.bury("boom")
    before = shop.dump()
    yes = [] if verb == "ls" else ["--yes"]

    ran = run("dead", verb, "emails", flag, value, *yes)

    assert ran.code == 2
    assert ran.err.startswith(f"error: {flag}: no dead letter has '{value}'; ")
    assert hint in ran.err
    assert shop.dump() == before


def test_show_shows_all_fields_of_a_dead_letter(run, shop):
    """Why, the error in lines, the message, and what to do; by entry or by message id."""
    shop.bury("Traceback:\n  here\nValueError: \x1b[31mbad")
    dead_letter = shop.queue("emails").dead(1)[0]

    by_entry = run("dead", "show", "emails", dead_letter.entry_id)
    by_message = run("dead", "show", "emails", dead_letter.message.id)

    assert by_entry.lines[0] == by_message.lines[0] == f"entry   {dead_letter.entry_id}"
    text = by_entry.out
    assert "reason  rejected: its handler or receiver buried it" in text
    assert "\n  here\n" in text
    assert r"ValueError: \x1b[31mbad" in text
    assert "receives  1: 1 released, buried or interrupted" in text
    assert f"after the fix   qworker dead redrive emails --id {dead_letter.entry_id}" in text


def test_show_of_nothing_fails(run, shop):
    """An id that is not there is reported, with the list to choose from."""
    shop.send("emails")

    ran = run("dead", "show", "emails", "17-3")

    assert ran.code == 1
    assert ran.err == "error: queue 'emails' has no dead letter '17-3' (qworker dead ls emails)\n"


def test_redrive_puts_back_only_matching_dead_letters(run, shop):
    """Fresh counts, and the others stay dead."""
    shop.bury("boom")
    shop.bury("bang", task="render_pdf")

    dry = run("dead", "redrive", "emails", "--task", "render_pdf", "--dry-run")
    wet = run("dead", "redrive", "emails", "--task", "render_pdf", "--yes")

    assert dry.out == "would redrive 1 dead letter of emails; nothing was changed\n"
    assert dry.err == "by reason: 1 rejected\nby task: 1 render_pdf\n"
    assert wet.out == "redriven 1 dead letter of emails\n"
    inspection = shop.queue("emails").inspect()
    assert (inspection.ready, inspection.dead) == (1, 1)
    assert [message.receives for message in shop.queue("emails").peek()] == [0]


@pytest.mark.slow
def test_redrive_of_many_goes_page_by_page(run, shop):
    """All 250, over three pages, the limit kept."""
    shop.bury(*(str(number) for number in range(250)))

    some = run("dead", "redrive", "emails", "--all", "--limit", "120", "--yes", "--json")
    rest = run("dead", "redrive", "emails", "--all", "--yes", "--json")

    assert some.json == {
        "queue": "emails", "matched": 120, "redriven": 120, "foreign": 0, "gone": 0, "kept_out": 0,
        "dry_run": False, "by_error_class": {"": 120}, "by_reason": {"rejected": 120},
        "by_task": {"send_email": 120},
    }  # fmt: skip
    assert rest.json["redriven"] == 130
    assert shop.queue("emails").inspect().ready == 250


def test_redrive_leaves_items_that_no_consumer_can_take(run, shop):
    """Foreign items stay dead, and the answer says what to do with them."""
    shop.send("emails")
    shop.ask("RPUSH", shop.keys().ready[0], "hello")
    shop.queue("emails").receive(10)

    ran = run("dead", "redrive", "emails", "--all", "--yes")

    assert ran.out == (
        "redriven 0 dead letters of emails; skipped 1 foreign item, which consumers cannot handle "
        "(qworker dead drop emails --reason foreign)\n"
    )


def test_redrive_keeps_to_its_rate_and_says_how_long_it_takes(run, shop):
    """30 at 100/s take a third of a second; the dry run has said so for more."""
    shop.bury(*(str(number) for number in range(30)))

    dry = run("dead", "redrive", "emails", "--all", "--rate", "20/s", "--dry-run")
    began = time.monotonic()
    wet = run("dead", "redrive", "emails", "--all", "--rate", "100/s", "--yes")
    took_s = time.monotonic() - began

    assert dry.out == "would redrive 30 dead letters of emails, in 1.5s; nothing was changed\n"
    assert wet.out == "redriven 30 dead letters of emails\n"
    assert took_s >= 0.3


@pytest.mark.parametrize("rate", ["0", "0/s", "fast", "1/y", "-1", "1/d", "nan"])
def test_a_rate_that_is_none_is_refused(run, shop, rate):
    """Nothing is redriven at a rate that cannot be kept."""
    shop.bury("boom")

    ran = run("dead", "redrive", "emails", "--all", "--yes", "--rate", rate)

    assert ran.code == 2
    assert ran.err.startswith(f"error: --rate: '{rate}' is ")
    assert shop.queue("emails").inspect().dead == 1


@pytest.mark.slow
def test_an_interrupted_redrive_says_how_far_it_came(shop, terminal):
    """Ctrl-C: what is done is done, the rest is as it was, and the same command continues."""
    shop.bury(*(str(number) for number in range(100)))

    line = ("dead", "redrive", "emails", "--all", "--yes")
    slow = terminal(*line, "--rate", "20/s")
    slow.read_until("4 of 100")
    slow.write("\x03")

    assert slow.wait() == 130
    assert "100 matched; run it again to continue" in slow.seen
    inspection = shop.queue("emails").inspect()
    assert inspection.ready + inspection.dead == 100
    assert terminal(*line).wait() == 0
    ids = [message.id for message in shop.queue("emails").peek(1000)]
    assert len(ids) == len(set(ids)) == 100


@pytest.mark.parametrize("verb", ["redrive", "drop"])
def test_a_change_that_is_interrupted_while_it_counts_says_so(run, shop, monkeypatch, verb):
    """Ctrl-C before the first change: nothing is changed."""
    shop.bury("boom")

    def interrupted(self, seen=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(DeadLetterScan, "page", interrupted)
    ran = run("dead", verb, "emails", "--all", "--yes")

    assert ran.code == 130
    (said, *_) = ran.err.split("\n")
    assert said == "interrupted while it counted dead letters: nothing was changed"
    assert shop.queue("emails").inspect().dead == 1


def test_drop_deletes_for_ever(run, shop):
    """What fits is gone, and nothing else."""
    shop.bury("boom")
    shop.bury("bang", task="render_pdf")

    ran = run("dead", "drop", "emails", "--task", "send_email", "--yes", "--json")

    assert ran.json == {
        "queue": "emails", "matched": 1, "dropped": 1, "foreign": 0, "gone": 0, "dry_run": False,
        "by_error_class": {"": 1}, "by_reason": {"rejected": 1}, "by_task": {"send_email": 1},
    }  # fmt: skip
    assert [dead_letter.error for dead_letter in shop.queue("emails").dead()] == ["bang"]


def test_drop_of_nothing_changes_nothing(run, shop):
    """No matching dead letter is not an error."""
    shop.bury("boom")

    ran = run("dead", "drop", "emails", "--older-than", "1d", "--yes")

    assert (ran.code, ran.out) == (0, "no matching dead letter in emails; nothing was changed\n")


@pytest.mark.parametrize("verb", ["redrive", "drop"])
def test_redrive_and_drop_require_a_choice(run, shop, verb):
    """Neither filter nor --all: nothing is done."""
    shop.bury("boom")

    ran = run("dead", verb, "emails", "--yes")

    assert ran.code == 2
    assert ran.err == (
        f"error: choose the dead letters to {verb}: pass a filter or --all "
        f"(see qworker dead {verb} --help)\n"
    )


def test_an_error_class_fits_with_or_without_its_module():
    """`ConnectionError` is what people read in logs, `redis.exceptions.ConnectionError` what is stored."""
    from qworker.client.message import DeadLetter, Stored

    dead_letter = DeadLetter(
        "1-0",
        "max_receives",
        "redis.exceptions.ConnectionError",
        "",
        0,
        Stored.of("q", "dead", b""),
    )

    assert DeadFilter(error_class="ConnectionError").fits(dead_letter, 0)
    assert DeadFilter(error_class="redis.exceptions.ConnectionError").fits(dead_letter, 0)
    assert not DeadFilter(error_class="Error").fits(dead_letter, 0)


def test_a_kind_of_error_is_chosen_by_its_fingerprint(run, shop):
    """As --json and the dashboard name it: numbers and quoted text in an error do not matter."""
    shop.bury("no user 'ada' 1", "no user 'eve' 22", "disk full")
    names = [one["fingerprint"] for one in run("dead", "ls", "--json").json["dead_letters"]]

    assert names[0] == names[1] != names[2]
    dropped = run("dead", "drop", "emails", "--fingerprint", names[0], "--yes", "--json")
    assert dropped.json["dropped"] == 2
    assert [one.error for one in shop.queue().dead(3)] == ["disk full"]
    refused = run("dead", "ls", "--fingerprint", "x")
    assert (refused.code, "is not a fingerprint" in refused.err) == (2, True)
