"""`qworker dead edit`."""

from __future__ import annotations

import json
import stat

import pytest

from qworker.cli.dead.edit import set_part
from qworker.errors import InvalidOptionError
from qworker.wire.codec import encode_call

CALL = {"task": "send_email", "args": [1, 2], "kwargs": {"to": "nobody"}}


@pytest.fixture
def dead_letter(shop):
    """A dead letter of a call with keyword arguments."""
    queue = shop.queue()
    queue.send(encode_call("send_email", [1, 2], {"to": "nobody"}))
    queue.bury(queue.receive()[0], error="Traceback:\n  here\nValueError: nobody is no address")
    return queue.dead(1)[0]


def test_a_part_is_set_and_the_dead_letter_redriven(run, shop, dead_letter):
    """The difference is shown; the message keeps its id, and is handled with the new body."""
    ran = run(
        "dead", "edit", "emails", dead_letter.message.id, "--set", 'kwargs.to="a@b.c"', "--redrive"
    )

    assert ran.code == 0
    assert ran.lines[-1] == f"edited and redriven {dead_letter.entry_id} of emails"
    assert [line for line in ran.lines if line[0] in "+-"] == [
        '-    "to": "nobody"',
        '+    "to": "a@b.c"',
    ]
    (message,) = shop.queue().receive()
    assert message.id == dead_letter.message.id
    assert message.json()["kwargs"] == {"to": "a@b.c"}
    assert shop.queue().inspect().dead == 0


def test_an_edited_dead_letter_keeps_its_reason(run, shop, dead_letter):
    """Without --redrive it stays dead, under a new entry id that is reported."""
    ran = run("dead", "edit", "emails", dead_letter.entry_id, "--body", json.dumps({"free": 1}))
    assert ran.code == 2  # It called a task, and would not any more.
    ran = run("dead", "edit", "emails", dead_letter.entry_id, "--set", "args[2]=3")

    (edited,) = shop.queue().dead()
    assert f"its new entry id is {edited.entry_id}" in ran.out
    assert (edited.reason, edited.error, edited.died_ms) == (
        dead_letter.reason, dead_letter.error, dead_letter.died_ms,
    )  # fmt: skip
    assert edited.message.receives == dead_letter.message.receives
    assert json.loads(edited.message.body)["args"] == [1, 2, 3]


def test_a_whole_body_comes_from_a_pipe(run, shop, dead_letter):
    """`--body -` reads it; --json prints the outcome."""
    body = json.dumps({**CALL, "args": []})

    document = run(
        "dead", "edit", "emails", dead_letter.entry_id, "--body", "-", "--json", stdin=body
    )

    (edited,) = shop.queue().dead()
    assert document.json == {
        "queue": "emails", "entry_id": dead_letter.entry_id, "new_entry_id": edited.entry_id,
        "changed": True, "redriven": False, "body": {**CALL, "args": []}, "dry_run": False,
    }  # fmt: skip


def test_a_dry_run_and_the_same_body_change_nothing(run, shop, dead_letter):
    """Neither writes anything."""
    before = shop.dump()

    dry = run("dead", "edit", "emails", dead_letter.entry_id, "--set", "args[0]=9", "--dry-run")
    same = run("dead", "edit", "emails", dead_letter.entry_id, "--set", "args[0]=1")

    assert dry.lines[-1] == f"would edit {dead_letter.entry_id} of emails; nothing was changed"
    assert same.out == f"{dead_letter.entry_id} of emails is unchanged\n"
    assert shop.dump() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "args[0]=nobody"), "--set args[0]: 'nobody' is not JSON; quote text"),
        (
            ("--set", "kwrgs.to=1"),
            "--set kwrgs.to: the body has no 'kwrgs' there; did you mean 'kw",
        ),
        (("--set", "args[9]=1"), "--set args[9]: the body has no [9] there; the list has 2"),
        (("--set", "args.x=1"), "--set args.x: cannot use 'x' as an index into a list"),
        (("--set", "task[0]=1"), "cannot use [0] in a value that is neither an object nor a list"),
        (("--set", "=1"), "--set: '=1' is not PATH=JSON"),
        (("--set", "args[0]"), "--set: 'args[0]' is not PATH=JSON"),
        (("--set", "other=1"), "--set other: the body has no 'other' there"),
        (("--set", "args=1"), "args: is not an array"),
        (("--body", "{"), "--body: cannot be read"),
        (("--body", "1", "--set", "a=1"), "--set and --body exclude each other"),
        ((), "cannot open an editor: not a terminal"),
    ],
)
def test_an_invalid_body_is_refused(run, shop, dead_letter, words, said):
    """The part and the problem are named, and nothing is changed."""
    before = shop.dump()

    ran = run("dead", "edit", "emails", dead_letter.entry_id, *words)

    assert ran.code == 2
    assert said in ran.err
    assert shop.dump() == before


def test_a_body_over_the_limit_of_the_queue_is_refused(run, shop, dead_letter):
    """maxsize counts for an edit as it does for a send."""
    shop.configure(maxsize=1024)

    ran = run("dead", "edit", "emails", dead_letter.entry_id, "--set", f'args[0]="{"x" * 2000}"')

    assert ran.code == 2
    assert "1024" in ran.err
    assert shop.queue().dead(1)[0].entry_id == dead_letter.entry_id


@pytest.mark.slow
def test_an_editor_may_be_asked_twice(shop, dead_letter, terminal, tmp_path):
    """What was saved is not JSON at first: it is shown again, not thrown away."""
    editor = tmp_path / "editor"
    editor.write_text(
        '#!/bin/sh\nif grep -q broken "$1"; then sed -i \'s/broken/"mended"/\' "$1"\n'
        'else sed -i \'s/"nobody"/broken/\' "$1"; fi\n'
    )
    editor.chmod(editor.stat().st_mode | stat.S_IEXEC)

    asked = terminal("dead", "edit", "emails", dead_letter.entry_id, EDITOR=str(editor))
    asked.read_until("Edit again?")
    asked.write("y\n")

    assert asked.wait() == 0
    (edited,) = shop.queue().dead()
    assert json.loads(edited.message.body)["kwargs"] == {"to": "mended"}


@pytest.mark.slow
def test_an_editor_that_saves_nothing_changes_nothing(shop, dead_letter, terminal):
    """Leaving the editor is a way out."""
    before = shop.dump()

    assert terminal("dead", "edit", "emails", dead_letter.entry_id, EDITOR="true").wait() == 0

    assert shop.dump() == before


def test_paths_lead_anywhere():
    """Names, indices and quoted keys; lists grow by one, objects by a key."""
    body = {"items": [{"price": 1}], "odd key.x": {}}
    set_part(body, "items[0].price=2")
    set_part(body, 'items[1]={"price":3}')
    set_part(body, '["odd key.x"].deep=[null]')
    set_part(body, "new=true")
    assert body == {
        "items": [{"price": 2}, {"price": 3}], "odd key.x": {"deep": [None]}, "new": True,
    }  # fmt: skip
    assert set_part({"task": "t"}, "kwargs.a=1") == {"task": "t", "kwargs": {"a": 1}}
    with pytest.raises(InvalidOptionError, match="the body has no 'deep' there"):
        set_part({"a": {}}, "a.deep.deeper=1")
