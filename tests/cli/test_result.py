"""`qworker result`, and what `qworker message show` says of results."""

from __future__ import annotations

import threading


def complete(shop, value, name="emails"):
    """Send a message whose sender wants its result, and ack it with one; its id."""
    [message_id] = shop.send(name)
    [message] = shop.queue(name).receive(1)
    shop.queue(name).complete(message, value, keep="1h")
    return message_id


def test_a_value_is_shown_as_json(run, shop):
    """For people indented, for programs in a document."""
    message_id = complete(shop, {"a": [1, "é"]})

    assert (
        run("result", "show", "emails", message_id).out == '{\n  "a": [\n    1,\n    "é"\n  ]\n}\n'
    )
    assert run("result", "show", "emails", message_id, "--json").json == {
        "id": message_id,
        "queue": "emails",
        "state": "ok",
        "value": {"a": [1, "é"]},
        "reason": None,
        "error": None,
        "text": None,
        "step": None,
    }


def test_a_death_is_an_error(run, shop):
    """A script that reads stdout gets values alone; programs get the reason and the error, too."""
    [message_id] = shop.send("emails")
    shop.ask("SET", shop.keys().result(message_id), "dead rejected ValueError\nno such user")

    ran = run("result", "show", "emails", message_id)
    assert (ran.code, ran.out) == (1, "")
    assert f"message {message_id} of queue 'emails' is dead (rejected): no such user" in ran.err
    ran = run("result", "show", "emails", message_id, "--json")
    assert ran.code == 1
    assert (ran.json["state"], ran.json["reason"], ran.json["error"]) == (
        "dead", "rejected", "ValueError",
    )  # fmt: skip


def test_a_death_of_a_chain_names_the_step(run, shop):
    """The message that was asked for is the last one of the chain, and was never sent."""
    shop.ask("SET", shop.keys().result("x"), "dead rejected ValueError web parse y\nno such page")

    ran = run("result", "show", "emails", "x")
    assert ran.code == 1
    assert "call of 'parse', message y of queue 'web' is dead (rejected): no such page" in ran.err
    shown = run("result", "show", "emails", "x", "--json").json
    assert shown["step"] == {"queue": "web", "task": "parse", "id": "y"}


def test_an_end_without_a_value_is_an_error(run, shop):
    """Cancelled, expired …"""
    shop.ask("SET", shop.keys().result("x"), "expired")

    ran = run("result", "show", "emails", "x")
    assert (ran.code, ran.out) == (1, "")
    assert "message x of queue 'emails' was expired: it has no result" in ran.err
    assert run("result", "show", "emails", "x", "--json").json["state"] == "expired"


def test_what_is_not_kept_is_an_error(run, shop):
    """At once, or after the wait."""
    [message_id] = shop.send("emails")

    for wait in ([], ["--wait", "50ms"]):
        ran = run("result", "show", "emails", message_id, *wait)
        assert ran.code == 1
        assert f"no result of message {message_id} of emails is kept" in ran.err
    assert run("result", "show", "emails", "a b").code == 2


def test_wait_waits_for_the_end(run, shop):
    """Another process ends the message meanwhile."""
    [message_id] = shop.send("emails")
    [message] = shop.queue().receive(1)
    timer = threading.Timer(0.2, lambda: shop.queue().complete(message, 7, keep="1h"))
    timer.start()

    assert run("result", "show", "emails", message_id, "--wait", "1m").out == "7\n"
    timer.join()


def test_message_show_leads_to_the_result(run, shop):
    """Before the end it says for how long the result will be kept, afterwards where it is."""
    queue = shop.queue()
    flags = {"r": "3600000"}
    from qworker.client.new_message import new_message
    from qworker.engine.options import SendOptions

    [message_id] = queue.store(
        [new_message(queue.ref, {"n": 1}, SendOptions(), flags=flags)], SendOptions()
    )

    assert "kept for 1h once it has ended" in run("message", "show", message_id).out
    assert run("message", "show", message_id, "--json").json["result_seconds"] == 3600.0
    [message] = queue.receive(1)
    queue.complete(message, 1)
    ran = run("message", "show", message_id)
    assert ran.code == 1
    assert f"qworker result show emails {message_id}" in ran.err


def test_a_queue_that_does_not_exist_is_an_error(run, shop):
    """Its name is probably wrong; but a result outlives its queue."""
    shop.send("emails")
    ran = run("result", "show", "email", "x")
    assert ran.code == 2
    assert "'email' does not exist; did you mean 'emails'" in ran.err

    shop.ask("SET", shop.keys("email").result("x"), "expired")
    assert "message x of queue 'email' was expired" in run("result", "show", "email", "x").err
