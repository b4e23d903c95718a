"""What others wrote into Redis, as people, shells and programs are shown it: none of it commands any of them."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from qworker.wire.keys import leaving_key, owners_key, queues_key, reapers_key, workers_key
from tests.cli.test_setup import complete

#: A command of the shell, of a terminal (colours, title, clear), turned text, lines, quotes, a path, a glob, keys.
NAMES = (
    "$(touch /tmp/owned)", "`id`", "a;id", "\x1b[2J\x1b]0;owned\x07", "\u202eslluf", "a\nb", "a\rb", "\x9b31m",
    "it's", '"', "../../etc", "*", "a}:ready", "-rf", "<script>alert(1)</script>", "\u2066x\u2069", "",
)  # fmt: skip
#: Control characters (the newline of the output itself aside) and those that turn text.
COMMANDS_OF_TERMINALS = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def schedule(app: str, task: str = "t", spec: str = "every 60s missed=skip") -> str:
    return json.dumps({"app": app, "task": task, "spec": spec, "queue": "emails", "body": ""})


@pytest.fixture
def hostile(shop):
    """A namespace whose registry, workers, reapers, schedules and owners have hostile names, beside one real queue."""
    shop.send("emails", 2)
    now_ms = shop.now_ms()
    for name in NAMES:
        shop.ask("HSET", queues_key(shop.namespace), name, "1")
        entry = {
            "seen_ms": now_ms, "host": name, "pid": 1, "app": name, "queues": [name], "tasks": [name],
            "children": [{"pid": 1, "running": [{"task": name, "id": name, "seconds": 999}]}],
        }  # fmt: skip
        shop.ask("HSET", workers_key(shop.namespace), name, json.dumps(entry))
        shop.ask("ZADD", reapers_key(shop.namespace), now_ms, name)
        shop.ask("HSET", owners_key(shop.namespace), name, 1)
        shop.ask("HSET", shop.keys().schedules, name, schedule(name, task=name, spec=name))
        shop.ask("HSET", shop.keys().schedules, f"of {name}", schedule(name))
    return shop


@pytest.mark.slow
def test_only_names_of_queues_are_completed(hostile):
    """A shell is offered what can be a queue, and nothing that it would run or read as a file."""
    while not (names := complete(hostile, "queue", "show", "")):
        pass  # A loaded machine takes longer to connect than a shell waits.
    assert names == ["emails"]


@pytest.mark.parametrize(
    "words",
    ["queue ls", "worker ls", "schedule ls", "top --once", "doctor", "fsck", "worker drain nobody"],
)
def test_no_command_of_a_terminal_is_printed(hostile, run, words):
    """Names are printed with their control characters escaped, one row each; as JSON they are ASCII."""
    ran = run(*words.split())
    assert not COMMANDS_OF_TERMINALS.search(ran.out + ran.err)
    assert "Traceback" not in ran.err
    if words.endswith(("ls", "doctor")):
        ran = run(*words.split(), "--json")
        assert ran.out.isascii()
        json.loads(ran.out)


def test_hints_may_be_pasted_into_a_shell(hostile, run):
    """The commands that doctor proposes have each name as one quoted word."""
    for name in NAMES[:2]:
        key = hostile.keys().schedules
        for other in (key, owners_key(hostile.namespace), workers_key(hostile.namespace)):
            hostile.ask("DEL", other)
        hostile.ask("HSET", key, name, schedule(name))
        hostile.ask("HSET", key, f"{name}:paused", "1")
        ran = run("doctor", "--json")
        fixes = [finding["fix"] for finding in ran.json["findings"] if name in finding["fix"]]
        assert fixes
        for fix in fixes:
            assert shlex.quote(name) in fix


def test_namespaces_that_are_none_are_not_proposed(hostile, run):
    """Keys of a made-up namespace put nothing into a hint."""
    hostile.ask("HSET", "$(id):queues", "x", "1")
    try:
        ran = run("queue", "ls", QWORKER_NAMESPACE="nothing-here")
        assert "$(id)" not in ran.out + ran.err
    finally:
        hostile.ask("DEL", "$(id):queues")


def test_a_name_of_a_reaper_or_worker_is_never_a_command(hostile, run):
    """`worker drain` names who is there, escaped."""
    hostile.ask("DEL", leaving_key(hostile.namespace))
    ran = run("worker", "drain", "nobody")
    assert ran.code == 2
    assert not COMMANDS_OF_TERMINALS.search(ran.err)
