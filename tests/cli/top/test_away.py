"""The full screen and its server: away and back, another screen beside it, the terminal it leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import click
import pytest

from tests import servers
from tests.cli.conftest import Ran, Shop
from tests.cli.top.conftest import seat

pytestmark = pytest.mark.slow


@pytest.mark.bad_input("server: away while the full screen is open")
def test_figures_stay_while_the_server_is_away(namespace: str) -> None:
    """It says since when, refuses verbs with the reason, and continues by itself."""

    async def play(server: Any) -> None:
        client = server.redis()
        client.hset(f"{namespace}:queues", "emails", 1)
        client.rpush(f"{namespace}:{{emails}}:ready", '{"task": "t"}')
        async with seat(server.url, namespace) as here:
            await here.sees("emails 1")
            client.execute_command("CLIENT", "PAUSE", "4000", "ALL")
            await here.sees("no answer since", "retrying:", "emails 1")
            await here.press("u", "a")
            await here.until(lambda: here.top._said[1] == "bad")
            await here.sees("emails 1", "1 of 1", gone="no answer since")
            await here.press("r", "y")
            await here.sees("emails: not paused")
        client.close()

    with servers.start("valkey") as server:
        asyncio.run(play(server))


def test_a_server_that_never_answers_is_waited_for() -> None:
    """From the start: without figures, and `q` works."""

    async def play() -> None:
        async with seat("redis://127.0.0.1:1", "nowhere") as here:
            await here.sees("no answer yet", "retrying:")
            await here.press("4", "6", "1", "question_mark", "escape", "q")

    asyncio.run(play())


def test_top_opens_the_full_screen_on_a_terminal(shop: Shop, terminal: Any) -> None:
    """New messages appear by themselves; `q` leaves the terminal as it was."""
    screen = terminal("top", "--every", "200ms")
    screen.read_until("Dead")
    shop.send("freshqueue", 3)
    screen.read_until("freshqueue")
    screen.write("q")

    assert screen.wait() == 0
    assert "\x1b[?1049l" in screen.seen
    assert "Traceback" not in screen.seen


def test_an_interrupt_ends_the_full_screen(terminal: Any) -> None:
    """With the code of an interrupted program, on the old screen."""
    screen = terminal("top", "--every", "200ms")
    screen.read_until("Dead")
    screen.write("\x03")

    assert screen.wait() == 130
    assert "\x1b[?1049l" in screen.seen
    assert "Traceback" not in screen.seen


def test_without_the_extra_the_plain_form_says_how_to_get_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, at its foot; with --plain nothing is to be had."""
    hints: list[str] = []
    monkeypatch.setattr("qworker.cli.top.group.is_terminal", lambda: True)
    monkeypatch.setattr("qworker.cli.top.group.console", lambda: click.get_current_context().obj)
    monkeypatch.setattr(
        "qworker.cli.framework.context.Session.is_dumb_terminal", False, raising=False
    )
    monkeypatch.setattr("qworker.cli.top.screen.watch", lambda *args: hints.append(args[2]))

    plain: Ran = run("top", "--plain")
    monkeypatch.setattr("qworker.cli.top.group.importlib.util.find_spec", lambda _: None)
    absent: Ran = run("top")

    assert (plain.code, absent.code) == (0, 0)
    assert hints == ["", "full screen: pip install 'qworker-redis[top]'"]
