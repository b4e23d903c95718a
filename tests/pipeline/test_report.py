"""The report: its numbers on a forged journal, and the page as text."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from qworker.pipeline.report import Scope, make_document, render
from qworker.pipeline.report.bars import dead, failures
from qworker.pipeline.report.buckets import bucket_width
from qworker.pipeline.report.charts import make_figures
from qworker.pipeline.report.figures import queue_colours
from qworker.pipeline.report.forecast import forecast, theil_sen
from qworker.pipeline.report.tables import dead_letter
from qworker.pipeline.report.text import moment, span
from qworker.pipeline.report.theme import COLOURS, TEMPLATE
from qworker.pipeline.report.trends import throughput
from tests.pipeline.forging import T0, Journal, frame
from tests.tables import each

MS = int(T0.timestamp() * 1000)


def journals() -> list[Journal]:
    """Two queues over ten seconds; one message is dead, one was redriven, one is open."""
    emails, orders = Journal("emails"), Journal("orders")
    emails.write("a", "sent@0 delivered@1000:rate acked@1500", worker="web-1:1")
    emails.write("b", "sent@100 delivered@1100:turn nacked@1600 delivered@4600:turn acked@5100")
    emails.write("c", "sent@200 delivered@1200 dead@9200:rejected", error_class="ValueError")
    emails.write("open", "sent@300")
    orders.write("d", "sent@0 delivered@10 dead@20 redriven@2000 delivered@2010 acked@9020")
    return [emails.sort(), orders.sort()]


@pytest.fixture(scope="module")
def document(spark):
    scope = Scope("shop", "an archive", targets_ms={"emails": 2000.0}, default_target_ms=8000.0)
    return make_document(frame(spark, *journals(), many=True), scope)


@pytest.fixture(scope="module")
def page(document) -> str:
    return render(document)


@pytest.fixture(scope="module")
def shown(page) -> Page:
    return Page(page)


def test_the_head_says_what_was_read(document):
    assert document["data"] == {"rows": 18, "first_ms": MS, "last_ms": MS + 9200}
    assert (document["bucket_s"], len(document["t_ms"])) == (1, 10)


def test_messages_are_counted_where_they_were_sent_and_where_they_ended(document):
    emails, orders = document["queues"]["emails"], document["queues"]["orders"]
    assert emails["in"] == [4, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert emails["acked"] == [0, 1, 0, 0, 0, 1, 0, 0, 0, 0]
    assert emails["failed"] == [0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert orders["dead"] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert (sum(emails["dead"]), sum(orders["acked"])) == (1, 1)


def test_the_backlog_is_due_messages_that_have_not_ended(document):
    emails, orders = document["queues"]["emails"], document["queues"]["orders"]
    assert emails["backlog"] == [4, 3, 3, 3, 3, 2, 2, 2, 2, 1]
    assert emails["oldest_s"][0] == pytest.approx(1.0)
    assert emails["oldest_s"][-1] == pytest.approx(9.7)
    # Dead until it was redriven.
    assert orders["backlog"] == [0, 0, 1, 1, 1, 1, 1, 1, 1, 0]


def test_waiting_and_running_are_those_of_attempts(document):
    wait = document["percentiles_ms"]["wait"]
    assert wait["p50"][1] == pytest.approx(1000)
    assert wait["p50"][3] is None
    assert document["percentiles_ms"]["run"]["all"]["p50_ms"] == pytest.approx(500)
    for bars in document["histograms"].values():
        assert sum(bars["count"]) == 6


def test_attempts_and_what_retries_cost(document):
    assert document["attempts"] == [
        {"attempts": 1, "ended": 1, "dead": 1},
        {"attempts": 2, "ended": 2, "dead": 0},
    ]
    cost = document["retry_cost"]
    assert (cost["attempts"], cost["failed"]) == (6, 3)
    assert cost["run_s"] == pytest.approx(0.5 + 1.0 + 8.0 + 0.01 + 7.01)
    assert cost["failed_s"] == pytest.approx(0.5 + 8.0 + 0.01)


def test_dead_letters_come_with_ids_and_the_command_that_brings_them_back(document):
    (row,) = document["dead"]
    assert (row["queue"], row["reason"], row["dead"]) == ("emails", "rejected", 1)
    assert row["samples"] == ["c"]
    assert row["redrive"] == (
        "qworker --namespace shop dead redrive emails --reason rejected --error-class ValueError --dry-run"
    )


@pytest.mark.parametrize(
    "name",
    [
        "$(touch pwned)",
        "`touch pwned`",
        "'; touch pwned; '",
        "a && touch pwned # ",
        '"$HOME" * ~ \\ !!',
        "-rf",
        "",
        "name with spaces and ümläüts",
    ],
)
def test_a_hostile_name_is_one_word_of_the_command_to_copy(name, tmp_path):
    """Workers and senders choose the names in it: a shell passes them on and runs nothing of them."""
    row = SimpleNamespace(
        queue="q", reason="rejected", error=name, dead=1, first_ts=T0, last_ts=T0, samples=[]
    )
    command = dead_letter(row, name)["redrive"]
    program = tmp_path / "qworker"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)

    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/bin:/usr/bin", "HOME": "/nowhere"},
        capture_output=True,
        check=True,
    )

    words = done.stdout.decode().split("\0")[:-1]
    wanted = ["--namespace", name, "dead", "redrive", "q", "--reason", "rejected"]
    assert words == [*wanted, *(["--error-class", name] if name else []), "--dry-run"]
    assert [file.name for file in tmp_path.iterdir()] == ["qworker"]
    assert done.stderr == b""


@each("name", ["a\x1b[201~\ntouch pwned\n", "\x03\x15rm", "a\u202eb", "\x9b"])
def test_the_command_to_copy_has_nothing_that_a_terminal_obeys(name):
    """Pasted text may end the paste and press Enter: such names are escaped, and match no dead letter then."""
    row = SimpleNamespace(
        queue="q", reason=name, error=name, dead=1, first_ts=T0, last_ts=T0, samples=[]
    )
    assert dead_letter(row, "shop")["redrive"].isprintable()


def test_messages_that_waited_for_a_limit_are_counted_by_queue_and_limit(document, page):
    """With the time from due to received; the greatest sum comes first."""
    names = ("queue", "limit", "waits", "wait_s", "p50_ms", "p99_ms")
    assert [tuple(row[name] for name in names) for row in document["limits"]] == [
        ("emails", "turn", 2, 4.0, 1000.0, 3000.0),
        ("emails", "rate", 1, 1.0, 1000.0, 1000.0),
    ]
    assert "What messages waited for" in page
    assert "What messages waited for" not in render({**document, "limits": []})


def test_targets_are_by_queue_from_due_to_acked_and_a_death_is_a_miss(document):
    emails, orders = document["sla"]
    assert (emails["target_ms"], emails["done"], emails["within"]) == (2000, 3, 1)
    assert emails["percent"] == pytest.approx(100 / 3, abs=0.001)
    # Due again when it was redriven: 7.02 s.
    assert (orders["target_ms"], orders["done"], orders["within"]) == (8000, 1, 1)


def test_the_same_numbers_are_in_the_page_and_in_json(document, page):
    assert page == render(json.loads(json.dumps(document)))
    assert page.count("data-figure=") == 14
    names = re.findall(r'data-figure="(\w+)"', page)
    # There are neither runs nor groups of calls: see test_report_compositions.py.
    assert set(names) == set(make_figures(document)) - {"runs", "groups"}
    assert "http://" not in page.split('id="plotly"')[0]


def test_every_figure_is_one_that_plotly_accepts(document):
    from plotly import graph_objects

    for figure in make_figures(document).values():
        figure["layout"]["template"] = TEMPLATE
        text = re.sub(r'"@[a-z0-9]+(/\d+)?"', '"#123456"', json.dumps(figure))
        graph_objects.Figure(json.loads(text))


def test_a_chart_names_only_colours_that_the_theme_has(document, page):
    text = json.dumps([TEMPLATE, make_figures(document)])
    assert set(re.findall(r'"@([a-z0-9]+)', text)) <= set(COLOURS)
    for name, (light, dark) in COLOURS.items():
        assert re.findall(rf"--{name}: (#\w+);", page) == [light, dark]


class Page(HTMLParser):
    """The text of a page: `tables` are titles and rows under the title of their card, `values` those of the tiles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.values: list[str] = []
        self._card = self._element = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element = "value" if ("class", "value") in attrs else tag
        if tag == "table":
            self.tables[self._card] = []
        elif tag == "tr":
            self.tables[self._card].append([])
        elif tag in ("th", "td"):
            self.tables[self._card][-1].append("")

    def handle_data(self, data: str) -> None:
        if self._element == "h3":
            self._card = data
        elif self._element == "value":
            self.values.append(data)
        elif self._element in ("th", "td", "code") and self._card in self.tables:
            self.tables[self._card][-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._element = ""


def test_every_table_has_as_many_cells_as_titles(shown):
    tables = shown.tables
    assert len(tables) == 17  # all but that of gaps, of which there are none
    for name, (titles, *rows) in tables.items():
        assert rows, name
        assert {len(row) for row in rows} == {len(titles)}, name


def test_the_tables_have_the_numbers_of_their_charts(shown):
    tables = shown.tables
    assert tables["Backlog"][:2] == [
        ["from", "emails", "orders"],
        ["2031-05-04 10:00:09", "1", "0"],
    ]
    assert tables["Attempts per message"][1:] == [["1", "1", "1"], ["2", "2", "0"]]
    assert tables["Failures by task and error"][1] == ["send_email", "ValueError", "1", "8 s"]
    (row,) = tables["Dead letters and their redrive"][1:]
    assert row[:6] == ["emails", "rejected", "ValueError", "1", "2031-05-04 10:00:09", "c"]
    assert row[6].startswith("qworker --namespace shop dead redrive emails")
    assert tables["Capacity"][1][-2:] == ["never at this rate", "under 3 days"]


def test_the_tiles_show_the_key_figures(shown):
    assert shown.values == [
        "5", "3", "3", "1", "1", "1 s", "500 ms", "complete",
    ]  # fmt: skip


def test_the_page_names_its_zone_its_targets_and_its_sections(document, page):
    assert "2031-05-04 10:00" in page
    assert "</b> UTC, 9.2 s" in page
    assert "Targets: emails 2 s, orders 8 s." in page
    same = document | {"sla": [row | {"target_ms": 8000.0} for row in document["sla"]]}
    assert "Target: 8 s." in render(same)
    links = re.findall(r'<a href="#([a-z]+)">', page)
    assert links == ["flow", "durations", "failures", "targets", "journal"]
    assert links == re.findall(r'<h2 id="([a-z]+)">', page)


def test_text_of_others_stays_text(document):
    evil = "</script><script>alert(1)</script>"
    changed = json.loads(json.dumps(document).replace("ValueError", evil).replace("shop", evil))
    page = render(changed)
    assert evil not in page
    assert "&lt;/script&gt;" in page


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<b>loud</b>", "&lt;b&gt;loud&lt;/b&gt;"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        ("@in", "&#64;in"),
    ],
)
def test_names_are_neither_markup_nor_colours_in_charts(document, name, shown):
    """Plotly reads pseudo-HTML in names of traces and categories, and the page replaces names of colours."""
    changed = json.loads(
        json.dumps(document)
        .replace('"ValueError"', json.dumps(name))
        .replace('"send_email"', json.dumps(name))
        .replace('"emails"', json.dumps(name))
        .replace('"rejected"', json.dumps(name))
    )
    figures = make_figures(changed)
    assert shown in [trace["name"] for trace in figures["failures"]["data"]]
    assert shown in figures["failures"]["data"][0]["y"]
    assert shown in figures["dead"]["data"][0]["y"]
    assert shown in [trace["name"] for trace in figures["backlog"]["data"]]
    assert "<b>" not in json.dumps(figures)


def test_a_page_without_events_says_so(spark):
    document = make_document(Journal().frame(spark), Scope("shop", "the live journal"))
    page = render(document)
    assert "Nothing to report" in page
    assert "qworker queue set QUEUE journal=all" in page
    assert 'id="plotly"' not in page


@each("seconds, width", [(0, 1), (240, 1), (241, 2), (3600, 30), (86_400, 900), (604_800, 3600)])
def test_buckets_are_as_wide_as_the_window_needs(seconds, width):
    assert bucket_width(seconds) == width


def test_buckets_of_years_are_not_too_many():
    assert 10 * 366 * 86_400 / bucket_width(10 * 366 * 86_400) <= 241


def capacity(arrivals, busy, *, backlog=0, bucket_s=60):
    return forecast(
        "q", arrivals=arrivals, ended=arrivals, busy_s=busy, backlog=backlog, bucket_s=bucket_s
    )


def test_capacity_is_arrivals_times_handler_time():
    queue = capacity([60, 120, 60], [30, 60, 30])
    assert queue.run_s == pytest.approx(0.5)
    assert (queue.busiest_per_s, queue.busiest_load, queue.had) == (2, 1, 1)
    assert queue.needed == 2  # 1 busy handler at 70 %
    assert queue.growth_per_day is None


def test_a_burst_of_a_second_counts_as_its_minute():
    assert capacity([600] + [0] * 59, [0] * 60, bucket_s=1).busiest_per_s == 10


def test_a_backlog_drains_only_with_spare_capacity():
    assert capacity([60, 180], [1, 1], backlog=100).drained_in_s == pytest.approx(100)
    assert capacity([60, 60], [1, 1], backlog=100).drained_in_s is None
    assert capacity([60, 60], [1, 1]).drained_in_s == 0


def test_a_trend_needs_three_whole_days():
    hours = [100 * day for day in (1, 2, 3) for _ in range(24)]
    assert capacity(hours[:-1], [1] * 71, bucket_s=3600).growth_per_day is None
    assert capacity(hours, [1] * 72, bucket_s=3600).growth_per_day == pytest.approx(100 / 3600)


def test_one_odd_day_does_not_turn_the_trend():
    assert theil_sen([1, 2, 3, 400, 5, 6]) == pytest.approx(1)
    assert theil_sen([7]) == 0


@each(
    "seconds, text",
    [
        (0, "0 s"), (0.0004, "0.4 ms"), (0.12, "120 ms"), (4.25, "4.25 s"), (60, "1 m"), (192, "3 m 12 s"),
        (7500, "2 h 5 m"), (90_000, "1 d 1 h"), (None, "–"),
    ],
)  # fmt: skip
def test_lengths_of_time_are_written_for_people(seconds, text):
    assert span(seconds) == text


def test_instants_are_in_utc():
    assert moment(MS) == "2031-05-04 10:00:00"


def drawn_by_hand(**queues: list[int]) -> dict[str, object]:
    """As much of a document as the charts over time need: messages sent per second, and none ended."""
    none = [0] * len(next(iter(queues.values())))
    series = {"acked": none, "ended": none, "dead": none, "failed": none}
    return {
        "bucket_s": 1,
        "t_ms": [1000 * number for number in range(len(none))],
        "queues": {name: {"in": values, **series} for name, values in queues.items()},
    }


def test_zero_is_a_gap_on_a_log_scale_and_a_point_alone_has_a_mark():
    chart = throughput(drawn_by_hand(emails=[1, 0, 1, 1, 0, 900, *[1] * 30]))
    assert chart["layout"]["yaxis"]["type"] == "log"
    sent = chart["data"][0]
    assert sent["y"][:6] == [1.0, None, 1.0, 1.0, None, 900.0]
    assert sent["mode"] == "lines+markers"
    assert "fill" not in sent


def test_zero_is_drawn_where_the_scale_has_one():
    chart = throughput(drawn_by_hand(emails=[1, 0, 2]))
    assert chart["data"][0]["y"] == [1.0, 0.0, 2.0]
    assert chart["data"][0]["fill"] == "tozeroy"


def test_the_busiest_queues_have_a_colour_of_their_own_and_errors_have_others():
    queues = {f"q{number:02}": [number] for number in range(20)}
    colours = queue_colours(drawn_by_hand(**queues))
    assert [colours[f"q{number:02}"] for number in (19, 18, 8)] == ["@c1", "@c2", "@c12"]
    assert {colours[f"q{number:02}"] for number in range(8)} == {"@other"}
    rows = [{"task": "t", "error": f"E{number}", "failed": 9 - number} for number in range(9)]
    bars = failures({"failures": rows})["data"]
    assert [bar["marker"]["color"] for bar in bars] == [*(f"@e{n}" for n in range(1, 8)), "@other"]


@each("chart, column, counted", [(failures, "error", "failed"), (dead, "queue", "dead")])
def test_a_chart_names_seven_parts_and_counts_the_others_together(chart, column, counted):
    rows = [
        {"task": "t", "reason": "r", "queue": "q", column: f"n{number}", counted: 1 + number}
        for number in range(10)
    ]
    queues = {f"n{number}": [number] for number in range(10)}
    bars = chart({**drawn_by_hand(**queues), "failures": rows, "dead": rows})["data"]
    assert [(bar["name"], bar["x"]) for bar in bars] == [
        *((f"n{number}", [1 + number]) for number in range(9, 2, -1)),
        ("3 others", [1 + 2 + 3]),
    ]
    assert bars[-1]["marker"]["color"] == "@other"
    assert len({bar["marker"]["color"] for bar in bars}) == 8


def test_the_page_writes_legends_itself_so_that_they_wrap():
    assert TEMPLATE["layout"]["showlegend"] is False
