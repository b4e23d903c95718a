"""`qworker limit`."""

from __future__ import annotations

import re

import pytest

from qworker.engine.raw import raw
from qworker.errors import InvalidOptionError
from tests.cli.conftest import table


def test_limits_are_set_listed_and_removed(run, shop):
    """Those that are not named stay; `none` removes one."""
    shop.queue("crm").create()
    assert "crm has no limits" in run("limit", "ls", "crm").err
    run("limit", "set", "crm", "crm/", "--rate", "100/s", "--burst", "5")
    ran = run("limit", "set", "crm", "crm/*", "--concurrency", "5", "--max-waiting", "20")
    assert (ran.code, ran.out.strip()) == (0, "crm/* of crm: concurrency 5, max waiting 20")
    assert run("limit", "set", "crm", "crm/*", "--max-waiting", "50").code == 0
    none = {"WEIGHT": "-", "WITH": "-"}
    of_parent = {"LIMIT": "crm/", "CONCURRENCY": "-", "RATE": "100/s", "BURST": "5"}
    of_each = {"LIMIT": "crm/*", "CONCURRENCY": "5", "RATE": "-", "BURST": "-"}
    assert table(run("limit", "ls", "crm").lines) == [
        none | of_parent | {"MAX-WAITING": "-"},
        none | of_each | {"MAX-WAITING": "50"},
    ]
    run("limit", "set", "crm", "crm/*", "--concurrency", "none")
    (_, each) = run("limit", "ls", "crm", "--json").json["limits"]
    assert (each["concurrency"], each["max_waiting"]) == (None, 50)
    assert run("limit", "rm", "crm", "crm/*").out.strip() == "crm/* of crm: no limits"
    assert "had no limits" in run("limit", "rm", "crm", "crm/*").err


def test_groups_show_what_they_wait_for(run, shop):
    """Also `queue show`, which counts them as ready."""
    queue = shop.queue("crm")
    queue.send_many([b"1", b"2", b"3"], group="a", ordered=True)
    queue.receive(1)
    (row,) = table(run("limit", "groups", "crm").lines)
    assert (row["WAITING"], row["RUNNING"]) == ("2", "1")
    (group,) = run("limit", "groups", "crm", "--json").json["groups"]
    assert (group["group"], group["ordered"], group["waits_for"]) == ("a", True, "concurrency")
    assert "(2 in groups, see qworker limit groups crm)" in run("queue", "show", "crm").out


def test_limits_of_all_queues_are_listed(run, shop):
    """Those without any are left out."""
    assert "no queue has limits" in run("limit", "ls").err
    for name in ("crm", "mails", "plain"):
        shop.queue(name).create()
    shop.queue("crm").set_limit("a", rate="1/m")
    shop.queue("mails").set_limit("*", concurrency=2)
    rows = table(run("limit", "ls").lines)
    assert [(row["QUEUE"], row["LIMIT"], row["RATE"]) for row in rows] == [
        ("crm", "a", "1/m"),
        ("mails", "*", "-"),
    ]
    assert [each["queue"] for each in run("limit", "ls", "--json").json["queues"]] == [
        "crm",
        "mails",
    ]


def test_a_broken_queue_is_named_and_the_limits_of_the_others_are_listed(run, shop):
    """Another program has made its key of limits a list."""
    for name in ("crm", "mails"):
        shop.queue(name).create()
        shop.queue(name).set_limit("a", rate="1/m")
    key = f"{shop.namespace}:{{crm}}:limits"
    shop.client.execute(raw("DEL", key))
    shop.client.execute(raw("RPUSH", key, "x"))
    listed = run("limit", "ls")
    assert [row["QUEUE"] for row in table(listed.lines)] == ["mails"]
    assert f"warning: queue crm cannot be read: key {key!r} holds another type" in listed.err


def test_a_limit_shows_how_much_of_it_is_used(run, shop):
    """What runs and waits under a parent, a group and all groups; and when the next may start."""
    queue = shop.queue("crm")
    queue.set_limit("api/", concurrency=1)
    queue.set_limit("slow", rate="1/h")
    queue.set_limit("*", concurrency=2)
    queue.send_many([b"1", b"2", b"3"], group="api/acme")
    queue.send_many([b"1", b"2"], group="slow")
    queue.send_many([b"1", b"2", b"3"], group="other")
    assert len(queue.receive(100)) == 4
    by_name = {one["limit"]: one for one in run("limit", "show", "crm", "--json").json["limits"]}
    used = {name: (one["groups"], one["waiting"], one["running"]) for name, one in by_name.items()}
    assert used == {"api/": (1, 2, 1), "slow": (1, 1, 1), "*": (3, 4, 4)}
    assert by_name["api/"]["waits_for"] == "one running"
    assert by_name["slow"]["until_ms"] > 0
    (row,) = table(run("limit", "show", "crm", "slow").lines)
    assert (row["IS"], row["WAITING"]) == ("rate 1/h, burst 1", "1")
    assert row["WAITS-FOR"].startswith("its rate,")


def test_a_queue_that_waits_as_a_whole_is_named_beside_its_groups(run, shop):
    """It is paused, or a handler raised RateLimited; otherwise its groups tell all there is to say."""
    queue = shop.queue("crm")
    queue.set_limit("a", concurrency=1)
    queue.send("1", group="a")
    queue.receive(1)
    verbs = (("limit", "groups", "crm"), ("limit", "show", "crm"))
    assert [run(*verb).err for verb in verbs] == ["", ""]
    shop.rate_limit("crm")
    for verb in verbs:
        assert re.search(
            "crm waits for (5[0-9]s|1m00s) more, since a handler raised", run(*verb).err
        )
        document = run(*verb, "--json").json
        assert (document["paused"], document["limited_until_ms"] > shop.now_ms()) == ("", True)
    queue.pause("out")
    for verb in verbs:
        assert (
            "crm is paused, so no message of it starts: qworker queue resume crm" in run(*verb).err
        )
        assert run(*verb, "--json").json["paused"] == "out"


def test_the_wait_of_a_group_is_seen_and_ended(run, shop):
    """By the name that the list of groups shows; a second time there is nothing to end."""
    queue = shop.queue("crm")
    shop.rate_limit("crm", "acme/ann")
    listed = run("limit", "groups", "crm")
    assert "a handler's RateLimited" in listed.out
    assert "qworker limit resume crm acme/ann" in listed.err
    resume = ("limit", "resume", "crm", "acme/ann")
    assert run(*resume).out.strip() == "acme/ann of crm: resumed"
    ran = run(*resume)
    assert (ran.code, ran.out) == (0, "")
    assert "acme/ann of crm: no handler's RateLimited makes it wait" in ran.err
    assert run(*resume, "--json").json == {"queue": "crm", "group": "acme/ann", "resumed": False}
    assert len(queue.receive(1)) == 1
    ran = run("limit", "resume", "crm", "acme/*")
    assert ran.code == 2
    assert "'acme/*' is not the name of a group; write a group such as acme/ann" in ran.err


def test_a_limit_that_there_is_not_is_not_shown(run, shop):
    """The message names those that there are."""
    shop.queue("crm").set_limit("api/", concurrency=1)
    ran = run("limit", "show", "crm", "ap")
    assert ran.code == 2
    assert "its limits: api/" in ran.err


@pytest.mark.bad_input("command line: limits out of range")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a/b/c", "--concurrency", "1"], "cannot have limits"),
        (["a", "--rate", "many"], "is not a rate"),
        (["a", "--weight", "1000"], "from 0.01 to 100"),
        (["a/b", "--weight", "2"], "give it to the parent: write a/"),
        (["a/", "--max-waiting", "2"], "limit each group: write a/*"),
        (["a", "--weight", "nan"], "weight: 'nan' is not a number"),
        (["a", "--weight", "0"], "weight: 0.0 is out of range"),
        (["a", "--concurrency", "-1"], "concurrency: -1 is out of range"),
        (["a", "--concurrency", "x"], "concurrency: 'x' is not an integer"),
        (["a", "--burst", "0"], "burst: 0 is out of range"),
        (["a", "--burst", "3"], "is set without rate"),
        (["a"], "none is given"),
    ],
)
def test_a_wrong_limit_is_refused(run, shop, words, says):
    """With the field, and exit code 2."""
    shop.queue("crm").create()
    ran = run("limit", "set", "crm", *words)
    assert ran.code == 2
    assert says in ran.err


@pytest.mark.bad_input("command line: a limit of 0")
@pytest.mark.parametrize(
    ("option", "meaning", "direction"),
    [("concurrency", "run", "--out"), ("rate", "start", "--out"), ("max_waiting", "wait", "--in")],
)
def test_a_limit_of_0_is_refused(run, shop, option, meaning, direction):
    """It could remove the limit or stop the queue: the error says how to do either."""
    queue = shop.queue("crm")
    queue.set_limit("a", concurrency=5, rate="9/s", max_waiting=7)
    before = queue.limits()
    error = (
        f"{option}: 0 could mean no limit, or that nothing may {meaning}; write none (None in Python) for no limit, "
        f"or use qworker queue pause QUEUE {direction}"
    )
    ran = run("limit", "set", "crm", "a", f"--{option.replace('_', '-')}", "0")
    assert (ran.code, ran.err.strip()) == (2, f"error: {error}")
    with pytest.raises(InvalidOptionError, match=re.escape(error)):
        queue.set_limit("a", **{option: 0})
    assert queue.limits() == before


def test_a_limit_over_several_queues(run, shop):
    """It is shown with each of them, changed from any of them, and left by one."""
    for name in ("crm", "billing"):
        shop.queue(name).create()
    words = ("--rate", "100/s", "--concurrency", "5")
    ran = run("limit", "set", "crm", "stripe/", "--with", "billing", *words)
    text = "stripe/ of billing, crm together: concurrency 5, rate 100/s"
    assert (ran.code, ran.out.strip()) == (0, text)
    assert (
        "concurrency 2, rate 100/s"
        in run("limit", "set", "billing", "stripe/", "--concurrency", "2").out
    )
    (row,) = table(run("limit", "ls", "crm").lines)
    assert (row["CONCURRENCY"], row["WITH"]) == ("2", "billing")
    assert run("limit", "rm", "crm", "stripe/").code == 0
    assert "crm has no limits" in run("limit", "ls", "crm").err
    (left,) = run("limit", "ls", "billing", "--json").json["limits"]
    assert (left["limit"], left["concurrency"], left["with"]) == ("stripe/", 2, [])


def test_a_queue_that_runs_its_share_of_a_limit_says_so(run, shop):
    """Though fewer run than the limit says: the rest of it is with the other queue until a reaper moves it."""
    queue, other = shop.queue("crm"), shop.queue("billing")
    queue.create()
    other.create()
    queue.set_limit("stripe/", with_queues=["billing"], concurrency=3)
    queue.send_many([b"{}"] * 5, None, group="stripe/a")
    running = len(queue.receive(5))
    assert 1 <= running < 3
    (load,) = run("limit", "show", "crm", "--json").json["limits"]
    assert (load["share"], load["waits_for"]) == (
        running,
        f"one running: its share is {running} of 3",
    )
    other.send_many([b"{}"] * 2, None, group="stripe/a")
    (load,) = run("limit", "show", "billing", "--json").json["limits"]
    assert load["waits_for"] is None


@pytest.mark.bad_input("command line: a limit over a queue whose name is misspelt")
def test_a_queue_that_does_not_exist_gets_no_share(run, shop):
    """A part of the limit would be its own; nothing is set."""
    for name in ("crm", "billing"):
        shop.queue(name).create()
    ran = run("limit", "set", "crm", "stripe/", "--with", "biling", "--concurrency", "5")
    assert (ran.code, "with: 'biling' does not exist" in ran.err, "billing" in ran.err) == (
        2,
        True,
        True,
    )
    assert "crm has no limits" in run("limit", "ls", "crm").err


@pytest.mark.bad_input("command line: a limit over several queues that cannot be kept")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", "--with", "billing", "--rate", "1/s"], "cannot span several queues"),
        (["a/*", "--with", "billing", "--rate", "1/s"], "cannot span several queues"),
        (["a/", "--with", "Billing", "--rate", "1/s"], "Billing"),
        (["a/", "--with", "billing", "--rate", "fast"], "is not a rate"),
    ],
)
def test_a_wrong_limit_over_several_queues_is_refused(run, words, says):
    """Before the server is asked: exit code 2 without one."""
    ran = run("--url", "redis://127.0.0.1:1", "limit", "set", "crm", *words)
    assert ran.code == 2
    assert says in ran.err
