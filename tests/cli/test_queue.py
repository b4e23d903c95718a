"""`qworker queue`."""

from __future__ import annotations

import re

import pytest

from qworker.engine import remove as removing
from qworker.engine.inspect import inspect
from tests.cli.conftest import table


def test_ls_shows_sizes_age_and_state(run, shop):
    """A row per queue: ready, unacked and dead messages, and whether it works."""
    shop.send("emails", 3)
    shop.send("emails", 2, delay="1h")
    shop.queue("emails").receive(1)
    shop.bury("boom", name="pdf")
    shop.queue("pdf").pause("out")
    shop.configure("web", maxlen=1)
    shop.send("web")

    ran = run("queue", "ls")

    assert ran.code == 0
    rows = {row.pop("QUEUE"): row for row in table(ran.lines)}
    oldest = rows["emails"].pop("OLDEST")
    assert oldest.endswith(("s", "ms"))
    assert rows["emails"] == {
        "READY": "2", "DELAYED": "2", "UNACKED": "1", "DEAD": "0", "STATE": "ok",
    }  # fmt: skip
    assert rows["pdf"] == {
        "READY": "0", "DELAYED": "0", "UNACKED": "0", "DEAD": "1", "OLDEST": "-",
        "STATE": "paused out",
    }  # fmt: skip
    assert rows["web"]["STATE"] == "full"


def test_ls_as_json_has_stable_names_and_base_units(run, shop):
    """One document, numbers as numbers."""
    shop.send("emails", 2)

    ran = run("queue", "ls", "--json")

    (queue,) = ran.json["queues"]
    assert isinstance(queue.pop("oldest_age_seconds"), float)
    assert queue == {
        "queue": "emails",
        "limited_until_ms": None,
        "broken": None,
        "ready": 2,
        "in_groups": 0,
        "delayed": 0,
        "unacked": 0,
        "dead": 0,
        "overdue_seconds": 0,
        "paused": "",
        "full": False,
    }


@pytest.mark.bad_input("data found: a broken queue is seen")
def test_ls_lists_a_broken_queue_beside_the_others(run, shop):
    """One key of the wrong type must not hide the other queues."""
    shop.send("emails")
    shop.break_queue("odd")

    human, document = run("queue", "ls"), run("queue", "ls", "--json")

    assert [row["STATE"] for row in table(human.lines)] == ["ok", "broken"]
    assert f"odd is broken: key '{shop.keys('odd').delayed}' holds a string" in human.err
    assert document.json["queues"][1] == {
        "queue": "odd",
        "broken": {"key": shop.keys("odd").delayed, "type": "string"},
    }


def test_ls_of_an_empty_namespace_says_where_queues_are(run, shop):
    """The wrong namespace is the commonest reason for seeing nothing."""
    shop.send("emails")

    ran = run("queue", "ls", "--namespace", f"{shop.namespace}-other")

    assert ran.code == 0
    assert ran.out == ""
    assert f"namespace '{shop.namespace}-other' has no queue" in ran.err
    assert "--namespace" in ran.err


def test_ls_as_json_of_nothing_is_a_document(run):
    """Programs get an empty list, not silence."""
    assert run("queue", "ls", "--json").json == {"queues": []}


def test_show_marks_defaults_and_counts_everything(run, shop):
    """Attributes say whether they are set, counters carry their meaning, and the end says what to do."""
    shop.configure("emails", visibility="1m", maxsize=1024 * 300)
    shop.bury("boom")
    shop.send("emails", 3, priority=7)
    shop.send("emails", 1, delay="10m")
    shop.queue("emails").receive(1)

    ran = run("queue", "show", "emails", "--over", "0")

    assert ran.code == 0
    text = ran.out
    assert "ready     2, the oldest " in text
    assert "(2 of priority 7)" in text
    assert "unacked   1, in 1 lease, the next deadline in" in text
    assert re.search(r"delayed   1, the next due in (9m59s|10m00s)", text)
    rows = {line.split()[0]: line for line in ran.lines if line.strip()}
    assert rows["visibility"].endswith("set")
    assert rows["max-receives"].endswith("default")
    assert rows["maxlen"].split() == ["maxlen", "0", "(no", "limit)", "default"]
    assert "became dead letters: 1 rejected" in text
    assert text.endswith(
        "WHAT TO DO\n- no worker receives from it: qworker run MODULE --queues emails\n"
        "- it has dead letters: qworker dead ls emails\n"
    )


def test_show_as_json_has_everything(run, shop):
    """Sizes by priority, attributes in base units with those that are set, counters, rates."""
    shop.configure("emails", visibility="1m")
    shop.send("emails", 3, priority=7)

    document = run("queue", "show", "emails", "--over", "50ms", "--json").json

    assert document["ready_by_priority"]["7"] == 3
    assert document["attributes"] == {
        "visibility_seconds": 60.0,
        "delay_seconds": 0.0,
        "ttl_seconds": 0.0,
        "maxsize_bytes": 262144,
        "maxlen": 0,
        "max_receives": 5,
        "journal": "off",
        "journal_cap_bytes": 67108864,
    }
    assert document["attributes_set"] == ["visibility_seconds"]
    assert document["counters"]["sent"] == 3
    assert document["rates_per_second"]["sent"] == 0.0
    assert document["stored"] == 3


def test_show_prints_rates(run, shop):
    """The rate is what counters gain between two readings."""
    shop.send("emails")

    ran = run("queue", "show", "emails", "--over", "20ms")

    assert "PER-SECOND" in ran.out


@pytest.mark.bad_input("data found: nonsense in meta")
def test_show_reports_damage(run, shop):
    """An attribute that cannot be read is named, with the default that counts instead."""
    shop.send("emails")
    shop.ask("HSET", shop.keys().meta, "visibility_ms", "abc")

    ran = run("queue", "show", "emails", "--over", "0")

    assert "default: stored is 'abc'" in ran.out


def test_set_changes_only_the_named_attributes(run, shop):
    """Other attributes stay as they are, and `default` takes one back."""
    shop.send("emails")
    run("queue", "set", "emails", "visibility=45s", "maxlen=10")

    ran = run("queue", "set", "emails", "maxsize=1MiB", "max-receives=9", "maxlen=default")

    assert ran.out == (
        "emails: maxsize is 1MiB, max-receives is 9, maxlen is 0 (no limit) (default)\n"
    )
    meta = shop.client.execute(inspect(shop.keys())).meta
    for name in ("created_ms", "modified_ms"):
        meta.pop(name)
    assert meta == {"visibility_ms": "45000", "maxsize": "1048576", "max_receives": "9"}


def test_set_as_json(run, shop):
    """What was set, in base units."""
    shop.send("emails")

    ran = run("queue", "set", "emails", "ttl=1h", "--json")

    assert ran.json == {"queue": "emails", "set": {"ttl_seconds": 3600.0}}


def test_set_creates_a_queue_only_on_request(run, shop):
    """A mistyped name must not become a queue; --create makes one."""
    shop.send("emails")

    refused = run("queue", "set", "emials", "maxlen=3")
    made = run("queue", "set", "fresh", "maxlen=3", "--create")

    assert refused.code == 2
    assert refused.err == "error: queue: 'emials' does not exist; did you mean 'emails'?\n"
    assert made.code == 0
    assert "fresh" in run("queue", "ls").out


def test_peek_shows_messages_in_the_order_of_delivery(run, shop):
    """Highest priority first, and nothing is received by it."""
    low = shop.send("emails", 2)
    (high,) = shop.send("emails", 1, priority=9)
    before = shop.dump()

    ran = run("queue", "peek", "emails")

    rows = table(ran.lines)
    assert [row["ID"] for row in rows] == [high, *low]
    assert rows[0]["TASK"] == "send_email"
    assert rows[0]["BODY"] == '{"task":"send_email","args":[0]}'
    assert shop.dump() == before


def test_peek_of_every_state(run, shop):
    """Delayed messages show when they are due, unacked ones their deadline, dead ones are there too."""
    shop.bury("boom")
    shop.send("emails", 1, delay="1h")
    shop.send("emails")
    shop.queue("emails").receive(1, visibility="10m")

    delayed = table(run("queue", "peek", "emails", "--state", "delayed").lines)
    unacked = table(run("queue", "peek", "emails", "--state", "unacked").lines)
    dead = run("queue", "peek", "emails", "--state", "dead", "--json").json

    assert delayed[0]["DUE"] in ("in 59m59s", "in 1h00m")
    assert unacked[0]["DEADLINE"] in ("in 9m59s", "in 10m00s")
    assert dead["messages"][0]["state"] == "dead"


def test_peek_escapes_bodies_and_cuts_them(run, shop):
    """A body cannot move the cursor; --full shows it whole, JSON tells bytes that are not text as base64."""
    shop.queue("emails").send(b"\x1b[31mred\n" + b"x" * 100)
    shop.queue("emails").send(b"\xff\xfe")

    short, full = run("queue", "peek", "emails"), run("queue", "peek", "emails", "--full")
    document = run("queue", "peek", "emails", "--json").json

    assert "\x1b" not in short.out
    assert r"\x1b[31mred\n" in short.out
    assert "…" in short.out
    assert "x" * 100 in full.out
    assert document["messages"][1]["body"] == "//4="
    assert document["messages"][1]["body_encoding"] == "base64"


def test_peek_of_nothing_says_so(run, shop):
    """An empty state is not an error."""
    shop.send("emails")

    ran = run("queue", "peek", "emails", "--state", "dead")

    assert (ran.code, ran.out, ran.err) == (0, "", "emails has no dead message\n")


def test_pause_and_resume_add_up(run, shop):
    """--in and --out change one direction and leave the other as it is."""
    shop.send("emails")

    seen = [
        run("queue", "pause", "emails", "--out").out,
        run("queue", "pause", "emails", "--in").out,
        run("queue", "resume", "emails", "--out").out,
        run("queue", "resume", "emails").out,
    ]

    assert seen == [
        "emails: paused out: nothing is delivered\n",
        "emails: paused: sends are refused, nothing is delivered\n",
        "emails: paused in: sends are refused\n",
        "emails: not paused\n",
    ]


def test_pause_of_several_checks_all_names_first(run, shop):
    """Where one name is wrong, no queue is paused."""
    shop.send("emails")
    shop.send("pdf")

    refused = run("queue", "pause", "emails", "pfd")
    paused = run("queue", "pause", "emails", "pdf", "--json")

    assert refused.code == 2
    assert "did you mean 'pdf'?" in refused.err
    assert paused.json == {
        "queues": [
            {"queue": "emails", "paused": "all", "strict": False},
            {"queue": "pdf", "paused": "all", "strict": False},
        ]
    }


def test_an_interrupted_purge_says_how_far_it_came(run, shop, monkeypatch):
    """Ctrl-C after the first call: what is deleted is gone, the rest is as it was."""
    shop.send("emails", 1500)
    purge, calls = removing.purge, list[str]()

    def once(keys, state):
        if calls:
            raise KeyboardInterrupt
        calls.append(state)
        return purge(keys, state)

    monkeypatch.setattr(removing, "purge", once)
    ran = run("queue", "purge", "emails", "--yes")

    left = shop.queue("emails").inspect().ready
    assert ran.code == 130
    assert 0 < left < 1500
    said = f"interrupted: purged emails: {1500 - left:,} ready; the others are unchanged"
    assert ran.err.split("\n")[0] == said


def test_purge_deletes_the_states_that_are_named(run, shop):
    """Only ready by default; --dry-run only counts."""
    shop.bury("boom")
    shop.send("emails", 1500)
    shop.send("emails", 2, delay="1h")

    dry = run("queue", "purge", "emails", "--dry-run")
    wet = run("queue", "purge", "emails", "--yes")
    both = run("queue", "purge", "emails", "--state", "delayed", "--state", "dead", "-y", "--json")

    assert dry.out == "would purge emails: 1,500 ready; nothing was changed\n"
    assert wet.out == "purged emails: 1,500 ready\n"
    assert both.json == {"queue": "emails", "deleted": {"delayed": 2, "dead": 1}, "dry_run": False}
    assert run("queue", "ls", "--json").json["queues"][0]["dead"] == 0


def test_rm_deletes_the_queue_with_all_it_holds(run, shop):
    """Nothing of it stays, and the answer says what was lost."""
    shop.send("emails", 3)
    shop.queue("emails").receive(1)

    dry = run("queue", "rm", "emails", "--dry-run")
    gone = run("queue", "rm", "emails", "--yes")

    assert dry.out == (
        "would remove emails with 2 ready, 0 delayed, 1 unacked, 0 dead; nothing was changed\n"
    )
    assert gone.out == "removed emails with 2 ready, 0 delayed, 1 unacked, 0 dead\n"
    assert shop.dump() == {}


def test_rm_names_the_workers_that_still_take_from_it(run, shop):
    """A queue that is used comes back: that is said before."""
    shop.send("emails")
    shop.add_worker("web-1-a")

    ran = run("queue", "rm", "emails", "--yes")

    assert ran.err == "workers still receive from it: web-1-a\n"
