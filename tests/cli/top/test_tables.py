"""The tables of the full screen: what they show, and how they are walked, sorted, filtered and paused."""

from __future__ import annotations

import asyncio

import pytest

from qworker.cli.top.full.glyphs import ASCII, UNICODE, glyphs_for, sparkline
from qworker.cli.top.full.queues import Queues
from qworker.client.manage.limit import Limit
from qworker.client.manage.limit_load import LimitLoad
from qworker.monitor.history import Series
from qworker.monitor.sample import Sample
from tests.cli.conftest import Shop
from tests.cli.top.conftest import Seat, at_screen
from tests.cli.top.scene import Scene, sample
from tests.tables import each


def column(here: Seat, title: str) -> list[str]:
    """The first word under a title, row by row."""
    at = next(number for number, line in enumerate(here.lines) if title in line)
    start = here.lines[at].index(title)
    end = at + 1 + here.top._grid.room
    return [line[start:].split(" ")[0] for line in here.lines[at + 1 : end] if line.strip()]


@pytest.mark.slow
def test_each_table_has_a_key_and_shows_its_rows(shop: Shop) -> None:
    """Queues, workers, running handlers, dead letters, tasks and the findings of the doctor."""
    shop.send("emails", 3)
    shop.bury("boom", "boom", "other", name="orders")
    shop.break_queue("odd")
    shop.queue("paused").send("{}")
    shop.queue("paused").pause("out")
    shop.add_worker("web-1-a", tasks=["send_email", "charge"])
    shop.add_worker("web-2-b", age_ms=40_000)
    shop.add_reaper()

    async def play(here: Seat) -> None:
        await here.sees("1 worker 1 reaper", "Queues 4", "Workers 2", "Dead 3")
        await here.sees("odd broken", "paused 1", "paused out", "emails 3")
        await here.press("2")
        await here.sees("web-2-b emails 1", "gone 4", "web-1-a")
        await here.press("3")
        await here.sees("3.2s send_email")
        await here.press("4")
        await here.sees("2 orders", "send_email boom", "1 orders", "other")
        await here.press("5")
        await here.sees("charge 1 0", "send_email 1 1")
        await here.press("6")
        await here.sees("problem queue.odd", "warning")
        await here.press("7", "tab")
        await here.sees("emails 3", "UNACKED")
        await here.press("shift+tab", "shift+tab")
        await here.sees("problem queue.odd")

    at_screen(shop, play)


@pytest.mark.slow
def test_limits_under_which_messages_wait_have_a_table(shop: Shop) -> None:
    """As in plain text: those with the most waiting messages first, with what holds these up; a page has the rest."""
    crm = shop.queue("crm")
    for number in range(3):
        crm.send("{}", group=f"api/{number}")
    crm.set_limit("api/", rate="1/h")
    crm.set_limit("idle", concurrency=3)
    shop.send("mails", 2, group="a")
    shop.queue("mails").set_limit("*", concurrency=1)
    for name in ("crm", "mails"):
        assert len(shop.queue(name).receive(10)) == 1

    async def play(here: Seat) -> None:
        await here.press("7")
        await here.sees(
            "Limits 2", "crm api/ 1 2 1 its rate,", "mails * 1 1 1 one running", gone="idle"
        )
        await here.press("enter")
        await here.sees("rate 1/h", "qworker limit groups crm")

    at_screen(shop, play)


@pytest.mark.parametrize(("width", "words"), [(80, "Dead 862 Tasks"), (200, "4 Dead letters 862")])
@pytest.mark.slow
def test_the_names_of_all_tables_fit(width: int, words: str) -> None:
    """A narrow screen has them without keys, and in short."""

    async def play() -> None:
        top = Scene()
        top.limits.found = [
            ("crm", LimitLoad(f"group-{number}", Limit(concurrency=1), 1, 1, 1, 1, None))
            for number in range(20)
        ]
        async with top.run_test(size=(width, 24)) as pilot:
            here = Seat(top, pilot)
            await here.sees(words, "Limits 20")

    asyncio.run(play())


@pytest.mark.slow
def test_a_namespace_without_anything_says_what_makes_something(shop: Shop) -> None:
    """Each empty table has its next step."""

    async def play(here: Seat) -> None:
        await here.sees(
            "no queue in namespace", "qworker send QUEUE BODY", "no worker", "no reaper"
        )
        for key, words in (
            ("2", "qworker run MODULE"),
            ("3", "no handler is running"),
            ("4", "no dead letter in namespace"),
            ("5", "no worker reports its tasks"),
            ("7", "no message waits under a limit"),
        ):
            await here.press(key)
            await here.sees(words)
        # Keys of rows do nothing without one.
        for key in (
            "1",
            "u",
            "r",
            "d",
            "enter",
            "2",
            "d",
            "plus",
            "equals_sign",
            "4",
            "x",
            "R",
            "s",
        ):
            await here.press(key)
        await here.sees("no dead letter in namespace")

    at_screen(shop, play)


@pytest.mark.slow
def test_a_queue_appears_and_goes_by_itself(shop: Shop) -> None:
    """One queue; nothing is pressed."""

    async def play(here: Seat) -> None:
        await here.sees("Queues 0")
        shop.send("fresh", 2)
        await here.sees("fresh 2", "Queues 1", "1-1 of 1")
        shop.queue("fresh").remove()
        await here.sees("Queues 0")

    at_screen(shop, play)


def play_scene(scene: Scene, size: tuple[int, int], play) -> None:
    async def run() -> None:
        async with scene.run_test(size=size) as pilot:
            await pilot.pause()
            await play(Seat(scene, pilot))

    asyncio.run(run())


@pytest.mark.slow
def test_the_cursor_walks_through_a_thousand_queues() -> None:
    """By row, by page and to both ends; where it is stands at the foot."""
    one = sample()
    queue = one.queues["emails"]
    scene = Scene(shown=Sample(1, one.now_ms, {f"q{at:04}": queue for at in range(1000)}))

    async def play(here: Seat) -> None:
        room = here.top._grid.room
        assert f"1-{room} of 1,000" in here.words
        await here.press("down", "down", "j")
        assert here.top.view.selected.name == "q0003"
        await here.press("up", "k", "pagedown")
        assert here.top.view.selected.name == f"q{room:04}"
        await here.press("end")
        assert here.top.view.selected.name == "q0999"
        assert f"{1000 - room + 1}-1,000 of 1,000" in here.words
        await here.press("pagedown", "pageup", "home", "G", "g", "pageup", "up")
        assert here.top.view.selected.name == "q0000"
        await here.pilot.click("#grid", offset=(5, 4))
        assert here.top.view.selected.name == "q0003"

    play_scene(scene, (80, 24), play)


@pytest.mark.slow
def test_every_column_sorts_and_equal_rows_never_swap() -> None:
    """Numbers from the highest, names from A; `i` inverts; before the first column comes urgency."""

    async def play(here: Seat) -> None:
        titles = ["QUEUE▲", "▼READY", "▼OLDEST", "▼UNACKED", "▼DEAD", "▼DONE/S", "STATE▲"]
        names = sorted(here.top.shown.queues)
        first = [row.name for row in here.top.view.rows]
        assert first[:4] == ["legacy", "exports", "thumbnails", "emails"]
        for title in titles:
            await here.press("right")
            assert title in here.words
            assert sorted(row.name for row in here.top.view.rows) == names
        assert [row.name for row in here.top.view.rows][:3] == ["legacy", "exports", "audit-log"]
        await here.press("right")
        assert [row.name for row in here.top.view.rows] == first
        await here.press("left", "left", "left", "left")
        assert "▼UNACKED" in here.words
        descending = [row.name for row in here.top.view.rows]
        assert descending[:3] == ["emails", "orders", "webhooks"]
        await here.press("i")
        assert "▲UNACKED" in here.words
        ties = [name for name in descending if name in ("exports", "newsletter")]
        assert [row.name for row in here.top.view.rows if row.name in ties] == sorted(ties)
        here.top.take(here.top.shown)
        assert [row.name for row in here.top.view.rows if row.name in ties] == sorted(ties)
        await here.pilot.click("#grid", offset=(2, 0))
        assert "QUEUE▲" in here.words

    play_scene(Scene(), (80, 24), play)


@pytest.mark.slow
def test_the_cursor_stays_on_its_row_while_others_move() -> None:
    """A verb is for what was under the cursor, whatever is sorted above it."""

    async def play(here: Seat) -> None:
        await here.press("down", "down", "down")
        name = here.top.view.selected.name
        await here.press("right", "right")
        assert here.top.view.selected.name == name

    play_scene(Scene(), (80, 24), play)


@pytest.mark.slow
def test_a_filter_follows_while_it_is_typed() -> None:
    """All words must be found, in names or states; Enter keeps it, Esc shows all."""

    async def play(here: Seat) -> None:
        await here.press("slash")
        await here.type("Ex")
        await here.sees("exports", "search-index", "1-2 of 2 of 13", gone="emails")
        await here.type(" paused")
        await here.sees("exports", "1-1 of 1 of 13")
        await here.press("enter", "i")  # the table has its keys again
        await here.sees("/Ex paused")
        await here.press("escape")
        await here.sees("of 13", "emails", gone="/Ex")
        await here.press("slash")
        await here.type("zz")
        await here.sees("nothing contains 'zz': Esc shows all 13")
        await here.press("escape")
        await here.sees("emails")
        assert here.top._grid.has_focus

    play_scene(Scene(), (80, 24), play)


@pytest.mark.slow
def test_p_pauses_the_screen_and_goes_on(shop: Shop) -> None:
    """While it is paused nothing moves, and no queue is read for it."""
    shop.send("emails")

    async def play(here: Seat) -> None:
        await here.sees("emails 1")
        await here.press("p")
        await here.sees("paused")
        assert here.top.sampler._viewers == []
        shop.send("emails", 4)
        number = here.top.shown.number
        await here.until(lambda: here.top.sampler._sample.number > number + 1)
        assert "emails 1" in here.words
        await here.press("p")
        await here.sees("emails 5", gone="paused")

    at_screen(shop, play)


@pytest.mark.slow
def test_only_queues_in_sight_are_read_at_every_interval(shop: Shop) -> None:
    """The others as often as for the dashboard: more of them cost the server no more."""
    for at in range(60):
        shop.send(f"queue-{at:02}")

    async def play(here: Seat) -> None:
        await here.sees("Queues 60")

        def watched() -> list[set[str]]:
            return [set(names) for names in here.top.sampler._viewers]

        def in_sight() -> set[str]:
            return {row.name for row in here.top._grid.in_sight()}

        await here.until(lambda: watched() == [in_sight()])
        first = in_sight()
        assert len(first) == here.top._grid.room
        await here.press("end")
        await here.until(lambda: watched() == [in_sight()] and first.isdisjoint(in_sight()))
        assert len(in_sight()) == here.top._grid.room
        await here.press("2")
        await here.until(lambda: here.top.sampler._viewers == [])

    at_screen(shop, play)


@pytest.mark.slow
def test_ten_thousand_queues_are_drawn_as_fast_as_they_are_sorted() -> None:
    """Rows that did not change are not made again, and only those in sight are written."""
    one = sample()
    queue = one.queues["emails"]
    queues = {f"q{at:05}": queue for at in range(10_000)}
    view = Queues("shop", UNICODE)
    view.update(Sample(1, one.now_ms, queues))
    made = view.rows[7_000]
    view.update(Sample(2, one.now_ms, queues))
    assert view.rows[7_000] is made
    scene = Scene(shown=Sample(1, one.now_ms, queues))

    async def play(here: Seat) -> None:
        written = []
        here.top.view.columns[0].cell(made, 5)
        row = here.top._grid._row
        here.top._grid._row = lambda *args: (written.append(args[0]), row(*args))[1]
        await here.press("end")
        await here.pilot.pause()
        assert here.top.view.selected.name == "q09999"
        assert 0 < len(written) <= 3 * here.top._grid.room

    play_scene(scene, (80, 24), play)


@each("size", [(80, 24), (200, 50), (60, 20), (40, 10)])
@pytest.mark.slow
def test_every_table_fits_every_terminal(size: tuple[int, int]) -> None:
    """No line is wider than the screen, the foot stays in sight, and numbers are not cut."""

    async def play(here: Seat) -> None:
        for key in "234561":
            await here.press(key)
            await here.pilot.pause()
            assert len(here.lines) == size[1]
            assert {len(line) for line in here.lines} == {size[0]}
            assert "q quit" in here.lines[-1]
            assert " shop " in here.lines[0]
        if size[1] > 10:
            assert "1,284" in here.text

    play_scene(Scene(), size, play)


@pytest.mark.slow
def test_a_tall_screen_shows_the_row_under_the_cursor_in_full() -> None:
    """Below the table, as wide as the screen is."""

    async def play(here: Seat) -> None:
        await here.press("down", "down", "down")
        await here.sees("LAST HOUR", "ATTRIBUTES", "COUNTERS", "it has dead letters")
        await here.press("4")
        await here.sees("exports: the newest of 1")

    play_scene(Scene(), (200, 50), play)


@pytest.mark.bad_input("data found: control characters of names and errors are escaped")
@pytest.mark.slow
def test_names_and_errors_of_strangers_are_escaped(shop: Shop) -> None:
    """In tables and on pages nothing of theirs is a control character or markup."""
    shop.bury("evil \x1b[2J [bold]x[/bold] \u202e", name="emails")
    shop.ask("HSET", f"{shop.namespace}:workers", "odd\x1b[31m[red]", "{}")

    async def play(here: Seat) -> None:
        await here.press("2")
        await here.sees("odd\\x1b[31m[red]")
        await here.press("4")
        await here.sees("evil \\x1b", "[bold]x")
        await here.press("enter")
        await here.sees("1-1 of 1")
        await here.press("enter")
        await here.sees("[bold]x[/bold] \\u202e")
        assert "\x1b" not in here.text

    at_screen(shop, play, (120, 30))


@each(
    "term, encoding, glyphs",
    [
        ("xterm-256color", "utf-8", UNICODE),
        ("tmux-256color", "UTF-8", UNICODE),
        ("xterm", "utf8", UNICODE),
        ("", "utf-8", UNICODE),
        ("linux", "utf-8", ASCII),
        ("vt220", "utf-8", ASCII),
        ("xterm", "ascii", ASCII),
        ("xterm", "iso8859-1", ASCII),
    ],
)
def test_a_terminal_gets_characters_that_it_has(term: str, encoding: str, glyphs: object) -> None:
    """A console without block elements, or an encoding without them, gets ASCII."""
    assert glyphs_for({"TERM": term}, encoding) is glyphs


@pytest.mark.slow
def test_a_plain_terminal_gets_ascii_alone() -> None:
    """Sparklines, arrows and borders included."""

    async def play(here: Seat) -> None:
        await here.press("right", "right", "u")
        await here.sees("Pause queue")
        assert here.text.isascii(), here.text
        await here.press("n", "2")
        assert here.text.isascii(), here.text

    play_scene(Scene(ASCII), (80, 24), play)


@pytest.mark.slow
def test_without_colours_the_cursor_and_the_states_are_still_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NO_COLOR: nothing has a colour, the row is reversed, and states are words."""
    monkeypatch.setenv("NO_COLOR", "1")

    async def play(here: Seat) -> None:
        strips = here.top.screen._compositor.render_strips()
        filters = here.top._filters
        styles = [
            segment.style
            for strip in strips
            for segment in strip.apply_filter(filters[-1], here.top.background_colors[0])
            if segment.style is not None
        ]
        assert {style.color.name for style in styles if style.color} <= {"default"}
        cursor = next(strip for strip in strips if "legacy" in strip.text)
        assert any(segment.style and segment.style.reverse for segment in cursor)
        assert "broken" in here.text

    play_scene(Scene(), (80, 24), play)


def test_a_sparkline_ends_at_the_right_and_begins_where_the_history_does() -> None:
    """The highest of what falls together; blank before the first point; zero lies at the bottom."""
    series = Series(1.0)
    assert sparkline(series, 5, UNICODE) == sparkline(None, 5, UNICODE) == "     "
    for time_s, value in ((0, 0), (30, 8), (60, 1), (61, 4)):
        series.add(float(time_s), value)

    # Drawn over two minutes, of which one has passed.
    assert sparkline(series, 8, UNICODE) == "   ▁▁██▅"
    assert sparkline(series, 8, ASCII) == "   __##="
    assert sparkline(series, 0, ASCII) == ""
