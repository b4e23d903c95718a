"""`qworker import`."""

from __future__ import annotations

import json

import pytest

from tests import servers
from tests.cli.conftest import table
from tests.importers.keys import add_celery, add_rq, add_rsmq
from tests.topologies.servers import CLUSTERED


def everything(other):
    """All keys of the other server, byte for byte."""
    return {key: other.redis.dump(key) for key in other.redis.scan_iter()}


def test_dry_run_lists_the_result_and_changes_nothing(bring, run, other, shop):
    """Messages by queue and state, by function, and those that stay by reason and id."""
    add_rq(other.redis, "jobs", "a")
    add_rq(other.redis, "jobs", "b", "shop.mail.send", "x")
    add_rq(other.redis, "jobs", "c", repeats_left=1)
    add_rq(other.redis, "slow", "d")
    other.redis.zadd("rq:scheduled:slow", {"d": other.redis.time()[0] + 60})
    other.redis.delete("rq:queue:slow")
    other.redis.zadd("rq:failed:jobs", {"x": 1})
    theirs, ours = everything(other), shop.dump()

    ran = run("import", "rq", "--from", other.url, "--dry-run", "--queue-map", "slow=later")

    assert ran.code == 3
    assert table(ran.lines[:3]) == [
        {
            "QUEUE": "jobs", "INTO": "jobs", "READY": "2", "DELAYED": "0", "IN-FLIGHT": "0",
            "STAYS": "2", "WHY": "1 repeats, 1 failed",
        },
        {
            "QUEUE": "slow", "INTO": "later", "READY": "0", "DELAYED": "1", "IN-FLIGHT": "0",
            "STAYS": "0", "WHY": "-",
        },
    ]  # fmt: skip
    assert table(ran.lines[4:7]) == [
        {"FUNCTION": "shop.tasks.add", "TASK": "add", "MESSAGES": "2"},
        {"FUNCTION": "shop.mail.send", "TASK": "send", "MESSAGES": "1"},
    ]
    assert ran.lines[7:] == ["would move 3 messages; nothing was changed"]
    assert ran.err == "stays: jobs c, repeats: it repeats\n"
    assert (everything(other), shop.dump()) == (theirs, ours)


def test_moves_all_it_can_and_names_the_rest(bring, other, shop):
    """The exit code is 3 while waiting messages stay; failed jobs do not count."""
    for at in range(12):
        add_rq(other.redis, "jobs", f"r{at}", repeats_left=1)
    add_rq(other.redis, "jobs", "a")

    ran = bring("rq")

    assert (ran.code, ran.lines[-1]) == (3, "moved 1 message")
    assert ran.err.splitlines()[-1] == "stays: 2 more (--json lists 100 per queue)"
    assert other.redis.llen("rq:queue:jobs") == 12
    assert bring("rq").lines[-1] == "nothing can be moved; nothing was changed"
    again = bring("rq", "--drop-callbacks", "--json")
    assert (again.code, again.json["moved"], again.json["refused"]) == (0, 12, 0)
    assert shop.queue("jobs").inspect().stored == 13


def test_system_without_queues_is_reported(bring):
    """The server is probably the wrong one."""
    ran = bring("celery")
    assert ran.code == 0
    assert ran.lines[0].startswith("celery has no queue on /")


def test_asks_before_it_moves_anything(run, other):
    """Without a terminal it refuses."""
    add_rq(other.redis, "jobs", "a")
    ran = run("import", "rq", "--from", other.url)
    assert ran.code == 2
    assert "cannot prompt: not a terminal; pass --yes" in ran.err
    assert other.redis.llen("rq:queue:jobs") == 1


def test_queues_can_be_chosen_and_renamed(bring, other, shop):
    """The others stay, and are not mentioned."""
    for queue in ("a", "b", "c"):
        add_rq(other.redis, queue, f"job-{queue}")
    ran = bring("rq", "--queue", "a", "--queue", "b", "--queue-map", "b=x", "--json")
    assert [(each["queue"], each["into"]) for each in ran.json["queues"]] == [
        ("a", "a"),
        ("b", "x"),
    ]
    assert [shop.queue(name).inspect().stored for name in ("a", "x", "c")] == [1, 1, 0]
    assert other.redis.lrange("rq:queue:c", 0, -1) == [b"job-c"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--queue", "mial"], ["--queue: rq has no queue 'mial'", "its queues: Mail, other"]),
        (["--queue-map", "x=y"], ["rq has no queue 'x'"]),
        (["--queue-map", "xy"], ["--queue-map: 'xy' is not a pair; write THEIRS=OURS"]),
        ([], ["--queue-map: 'Mail' is not a valid name", "--queue-map Mail=OURS"]),
        (["--queue", "other", "--task-map", "x"], ["--task-map: 'x' is not a pair"]),
    ],
)
def test_names_are_checked_before_anything_is_changed(bring, other, flags, words):
    """The error says what to write instead."""
    add_rq(other.redis, "Mail", "a")
    add_rq(other.redis, "other", "b")
    before = everything(other)
    ran = bring("rq", *flags)
    assert ran.code == 2
    for word in words:
        assert word in ran.err
    assert everything(other) == before


def test_unused_entry_of_the_map_is_reported(bring, other):
    """A misspelt function is named, with those that the messages call; used ones are not."""
    add_celery(other.redis, "jobs", "a", task="mail.send")
    add_celery(other.redis, "jobs", "b", task="sms.send")
    ran = bring("celery", "--task-map", "mail.sent=post", "--task-map", "sms.send=text")
    assert ran.code == 0
    assert "warning: --task-map mail.sent: no waiting message calls it; they call " in ran.err
    assert "mail.send" in ran.err
    assert other.redis.llen("jobs") == 0


def test_functions_that_would_become_one_task_stop_it(bring, other, shop):
    """Until they are mapped; a message that comes after the survey stays."""
    add_celery(other.redis, "jobs", "a", task="mail.send")
    add_celery(other.redis, "jobs", "b", task="sms.send")
    ran = bring("celery")
    assert ran.code == 2
    assert "--task-map: sms.send and mail.send would both become send; map both" in ran.err
    assert other.redis.llen("jobs") == 2
    assert bring("celery", "--full-names").code == 0
    bodies = [json.loads(message.body)["task"] for message in shop.queue("jobs").peek()]
    assert bodies == ["mail.send", "sms.send"]


def test_attributes_are_taken_over_unless_ours_are_set(bring, other, shop):
    """An operator's settings win; --no-attributes takes none."""
    shop.configure("texts", visibility="90s")
    add_rsmq(other.redis, "texts", [b"a"], vt=45, maxsize=2048)
    add_rsmq(other.redis, "plain", [b"b"], vt=45)
    ran = bring("rsmq", "--queue", "texts")
    assert "texts gets maxsize 2KiB" in ran.lines
    meta = shop.queue("texts").inspect().meta
    assert (meta["visibility_ms"], meta["maxsize"]) == ("90000", "2048")
    bring("rsmq", "--no-attributes")
    assert "visibility_ms" not in shop.queue("plain").inspect().meta


def test_rsmq_task_is_of_a_queue_or_of_all(bring, other, shop):
    """Without a task the body stays as it is."""
    for queue in ("a", "b", "c"):
        add_rsmq(other.redis, queue, [b'{"x": 1}'])
    bring("rsmq", "--queue", "c")
    bring("rsmq", "--task", "a=first", "--task", "any", "--text")
    bodies = {name: shop.queue(name).peek()[0].body for name in ("a", "b", "c")}
    assert bodies["c"] == b'{"x": 1}'
    assert json.loads(bodies["a"]) == {"task": "first", "args": ['{"x": 1}']}
    assert json.loads(bodies["b"])["task"] == "any"


@pytest.mark.skipif(CLUSTERED, reason="other systems have no queues in a Cluster")
def test_other_system_may_be_on_our_server(run, shop):
    """Then --from is not needed; its keys are not ours."""
    prefix, queue = f"r{shop.namespace}", "texts"
    shop.ask("SADD", f"{prefix}:QUEUES", queue)
    shop.ask("ZADD", f"{prefix}:{queue}", 1, "z" * 32)
    shop.ask("HSET", f"{prefix}:{queue}:Q", "z" * 32, "hello")
    ran = run("import", "rsmq", "--prefix", prefix, "--yes", "--no-attributes")
    assert ran.lines[-1] == "moved 1 message"
    assert shop.queue(queue).peek()[0].body == b"hello"


@pytest.mark.parametrize("url", ["redis+cluster://nobody:1", "rediss+cluster://nobody:1"])
def test_other_system_is_not_in_a_cluster(run, url):
    """It connects to nothing."""
    ran = run("import", "rsmq", "--from", url)
    assert ran.code == 2
    assert ran.err.startswith(
        "error: --from: names a Cluster; pass the one server of the other system"
    )


def test_node_of_a_cluster_is_refused(run):
    """By its own reply."""
    with servers.start("valkey", "--cluster-enabled", "yes") as node:
        ran = run("import", "rsmq", "--from", node.url)
    assert ran.code == 2
    assert "Cluster" in ran.err
    assert "bug" not in ran.err


def test_prefix_of_celery(bring, other, shop):
    """The global_keyprefix of every key."""
    add_celery(other.redis, "jobs", "a", key="shop:jobs")
    other.redis.rename("_kombu.binding.jobs", "shop:_kombu.binding.jobs")
    assert bring("celery", "--prefix", "shop:").lines[-1] == "moved 1 message"
    assert other.redis.keys() == [b"shop:_kombu.binding.jobs"]


def test_running_consumers_cause_a_warning(bring, other):
    """They may take messages that are being moved."""
    add_rq(other.redis, "jobs", "a")
    other.redis.sadd("rq:workers", "rq:worker:w")
    other.redis.hset("rq:worker:w", "pid", 1)
    ran = bring("rq", "--dry-run")
    assert ran.err.startswith("warning: consumers of rq seem to be running (1)")
    assert bring("rsmq").err.startswith("note: rsmq does not report its consumers")


def test_refusal_of_our_queue_says_how_to_continue(bring, other, shop):
    """A full queue loses nothing."""
    shop.configure("jobs", maxlen=1)
    add_rq(other.redis, "jobs", "a")
    add_rq(other.redis, "jobs", "b")
    ran = bring("rq")
    assert ran.code == 1
    assert "moved at least 0 messages of 2; nothing is lost: run it again to continue" in ran.err
    assert "queue 'jobs' is full" in ran.err
    assert other.redis.llen("rq:queue:jobs") == 2


def test_server_that_is_away_is_named(run, tmp_path):
    """The source, not ours."""
    ran = run("import", "rq", "--from", f"unix://{tmp_path}/none", "--yes")
    assert (ran.code, str(tmp_path) in ran.err) == (1, True)
    assert run("import", "rq", "--from", "http://x", "--yes").code == 2
    assert "--from" in run("import", "rq", "--from", "http://x", "--yes").err


def test_source_may_come_from_the_environment(run, other):
    """Its password should not be on a command line."""
    add_rq(other.redis, "jobs", "a")
    assert run("import", "rq", "--yes", QWORKER_FROM=other.url).lines[-1] == "moved 1 message"


def test_keys_of_another_type_are_reported(bring, other):
    """The first one that it meets."""
    other.redis.set("rq:queues", "x")
    ran = bring("rq")
    assert ran.code == 1
    assert "WRONGTYPE" in ran.err
