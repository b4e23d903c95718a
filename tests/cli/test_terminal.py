"""What people see on a terminal: tables with colour, questions, the live screen."""

from __future__ import annotations

import re
import signal

import pytest
import redis

from tests.consumer.driving import until

pytestmark = pytest.mark.slow  # starts processes

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: str) -> str:
    return ESCAPE.sub("", text)


# -- tables ------------------------------------------------------------------------------------


def test_tables_have_colour_on_a_terminal(shop, terminal):
    """Dead letters are yellow, what works is green."""
    shop.bury("boom")

    screen = terminal("queue", "ls")

    assert screen.wait() == 0
    assert re.search(r"\x1b\[33m *1\x1b", screen.seen)
    assert "\x1b[32mok" in screen.seen


@pytest.mark.parametrize("columns", [20, 60])
def test_a_narrow_terminal_cuts_nothing_out_of_a_table(shop, terminal, columns):
    """Where the columns do not fit, they come as into a pipe: whole, and the terminal breaks the lines."""
    shop.bury("boom", name="newsletters")

    screen = terminal("queue", "ls", columns=columns)

    assert screen.wait() == 0
    for text in ("newsletters", "UNACKED", "STATE", "ok"):
        assert text in screen.seen
    assert "…" not in screen.seen


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_switched_off(shop, terminal, setting):
    """As NO_COLOR says (https://no-color.org), and where the terminal knows none."""
    shop.bury("boom")

    screen = terminal("queue", "ls", **setting)

    assert screen.wait() == 0
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", screen.seen)
    assert "emails" in screen.seen


def test_stored_text_cannot_steer_a_terminal(shop, terminal):
    """Escape codes and markup in bodies, errors and names of workers are shown, not obeyed."""
    shop.bury("[bold]\x1b[2Jgone[/bold]")
    shop.queue("emails").send(b"\x1b]0;title\x07")
    shop.add_worker("w\x1b[2J")

    seen = ""
    for args in (["dead", "ls"], ["queue", "peek", "emails"], ["worker", "ls"]):
        screen = terminal(*args)
        assert screen.wait() == 0
        seen += screen.seen

    assert "\x1b[2J" not in seen
    assert "\x1b]0" not in seen
    assert r"[bold]\x1b[2Jgone[/bold]" in plain(seen)


@pytest.mark.parametrize("columns", [40, 200])
def test_hints_are_commands_in_one_piece_and_words_are_whole(shop, terminal, columns):
    """What is printed for people fits the terminal's width, but for commands, which can be copied from one line."""
    name = "newsletters_of_the_shop"
    shop.bury("boom", name=name)
    (dead_letter,) = shop.queue(name).dead()

    seen = ""
    for args in (
        ["dead", "ls", name],
        ["dead", "show", name, dead_letter.entry_id],
        ["queue", "peek", "nowhere_to_be_found"],
    ):
        screen = terminal(*args, columns=columns)
        screen.wait()
        seen += plain(screen.seen)
    lines = seen.splitlines()

    for command in (
        f"qworker dead show {name} {dead_letter.entry_id}",
        f"qworker dead redrive {name} --all",
        f"qworker dead edit {name} {dead_letter.entry_id} --redrive",
        f"qworker dead drop {name} --id {dead_letter.entry_id}",
    ):
        assert any(command in line for line in lines), command
    assert any("(qworker queue ls)" in line for line in lines)
    told = [line for line in lines if "qworker dead" in line and not line.startswith("qworker")]
    assert all(len(line) <= columns for line in told)
    (error,) = [at for at, line in enumerate(lines) if line.startswith("error: ")]
    assert all(len(line) <= columns for line in lines[error:])
    words = " ".join(line.strip() for line in lines[error:])
    assert "error: queue: 'nowhere_to_be_found' does not exist; queues are" in words


def test_notes_and_findings_keep_commands_whole(shop, terminal):
    """Beside what is printed, and where it hangs from a label."""
    nothing = terminal("worker", "ls", columns=50)
    nothing.wait()
    looked = terminal("doctor", columns=60)
    looked.wait()

    assert "qworker run MODULE" in nothing.seen.replace("\r", "").split("\n")[-2]
    assert all(len(line) <= 50 for line in nothing.seen.splitlines())
    assert all(len(line) <= 60 for line in plain(looked.seen).splitlines() if "qworker" not in line)


# -- questions ---------------------------------------------------------------------------------


def test_a_question_names_the_loss_and_accepts_no(shop, terminal):
    """No is the default; nothing is changed then."""
    shop.send("emails", 3)

    screen = terminal("queue", "purge", "emails")
    screen.read_until("Permanently purge emails: 3 ready? [y/N]:")
    screen.write("\n")

    assert screen.wait() == 1
    assert "nothing was changed" in screen.seen
    assert shop.queue("emails").inspect().ready == 3


def test_yes_does_it(shop, terminal):
    """And reports the change."""
    shop.bury("one")
    shop.bury("two")

    screen = terminal("dead", "redrive", "emails", "--all")
    screen.read_until("Redrive 2 dead letters of emails? [y/N]:")
    screen.write("y\n")

    assert screen.wait() == 0
    assert "by reason: 2 rejected" in screen.seen
    assert "redriven 2 dead letters of emails" in plain(screen.seen)
    assert shop.queue("emails").inspect().ready == 2


def test_an_interrupt_at_a_question_changes_nothing(shop, terminal):
    """Ctrl-C is neither yes nor a traceback."""
    shop.send("emails")

    screen = terminal("queue", "rm", "emails")
    screen.read_until("counters? [y/N]:")
    screen.write("\x03")

    assert screen.wait() == 130
    assert "Traceback" not in screen.seen
    assert shop.queue("emails").inspect().ready == 1


@pytest.mark.parametrize(
    "args",
    [
        ["queue", "purge", "emails"],
        ["queue", "rm", "emails"],
        ["dead", "redrive", "emails", "--all"],
        ["dead", "drop", "emails", "--all"],
    ],
    ids=" ".join,
)
def test_without_a_terminal_it_does_not_ask(run, shop, args):
    """Exit code 2 naming --yes, and nothing is changed, whatever comes through the pipe."""
    shop.bury("boom")
    shop.send("emails")
    before = shop.dump()

    ran = run(*args, stdin="y\n")

    assert ran.code == 2
    assert "error: cannot prompt: not a terminal; pass --yes" in ran.err
    assert shop.dump() == before


def test_progress_is_shown_and_leaves_nothing_behind(shop, terminal):
    """A bar on stderr while it lasts."""
    screen = terminal("send", "emails", "{}", "--count", "30000")

    assert screen.wait() == 0
    assert "sending to emails" in screen.seen
    assert "sent 30,000 messages to emails" in plain(screen.seen)


# -- top ---------------------------------------------------------------------------------------


def test_top_is_live_until_q(shop, terminal):
    """New messages appear by themselves; the terminal is left as it was."""
    shop.add_worker()
    screen = terminal("top", "--plain", "--every", "200ms")
    screen.read_until("none: qworker daemon")
    shop.send("freshqueue", 3)

    screen.read_until("freshqueue")
    screen.read_until("RUNNING HANDLERS (1)")
    screen.write("q")

    assert screen.wait() == 0
    assert screen.seen.rstrip().endswith("\x1b[?1049l\x1b[?25h") or "\x1b[?1049l" in screen.seen


def test_top_ends_with_an_interrupt(terminal):
    """Quietly, and on the old screen."""
    screen = terminal("top", "--plain", "--every", "200ms")
    screen.read_until("q quits")
    screen.write("\x03")

    assert screen.wait() == 130
    assert "\x1b[?1049l" in screen.seen
    assert "Traceback" not in screen.seen


def answers(client):
    """Whether the server answers within the client's timeout."""
    try:
        return client.ping()
    except redis.RedisError:
        return False


def test_top_keeps_its_picture_while_the_server_is_away(namespace, terminal):
    """And says so; it continues when the server is back."""
    from tests import servers

    with servers.start("valkey") as server:
        client = server.redis()
        client.hset(f"{namespace}:queues", "emails", 1)
        client.rpush(f"{namespace}:{{emails}}:ready", '{"task": "t"}')
        screen = terminal("top", "--plain", "--every", "200ms", QWORKER_URL=server.url)
        screen.read_until("emails")
        client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
        client.execute_command("CLIENT", "PAUSE", "6000", "ALL")

        screen.read_until("no answer from the server since")
        until(lambda: answers(client))
        screen.seen = ""
        screen.read_until("emails")
        screen.write("q")
        assert screen.wait() == 0


def test_a_verb_on_a_terminal_without_url_uses_the_embedded_store(shop, terminal, tmp_path):
    """One line says where it is, and it outlives the command until it is stopped."""
    where = {"XDG_STATE_HOME": str(tmp_path / "state"), "QWORKER_URL": "embedded:"}
    directory = tmp_path / "state" / "qworker" / "store"

    try:
        screen = terminal("queue", "ls", **where)
        assert screen.wait() == 0
        text = " ".join(screen.seen.splitlines())
        assert f"using the embedded store in {directory}" in text
        running = terminal("store", "status", **where)
        assert running.wait() == 0
        assert "running" in running.seen
    finally:
        stopped = terminal("store", "stop", **where)
        assert stopped.wait() == 0
        assert "stopped; its data stays in" in stopped.seen


def test_a_signal_to_end_ends_a_verb(shop, terminal):
    """SIGTERM as the system does it: nothing catches it."""
    shop.send("emails")
    screen = terminal("queue", "show", "emails", "--over", "30s")
    while not any(b"qworker-cli" in clients for clients in shop.ask_each("CLIENT", "LIST")):
        pass
    screen.process.terminate()

    assert screen.wait() == -signal.SIGTERM
