"""`qworker limit`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import table


def test_limits_are_set_listed_and_removed(run, shop):
    """Those that are not named stay; 0 removes one."""
    shop.queue("crm").create()
    assert "crm has no limits" in run("limit", "ls", "crm").err
    run("limit", "set", "crm", "crm/", "--rate", "100/s", "--burst", "5")
    ran = run("limit", "set", "crm", "crm/*", "--concurrency", "5", "--weight", "2")
    assert (ran.code, ran.out.strip()) == (0, "crm/* of crm: concurrency 5, weight 2.0")
    assert run("limit", "set", "crm", "crm/*", "--weight", "0.5").code == 0
    assert table(run("limit", "ls", "crm").lines) == [
        {"LIMIT": "crm/", "CONCURRENCY": "-", "RATE": "100/1s", "BURST": "5", "WEIGHT": "-", "MAX-WAITING": "-"},
        {"LIMIT": "crm/*", "CONCURRENCY": "5", "RATE": "-", "BURST": "-", "WEIGHT": "0.5", "MAX-WAITING": "-"},
    ]  # fmt: skip
    run("limit", "set", "crm", "crm/*", "--concurrency", "0")
    (_, each) = run("limit", "ls", "crm", "--json").json["limits"]
    assert (each["concurrency"], each["weight"]) == (None, 0.5)
    assert run("limit", "rm", "crm", "crm/*").out.strip() == "crm/* of crm: no limits"
    assert "had no limits" in run("limit", "rm", "crm", "crm/*").err


def test_groups_show_what_they_wait_for(run, shop):
    """Also `queue show`, which counts them as ready."""
    queue = shop.queue("crm")
    queue.send_all([b"1", b"2", b"3"], group="a", ordered=True)
    queue.receive(1)
    (row,) = table(run("limit", "groups", "crm").lines)
    assert row["WAITING"], row["RUNNING"] == ("2", "1")
    (group,) = run("limit", "groups", "crm", "--json").json["groups"]
    assert (group["group"], group["ordered"], group["waits_for"]) == ("a", True, "concurrency")
    assert "2 (2 in groups, see qworker limit groups crm)" in run("queue", "show", "crm").out


@pytest.mark.bad_input("command line: limits out of range")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a/b/c", "--concurrency", "1"], "cannot have limits"),
        (["a", "--rate", "many"], "is not a rate"),
        (["a", "--weight", "1000"], "from 0.01 to 100"),
        (["a", "--concurrency", "-1"], "concurrency"),
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
