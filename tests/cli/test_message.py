"""`qworker message`."""

from __future__ import annotations


def test_show_finds_a_message_in_any_queue(run, shop):
    """The id is enough: all queues are looked through."""
    shop.send("aaa")
    (message_id,) = shop.send("emails", priority=3, max_receives=7, ttl="1h", unique="key 1")

    ran = run("message", "show", message_id)

    assert ran.code == 0
    lines = [line.split(None, 1) for line in ran.lines if line]
    assert ["id", message_id] in lines
    assert ["state", "ready"] in lines
    assert ["task", "send_email"] in lines
    assert ["priority", "3"] in lines
    assert "max receives  7" in ran.out
    assert "unique key    key 1" in ran.out
    assert "expires       " in ran.out
    assert '  "task": "send_email",' in ran.out


def test_show_as_json(run, shop):
    """All that is known of a message, as values."""
    (message_id,) = shop.send("emails", priority=3, max_receives=7)

    document = run("message", "show", message_id, "--queue", "emails", "--json").json

    sent_ms = document.pop("sent_ms")
    assert abs(sent_ms - shop.now_ms()) < 60_000
    assert document == {
        "id": message_id,
        "queue": "emails",
        "state": "ready",
        "kind": "own",
        "task": "send_email",
        "due_ms": None,
        "deadline_ms": None,
        "receives": 0,
        "nacks": 0,
        "timeouts": 0,
        "priority": 3,
        "expires_ms": None,
        "max_receives": 7,
        "unique": None,
        "redrives": 0,
        "result_seconds": None,
        "receipt": None,
        "additional_deliveries": 0,
        "ttl_seconds": None,
        "delay_seconds": None,
        "visibility_seconds": 30.0,
        "at_most_once": False,
        "due_in_seconds": None,
        "requeue_in_seconds": None,
        "closed": None,
        "size_bytes": 32,
        "body": '{"task":"send_email","args":[0]}',
        "body_encoding": "utf-8",
    }


def test_show_takes_the_receipt_of_an_unacked_message(run, shop):
    """What `top` shows of a running handler leads to its message."""
    shop.send("emails", 2)
    message = shop.queue("emails").receive(2)[1]

    document = run("message", "show", str(message.receipt), "--json").json

    assert document["id"] == message.id
    assert document["state"] == "unacked"
    assert document["receipt"] == str(message.receipt)
    assert document["deadline_ms"] == message.deadline_ms


def test_show_of_a_dead_letter_leads_to_its_reason(run, shop):
    """A dead message says where to read why."""
    shop.bury("boom")
    dead_id = shop.queue("emails").dead(1)[0].message.id

    ran = run("message", "show", dead_id)

    assert ran.lines[-1] == f"why it is dead: qworker dead show emails {dead_id}"


def test_show_of_nothing_fails_with_a_reason(run, shop):
    """An id that is nowhere is reported as such, and a broken queue is named, not stumbled over."""
    shop.send("emails")
    shop.break_queue("odd")

    ran = run("message", "show", "nope")

    assert ran.code == 1
    assert (
        f"warning: queue odd cannot be searched whole: key '{shop.keys('odd').delayed}'" in ran.err
    )
    assert "error: message 'nope' not found in the queues of namespace" in ran.err


def test_scan_passes_over_a_broken_key_and_names_it(run, shop):
    """The exit code says that messages may be missing, and so does the document; with a cursor as well."""
    first, second = shop.send("emails", 2)
    shop.break_queue("emails")
    key = shop.keys().delayed

    ran = run("message", "scan", "emails", "--reply", "id")
    document = run("message", "scan", "emails", "--reply", "id", "--json")
    page = run("message", "scan", "emails", "--reply", "id", "--cursor", "0", "--count", "1")

    assert (ran.code, ran.lines) == (1, [second, first])
    assert ran.err.startswith(f"not read: emails: key '{key}' holds another type")
    assert ran.err.count("not read") == 1
    assert (document.code, document.json["messages"]) == (1, [second, first])
    assert [text.startswith(f"emails: key '{key}'") for text in document.json["unread"]] == [True]
    assert (page.code, page.out, page.err) == (0, f"{second}\n", "next: --cursor ready-0/1\n")


def test_show_finds_a_message_in_another_key_of_a_broken_queue(run, shop):
    """Whether the queue is named or not."""
    (message_id,) = shop.send("odd")
    shop.break_queue("odd")

    for where in ((), ("--queue", "odd")):
        ran = run("message", "show", message_id, *where)
        assert (ran.code, ran.lines[0].split()) == (0, ["id", message_id])


def test_cancel_deletes_a_message_that_waits(run, shop):
    """It is not delivered any more, and leaves no tombstone; --dry-run changes nothing."""
    first, second = shop.send("emails", 2)

    dry = run("message", "cancel", first, "--dry-run")
    assert shop.ask("EXISTS", shop.keys().cancelled) == 0
    wet = run("message", "cancel", first, "--yes")

    assert dry.out == f"would cancel {first} of emails (ready); nothing was changed\n"
    assert wet.out == f"cancelled {first} of emails: it will not run\n"
    assert shop.ask("EXISTS", shop.keys().cancelled) == 0
    assert [message.id for message in shop.queue("emails").receive(10)] == [second]


def test_cancel_of_a_running_message_says_that_it_runs(run, shop):
    """The operator must not believe that the handler has ended."""
    shop.send("emails")
    (message,) = shop.queue("emails").receive(1)

    ran = run("message", "cancel", message.id, "--yes")

    assert f"cancelling {message.id} of emails: its handler is asked to stop" in ran.out


def test_cancel_of_a_dead_letter_names_the_verb_for_it(run, shop):
    """Dead letters are never received: a tombstone would do nothing."""
    shop.bury("boom")
    dead_id = shop.queue("emails").dead(1)[0].message.id

    ran = run("message", "cancel", dead_id, "--yes")

    assert ran.code == 1
    assert f"qworker dead drop emails --id {dead_id}" in ran.err


def test_cancel_as_json(run, shop):
    """What was cancelled, and where it was."""
    (message_id,) = shop.send("emails")

    document = run("message", "cancel", message_id, "--yes", "--json").json

    assert document == {
        "id": message_id,
        "queue": "emails",
        "state": "ready",
        "answer": "cancelled",
        "cancelled": True,
        "stopped": False,
    }


def test_show_reports_foreign_items(run, shop):
    """Items that others pushed are shown for what they are."""
    shop.send("emails")
    shop.ask("RPUSH", shop.keys().ready[0], '{"task":"t"}', "hello")

    documents = run("queue", "peek", "emails", "--json").json["messages"]

    assert [document["kind"] for document in documents] == ["own", "plain", "foreign"]
    assert [document["task"] for document in documents] == ["send_email", "t", None]


def test_what_was_done_stands_behind_each_id(shop, run):
    """`hold` and `enqueue` say of each message what became of it, `delete` where it was."""
    [one] = shop.send("emails", 1)
    assert run("message", "hold", "emails", one).out == f"{one}  held\n"
    assert run("message", "enqueue", "emails", one).out == f"{one}  enqueued\n"
    assert run("message", "delete", "emails", one, "--yes").out == f"{one}  ready\n"
