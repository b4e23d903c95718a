"""`qworker worker`, `schedule`, `top` and `doctor`."""

from __future__ import annotations

import re

import pytest

from qworker.app.schedule import cron
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import note_owner
from qworker.client.namespace.workers import Worker
from qworker.client.queue import Queue
from qworker.consumer.supervisor.operators.presence import WorkerPresence
from qworker.daemon.reaper import Reaper
from qworker.daemon.schedules import register
from qworker.engine.options import QueueAttributes
from qworker.engine.settle import Outcomes, settle
from qworker.errors import OutOfMemoryError
from qworker.formats import size
from qworker.health.finding import Status
from qworker.health.server import _long_runs
from qworker.store.connections import ConnectionFactory
from qworker.wire.presence import ChildDocument, RunningDocument, WorkerDocument
from qworker.wire.schedule import StoredSchedule
from tests import servers
from tests.cli.conftest import table

# -- worker ------------------------------------------------------------------------------------


def test_workers_are_listed_with_their_running_handlers(run, shop):
    """One row each; a silent one is gone, and says since when."""
    shop.add_worker("web-1-a")
    shop.add_worker("web-2-b", age_ms=40_000)

    ran = run("worker", "ls")

    first, second = table(ran.lines)
    assert first == {
        "WORKER": "web-1-a",
        "APP": "shop.tasks",
        "QUEUES": "emails",
        "PROCS": "1",
        "RUNNING": "1",
        "PER-S": "12.5",
        "FAILED": "5",
        "MEMORY": "50 MiB",
        "SEEN": "0s ago",
    }
    assert second["SEEN"].startswith("gone, 40s ago")


def test_workers_as_json_are_their_own_words(run, shop):
    """The entry as written, its age, and whether it is gone."""
    shop.add_worker("web-1-a", age_ms=20_000)

    (worker,) = run("worker", "ls", "--json").json["workers"]

    assert worker["is_gone"] is True
    assert worker["seen_age_seconds"] >= 20
    assert worker["children"][0]["rss_bytes"] == 52_428_800


@pytest.mark.parametrize(
    "entry", ["", "x", "[]", "1", '{"children": 7}', '{"children": [7, {"running": 1}]}']
)
def test_an_invalid_entry_of_a_worker_is_shown_and_breaks_nothing(run, shop, entry):
    """Whatever stands in the hash."""
    shop.ask("HSET", f"{shop.namespace}:workers", "odd\x1b[2J", entry)

    ran = run("worker", "ls")

    assert ran.code == 0
    assert r"odd\x1b[2J" in ran.out
    assert "gone" in ran.out
    assert run("top", "--json", "--every", "200ms").code == 0


def test_no_worker_says_how_to_start_one(run, shop):
    """An empty list is an answer with a next step."""
    ran = run("worker", "ls")

    assert (ran.code, ran.out) == (0, "")
    assert "start one with qworker run MODULE" in ran.err


# -- schedule ----------------------------------------------------------------------------------


def test_schedules_are_listed_with_next_and_last(run, shop):
    """What each sends where, when next, when last."""
    register(shop.client, shop.namespace, "shop.tasks", nightly())

    ran = run("schedule", "ls")

    (row,) = table(ran.lines)
    assert (row["SCHEDULE"], row["QUEUE"], row["TASK"]) == ("nightly", "cleaning", "sweep")
    assert row["NEXT"].startswith("in ")
    assert row["LAST"] == "never"
    (document,) = run("schedule", "ls", "--json").json["schedules"]
    assert document["name"] == "nightly"
    assert document["next_ms"] > shop.now_ms()


def nightly(name="nightly", queue="cleaning", app="shop.tasks"):
    spec, body = cron("0 4 * * *").spec, '{"task": "sweep"}'
    return {name: StoredSchedule(app=app, spec=spec, task="sweep", queue=queue, body=body)}


def test_a_schedule_is_paused_run_and_resumed(run, shop):
    """Each verb says what holds then, and twice the same changes nothing."""
    register(shop.client, shop.namespace, "shop.tasks", nightly())

    assert run("schedule", "pause", "nightly").out == "nightly of cleaning: paused\n"
    assert run("schedule", "pause", "nightly").out.endswith("already paused\n")
    (row,) = table(run("schedule", "ls").lines)
    assert row["NEXT"].startswith("paused")
    shown = run("schedule", "show", "nightly", "--json").json
    assert (shown["fires"], shown["app"]) == (False, "shop.tasks")
    assert findings_of(run("doctor", "--json"))["schedules.paused"]["fix"].endswith(
        "resume nightly"
    )

    sent = run("schedule", "run", "nightly", "--json").json
    assert shop.queue("cleaning").show(sent["id"]).body == b'{"task": "sweep"}'

    resumed = run("schedule", "resume", "nightly", "--json").json
    assert resumed == {
        "schedule": "nightly", "queue": "cleaning", "state": "resumed", "changed": True
    }  # fmt: skip
    assert "next      in " in run("schedule", "show", "nightly").out
    assert "not paused" in run("schedule", "resume", "nightly").out


def test_a_schedule_whose_message_runs_says_so(run, shop):
    """`ls` and `show` name the message that a slot waits for; `run` refuses another one beside it."""
    spec = cron("0 4 * * *", overlap="queue", jitter="5m").spec
    added = StoredSchedule(
        app="", spec=spec, task="sweep", queue="cleaning", body='{"task": "sweep"}'
    )
    register(shop.client, shop.namespace, "", {"nightly": added})
    (row,) = table(run("schedule", "ls").lines)
    assert (row["WHEN"], row["APP"]) == (spec, "none: added at run time")

    message_id = run("schedule", "run", "nightly").out.strip()
    assert f"running   {message_id}" in run("schedule", "show", "nightly").out
    again = run("schedule", "run", "nightly")
    assert (again.code, again.out) == (2, ""), again.err
    assert f"qworker message cancel {message_id}" in again.err
    shop.ask("HSET", f"{shop.namespace}:{{cleaning}}:schedules", "nightly:fired", "1")
    (row,) = table(run("schedule", "ls").lines)
    assert row["NEXT"] == f"waits for {message_id}"
    assert "schedules.orphaned" not in findings_of(run("doctor", "--json"))

    assert run("message", "cancel", message_id, "--yes").code == 0
    assert run("schedule", "run", "nightly").code == 0
    assert run("schedule", "rm", "nightly", "--yes").code == 0


def test_schedules_are_removed_by_name_and_by_app(run, shop):
    """Those of others stay; without --yes nothing is removed without a terminal."""
    register(
        shop.client,
        shop.namespace,
        "old",
        nightly("a", app="old") | nightly("b", "other", app="old"),
    )
    register(shop.client, shop.namespace, "new", nightly("c", app="new"))

    assert run("schedule", "rm", "--app", "old").code == 2
    dry = run("schedule", "rm", "--app", "old", "--dry-run")
    assert dry.lines == ["would remove a of cleaning", "would remove b of other"]
    assert run("schedule", "rm", "--app", "old", "--yes").lines == [
        "removed a of cleaning",
        "removed b of other",
    ]
    shop.add_worker("web-1-a", app="new")
    last = run("schedule", "rm", "c", "--yes", "--json")
    assert last.json == {"schedules": [{"schedule": "c", "queue": "cleaning"}], "removed": True}
    assert "no schedule in namespace" in run("schedule", "ls").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", "nightli"), "did you mean 'nightly'?"),
        (("run", "x"), "see qworker schedule ls"),
        (("show", "twice"), "pass --queue: a, b"),
        (("pause", "twice", "--queue", "c"), "'twice' does not exist in queue 'c'"),
        (("rm", "--app", "nobody", "--yes"), "'nobody' has no schedule"),
        (("rm",), "name schedules, or pass --app"),
        (("rm", "nightly", "--app", "x"), "name schedules, or pass --app"),
    ],
)
def test_a_schedule_that_is_not_there_is_refused(run, shop, words, said):
    """With the name that may be meant; nothing is changed."""
    shop.send("c")
    register(shop.client, shop.namespace, "shop.tasks", nightly() | nightly("twice", "a"))
    register(shop.client, shop.namespace, "other", nightly("twice", "b", app="other"))

    ran = run("schedule", *words)

    assert ran.code == 2
    assert said in ran.err
    assert len(run("schedule", "ls", "--json").json["schedules"]) == 3


def test_doctor_names_apps_whose_schedules_outlive_them(run, shop):
    """While they still fire, and when they have stopped; an app with a worker, or seen within an hour, is fine."""
    register(shop.client, shop.namespace, "old", nightly("a", app="old") | nightly("b", app="old"))
    register(shop.client, shop.namespace, "new", nightly("c", app="new"))
    assert "schedules.orphaned" not in findings_of(run("doctor", "--json"))
    for app in ("old", "new"):
        note_owner(shop.client.execute, shop.namespace, app, shop.now_ms() - 7_200_000)
    shop.add_worker("web-1-a", app="new.py")

    finding = findings_of(run("doctor", "--json"))["schedules.orphaned"]
    note_owner(shop.client.execute, shop.namespace, "old", shop.now_ms() - 8 * 86_400_000)
    later = findings_of(run("doctor", "--json"))["schedules.orphaned"]

    assert finding["status"] == "warning"
    assert finding["text"].startswith(
        "2 schedules of app 'old' still fire, and the app has had no worker"
    )
    assert finding["text"].endswith("for 2h00m: a, b")
    assert "qworker schedule rm --app old" in finding["fix"]
    assert "2 schedules of app 'old' have stopped firing" in later["text"]


def test_one_schedule_that_outlives_its_app_is_spoken_of_as_one(run, shop):
    """While it still fires, and when it has stopped."""
    register(shop.client, shop.namespace, "old", nightly("a", app="old"))
    for days, state in ((1, "still fires"), (8, "has stopped firing")):
        note_owner(shop.client.execute, shop.namespace, "old", shop.now_ms() - days * 86_400_000)
        finding = findings_of(run("doctor", "--json"))["schedules.orphaned"]
        assert finding["text"].startswith(f"1 schedule of app 'old' {state}, and the app")


def test_no_schedule_says_what_makes_one(run, shop):
    """An empty list is an answer with a next step."""
    assert "define one with @app.schedule" in run("schedule", "ls").err


# -- top ---------------------------------------------------------------------------------------


def test_top_once_shows_queues_workers_and_handlers(run, shop):
    """One picture: trouble first among the queues, then the longest wait; rates over the interval."""
    shop.send("emails", 3)
    shop.break_queue("odd")
    shop.add_worker("web-1-a")
    shop.add_reaper()

    ran = run("top", "--once", "--every", "200ms")

    assert ran.code == 0
    assert "workers 1 · reapers 1 · memory" in ran.lines[0]
    at = ran.lines.index("QUEUES (2)")
    rows = table(ran.lines[at + 1 : at + 4])
    assert [(row["QUEUE"], row["STATE"]) for row in rows] == [("odd", "broken"), ("emails", "ok")]
    assert (rows[1]["SENT/S"], rows[1]["DONE/S"], rows[1]["FAILED/S"]) == ("0", "0", "0")
    assert "WORKERS (1)" in ran.lines
    assert "1 in 1 child" in ran.out
    handlers = ran.lines.index("RUNNING HANDLERS (1)")
    assert table(ran.lines[handlers + 1 : handlers + 3]) == [
        {
            "RUNNING": "3.2s",
            "TASK": "send_email",
            "ID": "lease-1:0",
            "PID": "77",
            "WORKER": "web-1-a",
        }
    ]


def test_top_names_few_queues_of_a_worker(run, shop):
    """Each queue has a row of its own; a worker may have hundreds. `worker ls` names them all, one worker a line."""
    queues = [f"q{number}" for number in range(300)]
    shop.add_worker("web-1-a", queues=queues)
    shop.send("q299", 1)
    lines = run("top", "--once", "--every", "200ms").lines
    [row] = [line for line in lines if line.startswith("web-1-a ")]
    assert "q0,q1,q2,q3,q4 and 295 more" in row
    assert [line.split()[:2] for line in lines if "q299" in line] == [["q299", "1"]]
    [listed] = [line for line in run("worker", "ls").lines if "q299" in line]
    assert ",".join(queues) in listed


def test_top_shows_limits_under_which_messages_wait(run, shop):
    """The most loaded first, and when the next may start; also as JSON, and none under which nothing waits."""
    crm, mails = shop.queue("crm"), shop.queue("mails")
    crm.set_limit("api/", rate="1/h")
    crm.set_limit("idle", concurrency=3)
    mails.set_limit("*", concurrency=1)
    crm.send_many([b"1", b"2"], group="api/acme")
    mails.send_many([b"1", b"2", b"3", b"4"], group="a")
    assert (len(crm.receive(10)), len(mails.receive(10))) == (1, 1)
    out = run("top", "--once", "--every", "200ms").out
    assert "LIMITS (2)" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "mails * concurrency 1 1 3 1 one running" in lines
    assert any(line.startswith("crm api/ rate 1/h, burst 1 1 1 1 its rate, ") for line in lines)
    (first, second) = run("top", "--json", "--every", "200ms").json["limits"]
    assert (first["queue"], first["waiting"], first["full"]) == ("mails", 3, 1)
    assert (second["limit"], second["until_ms"] > 0) == ("api/", True)


def test_top_reports_missing_workers_and_reapers(run, shop):
    """No reaper and no worker is the first thing to know."""
    ran = run("top", "--once", "--every", "200ms")

    assert "workers none: qworker run MODULE · reapers none: qworker daemon" in ran.lines[0]


def test_top_as_json(run, shop):
    """Everything in one document."""
    shop.send("emails", 3)
    shop.add_reaper("here", age_ms=20_000)

    document = run("top", "--json", "--every", "200ms").json

    assert document["queues"][0]["rates_per_second"]["sent"] == 0.0
    assert document["reapers"][0]["name"] == "here"
    assert document["reapers"][0]["is_gone"] is True
    assert document["workers"] == []
    assert document["memory_bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (60, 20)])
@pytest.mark.parametrize("problem", ["", "the server was not reached " * 5])
def test_the_live_screen_fits_the_terminal(run, shop, width, height, problem):
    """However many queues, workers and handlers: what is left out is counted, and the foot stays in sight."""
    import dataclasses
    import io

    from rich.console import Console

    from qworker.cli.top.sampler import TopSnapshot
    from qworker.cli.top.screen import compose
    from qworker.client.manage.limit import Limit
    from qworker.client.manage.limit_load import LimitLoad
    from qworker.client.namespace.workers import ReaperInfo, Worker

    handlers = tuple(
        RunningDocument(task="t" * 50, id=f"lease-{at}:0", seconds=at) for at in range(20)
    )
    described = WorkerDocument(
        queues=("q" * 40,), children=(ChildDocument(pid=1, running=handlers),)
    )
    workers = tuple(Worker(f"w{at}", 0, described) for at in range(30))
    for at in range(40):
        shop.send(f"queue-{at}")
    shop.break_queue("odd")
    queues = {
        name: shop_inspect(shop, name) for name in [*(f"queue-{at}" for at in range(40)), "odd"]
    }
    load = LimitLoad("api/", Limit(rate="100/s"), 3, 70, 5, 0, 1300)
    limits = (("queue-1", load),) * 20
    picture = TopSnapshot("server", 1000, 1, queues, {}, workers, (ReaperInfo("r", 0),), limits)
    output = io.StringIO()
    screen = Console(file=output, width=width, height=height, color_system=None)

    hint = "full screen: pip install 'qworker-redis[top]'"
    screen.print(compose(dataclasses.replace(picture, problem=problem), screen, hint))

    lines = output.getvalue().splitlines()
    assert len(lines) <= height
    assert lines[-1].strip().startswith("q quits · rates per second · full screen: pip install")
    assert "QUEUES (41, " in output.getvalue()
    assert "not shown" in output.getvalue()
    assert ("no answer from the server since" in output.getvalue()) == bool(problem)


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [
        (100, ["OLDEST", "SENT/S", "DONE/S", "FAILED/S"], []),
        (80, ["OLDEST", "DONE/S", "FAILED/S"], ["SENT/S"]),
        (60, ["OLDEST"], ["SENT/S", "DONE/S", "FAILED/S"]),
        (52, [], ["SENT/S", "DONE/S", "FAILED/S", "OLDEST"]),
    ],
)
def test_a_narrow_screen_leaves_out_whole_columns(shop, width, shown, left_out):
    """The least needed first; what stays is not cut."""
    import io

    from rich.console import Console

    from qworker.cli.top.sampler import TopSnapshot
    from qworker.cli.top.screen import compose

    shop.send("greetings", 1234)
    queues = {"greetings": shop_inspect(shop, "greetings")}
    output = io.StringIO()
    screen = Console(file=output, width=width, height=30, color_system=None)

    screen.print(compose(TopSnapshot("server", 1000, 1, queues), screen))

    table = output.getvalue().splitlines()[2:]
    for title in ["QUEUE", "READY", "DELAYED", "UNACKED", "DEAD", "STATE", *shown]:
        assert title in table[1]
    assert not any(title in table[1] for title in left_out)
    assert "1,234" in table[2]
    assert not any("…" in line for line in table)


def shop_inspect(shop, name):
    from qworker.engine.inspect import inspect
    from qworker.errors import BrokenQueueError

    try:
        return shop.client.execute(inspect(shop.keys(name)))
    except BrokenQueueError as error:
        return error


# -- doctor ------------------------------------------------------------------------------------


def findings_of(ran) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in ran.json["findings"]}


def test_doctor_is_content_with_a_healthy_namespace(run, shop):
    """Reaper and worker are there, the queue is served: exit code 0."""
    shop.send("emails")
    shop.add_worker()
    shop.add_reaper()

    ran, document = run("doctor"), run("doctor", "--json")

    assert ran.code == 0
    assert ran.lines[0].startswith("ok       server: valkey ")
    # The servers of tests keep less than they should in production, and are said to.
    others = [name for name in findings_of(document) if not name.startswith("durability")]
    assert {findings_of(document)[name]["status"] for name in others} == {"ok"}
    assert document.json["healthy"] is True
    assert findings_of(document)["queues"]["text"] == "1 with 1 ready message in all"
    assert findings_of(document)["reapers"]["status"] == "ok"


@pytest.mark.bad_input("data found: a broken queue is seen")
def test_doctor_finds_problems_and_suggests_fixes(run, shop):
    """Exit code 3, and every finding has its next step."""
    shop.send("emails", 2)
    shop.queue("emails").receive(1)
    (lease,) = shop.ask("ZRANGE", shop.keys().unacked, 0, -1)
    shop.ask("ZADD", shop.keys().unacked, shop.now_ms() - 60_000, lease)
    shop.break_queue("odd")
    shop.configure("full", maxlen=1)
    shop.send("full")
    shop.bury("boom", name="pdf")
    shop.queue("pdf").pause("out")
    shop.add_worker("web-2-b", age_ms=60_000)

    ran = run("doctor", "--json")

    assert ran.code == 3
    assert ran.json["healthy"] is False
    checks = findings_of(ran)
    status = {name: finding["status"] for name, finding in checks.items()}
    assert (
        status["reapers"] == status["overdue"] == status["queue.odd"] == status["full"] == "problem"
    )
    assert status["workers"] == status["workers.gone"] == status["paused"] == "warning"
    assert checks["overdue"]["text"].endswith("emails by 1m00s")
    assert checks["reapers"]["fix"].startswith("start one: qworker daemon")
    assert checks["paused"]["fix"] == "qworker queue resume pdf"
    assert checks["full"]["fix"] == "add workers, or qworker queue set full maxlen=N"
    assert "qworker dead ls pdf" in checks["dead"]["fix"]
    assert checks["unserved"]["text"].endswith("emails 1, full 1")
    assert "qworker fsck odd --repair renames it" in checks["queue.odd"]["fix"]
    for check in checks.values():
        assert bool(check["fix"]) == (check["status"] != "ok"), check


@pytest.mark.bad_input("data found: a doorbell of another type")
def test_doctor_says_who_leaves_a_queue_alone_whose_doorbell_is_broken(run, shop):
    """Its workers: sends and acks go on, so it must not say that nothing does."""
    shop.send("emails", 2)
    (message,) = shop.queue("emails").receive(1)
    shop.ask("DEL", shop.keys().wake)
    shop.ask("SET", shop.keys().wake, "a stranger's")

    found = findings_of(run("doctor", "--json"))["queue.emails"]

    assert found["status"] == "problem"
    assert found["text"].endswith("emails}:wake holds a string, so workers leave it alone")
    shop.send("emails")
    assert shop.queue("emails").ack(message) == [message]


@pytest.mark.bad_input("data found: dead letters of another type")
def test_doctor_does_not_say_that_nothing_is_sent_if_messages_are(run, shop):
    """Of a key that some calls need it says what may fail: sends go on without that of dead letters."""
    shop.send("emails")
    shop.ask("SET", shop.keys().dead, "a stranger's")
    assert shop.queue("emails").send({})

    found = findings_of(run("doctor", "--json"))["queue.emails"]

    assert found["status"] == "problem"
    assert found["text"].endswith(
        "emails}:dead holds a string, so sends, receives and reaps may fail"
    )


def leave_unknown(shop, place="emails", *, since_s=90):
    """Let a worker say that it does not know the tasks of what is ready."""
    (message,) = shop.queue(place).receive(1)
    outcomes = Outcomes(message.receipt.lease_id)
    since_ms = shop.now_ms() - since_s * 1000
    outcomes.release(message.receipt.index, 60_000, unknown_since_ms=since_ms)
    shop.client.execute(settle(shop.keys(place), [outcomes]))


def test_doctor_names_tasks_that_no_worker_knows(run, shop):
    """With the queue, how long they have waited, and another word where some workers know the task."""
    shop.add_worker("web-1-a", tasks=["other"])
    shop.send("emails")
    leave_unknown(shop)

    nobody = findings_of(run("doctor", "--json"))["unknown.emails"]
    shop.add_worker("web-2-b", tasks=["send_email"])
    somebody = findings_of(run("doctor", "--json"))["unknown.emails"]

    assert nobody["status"] == "problem"
    assert nobody["text"] == (
        "emails holds messages of task 'send_email' that no worker knows, the first for 1m30s"
    )
    assert nobody["fix"].startswith("deploy the worker that has it")
    assert somebody["status"] == "warning"
    assert "not every worker knows" in somebody["text"]
    assert somebody["fix"].startswith("web-2-b may know it")


def test_doctor_checks_every_shard_for_unknown_tasks(run, shop):
    """Behind delayed messages, too."""
    shop.queue("emails").divide(2)
    shop.send("emails/1")
    leave_unknown(shop, "emails/1")
    shop.send("emails/1", 30, delay="1h")

    assert findings_of(run("doctor", "--json"))["unknown.emails"]["status"] == "problem"


@pytest.mark.slow
def test_doctor_checks_journals_and_their_readers(run, shop):
    """Content while all is read; a reader that is behind, that missed entries, and a shed journal are reported."""
    shop.add_worker()
    shop.add_reaper()
    queue = shop.queue("emails")
    queue.configure(QueueAttributes(journal="all", journal_cap="1MiB"))
    queue.register_reader("archive")
    assert findings_of(run("doctor", "--json"))["journal"]["status"] == "ok"

    queue.send_many(["x"] * 15_000)
    unread = findings_of(run("doctor", "--json"))["journal.unread"]
    assert unread["status"] == "warning"
    assert "archive of emails " in unread["text"]

    epoch = int(shop.ask("HGET", queue.keys.meta, "journal_epoch"))
    queue.advance_reader("archive", epoch, 0)
    shop.ask("XTRIM", queue.keys.journal, "MAXLEN", 3)
    shop.ask("HSET", queue.keys.meta, "journal_shed", 1)
    checks = findings_of(run("doctor", "--json"))
    assert checks["journal.missed"]["status"] == "problem"
    assert "archive of emails " in checks["journal.missed"]["text"]
    assert checks["journal.shed"]["status"] == "warning"
    assert "emails" in checks["journal.shed"]["text"]


def test_doctor_counts_the_journals_of_shards_that_were_given_up(run, shop):
    """Their entries stay, and take memory: after a queue is divided into fewer shards the size does not fall."""
    shop.add_worker()
    shop.add_reaper()
    queue = shop.queue("emails")
    queue.configure(QueueAttributes(journal="all"))
    queue.divide(3, wait=0)
    for _ in range(60):
        queue.send("x")
    queue.ack(*queue.receive(100))
    queue.divide(1, wait=0)
    shards = [shop.queue(name) for name in ("emails", "emails/1", "emails/2")]
    sizes = [shard.inspect().journal_bytes for shard in shards]
    assert min(sizes) > 1024
    journal = findings_of(run("doctor", "--json"))["journal"]
    assert journal["text"] == f"on for 1 queue, {size(sum(sizes))}"


def test_doctor_takes_a_warning_for_a_problem_only_when_strict(run, shop):
    """Dead letters are for the day."""
    shop.bury("boom")
    shop.add_worker()
    shop.add_reaper()

    assert run("doctor").code == 0
    assert run("doctor", "--strict").code == 3


def test_doctor_of_a_server_that_is_away_is_one_finding(bare, impatient):
    """Exit code 3, no password, and where the URL comes from."""
    ran = bare("doctor", "--namespace", "x", env={"QWORKER_URL": "redis://:hunter2@localhost:1"})

    assert ran.code == 3
    assert ran.lines[0].startswith("PROBLEM  server: ")
    assert ran.lines[1] == "         -> the URL is redis://:***@localhost:1/0 (qworker config show)"
    assert "hunter2" not in ran.out + ran.err


@pytest.mark.bad_input("server: settings that lose messages")
def test_doctor_reports_a_server_that_forgets(bare):
    """What a crash would lose is a problem, with the line to set."""
    with servers.start("valkey", "--appendonly", "no", "--maxmemory", "100mb") as server:
        ran = bare("doctor", "--namespace", "x", "--json", env={"QWORKER_URL": server.url})

    assert ran.code == 3
    finding = findings_of(ran)["durability.appendonly"]
    assert finding["status"] == "problem"
    assert finding["fix"] == "set in the server's configuration: appendonly yes"
    assert "of 100 MiB used" in findings_of(ran)["memory"]["text"]


@pytest.mark.bad_input("server: a replica")
def test_doctor_ends_at_a_replica(bare):
    """It names the master to connect to, and does not tell to start workers that could do nothing."""
    with servers.start("valkey", "--replicaof", "127.0.0.1 1", far=False) as server:
        environ = {"QWORKER_URL": server.url, "QWORKER_NAMESPACE": "x"}
        ran = bare("doctor", "--json", env=environ)

    assert ran.code == 3
    (finding,) = ran.json["findings"]
    assert (finding["check"], finding["status"]) == ("server", "problem")
    assert finding["text"].endswith(
        "is a replica of 127.0.0.1:1: it refuses sends, receives and acks"
    )
    assert finding["fix"].startswith("put the master into the URL")


@pytest.mark.bad_input("server: out of memory")
def test_doctor_of_a_server_that_refuses_sends_finds_a_problem(bare):
    """Between two refused sends it uses a little less than its limit: it has refused calls, so it is full."""
    with servers.start("valkey", "--appendonly", "yes") as server:
        redis = server.redis()
        with Client(ConnectionFactory(server.url)) as client:
            queue = Queue(client, "x", "q")
            queue.send("first")  # loads the scripts that the next ones use
            environ = {"QWORKER_URL": server.url, "QWORKER_NAMESPACE": "x"}
            bare("doctor", env=environ)
            redis.config_set("maxmemory", int(redis.info("memory")["used_memory"]) + 500_000)
            with pytest.raises(OutOfMemoryError):
                any(queue.send("x" * 20_000) == "" for _ in range(100))
            used = int(redis.info("memory")["used_memory"])
            redis.config_set("maxmemory", used + used // 200)
        found = findings_of(bare("doctor", "--json", env=environ))

    memory = found["memory"]
    assert memory["status"] == "problem"
    assert re.fullmatch(
        r".* MiB used \((100|9.)%\): a full server refuses sends; it has refused 1 call",
        memory["text"],
    ), memory["text"]
    assert "drop dead letters" in memory["fix"]


@pytest.mark.bad_input("server: out of memory")
@pytest.mark.slow
def test_a_full_server_shows_who_is_alive(bare):
    """It takes the reports of workers and reapers: who reports is alive, and who does not is missing."""
    full = ("--appendonly", "yes", "--maxmemory", "1mb", "--maxmemory-policy", "noeviction")
    with servers.start("valkey", *full) as server, Client(ConnectionFactory(server.url)) as client:
        environ = {"QWORKER_URL": server.url, "QWORKER_NAMESPACE": "x"}
        nobody = findings_of(bare("doctor", "--json", env=environ))
        top = bare("top", "--once", env=environ)
        assert WorkerPresence(client, "x", "app").write([], ["q"], 1, 0) is False
        Reaper(client, "x").tick()
        found = findings_of(bare("doctor", "--json", env=environ))

    assert nobody["memory"]["status"] == found["memory"]["status"] == "problem"
    assert nobody["workers"]["text"].startswith("none is alive")
    assert nobody["reapers"]["text"].startswith("none is alive")
    assert "none: qworker run MODULE" in top.out
    for name in ("workers", "reapers"):
        assert found[name]["text"].startswith("1 alive")


@pytest.mark.bad_input("time or host: clocks of clients a day off")
def test_doctor_speaks_of_a_clock_that_is_off(run, shop, monkeypatch):
    """By how much and in which direction."""
    import time

    now = time.time
    monkeypatch.setattr("qworker.health.server.time.time", lambda: now() + 90)

    clock = findings_of(run("doctor", "--json"))["clock"]

    assert clock["status"] == "warning"
    assert clock["text"] in (
        "the clock of this host is 1m30s ahead of the server's",
        "the clock of this host is 1m29s ahead of the server's",
    )


@pytest.mark.slow
def test_top_on_a_dumb_terminal_shows_one_picture(shop, terminal):
    """Where nothing can be drawn, it is printed once and ends, instead of standing empty."""
    shop.send("emails", 3)
    screen = terminal("top", "--every", "200ms", TERM="dumb")
    assert "emails" in screen.read_until("emails")
    assert screen.wait() == 0


def test_doctor_names_handlers_that_run_for_minutes():
    """The longest comes first, with its worker and the command that shows where it is; others are not named."""
    running = (
        RunningDocument(task="resize", id="l:1", seconds=200.5),
        RunningDocument(task="mail", id="l:2", seconds=1),
        RunningDocument(task="load", id="l:3", seconds=4000),
    )
    described = WorkerDocument(children=(ChildDocument(pid=1, running=running),))
    findings = list(_long_runs([Worker("w-1", 0, described)]))
    assert [(finding.check, finding.status) for finding in findings] == [
        ("workers.handlers", Status.OK)
    ]
    assert findings[0].text == (
        "handlers that have run for minutes: load for 1h06m in w-1, resize for 3m20s in w-1; "
        "qworker worker stack shows where"
    )
    assert not list(_long_runs([Worker("w-1", 0, WorkerDocument())]))
