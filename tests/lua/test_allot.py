"""allot.lua and share.lua: a slot that a shard may still use is not given to another one."""

from __future__ import annotations

from qworker.engine.shares import Allotted, Report, Wish, allot, share
from tests.lua.drive import Drive


def report(version: int, slots: int, running: int = 0) -> Report:
    """What a shard says that has five messages to do."""
    return Report(version, slots, running, 5, 0)


def divided(drive: Drive, most: int, *wishes: Wish) -> dict[str, int | None]:
    """Divide a concurrency; the slots of each shard."""
    words = f"c={most}"
    drive.redis.hset(f"{drive.namespace}:limits", "api/", words)
    allotted: dict[str, Allotted] = drive.run(
        allot(drive.namespace, "api/", words, wishes, rest_ms=0)
    )
    return {shard: each.slots for shard, each in allotted.items()}


def known(drive: Drive, **shares: str) -> None:
    """Let the key say what shards have: version, slots, held, part, held, changed ms."""
    fields = {f"api/\n{shard}": words for shard, words in shares.items()}
    drive.redis.hset(f"{drive.namespace}:limits", mapping=fields)


def version_of(drive: Drive, shard: str) -> int:
    """The version of a share as the key says."""
    found = drive.redis.hget(f"{drive.namespace}:limits", f"api/\n{shard}")
    assert found is not None
    return int(found.split()[0])


def test_a_shard_that_was_never_heard_may_use_everything(drive: Drive) -> None:
    """It may have a limit of its own as yet."""
    other = Wish("b", report(1, 0), 3, 0)
    assert divided(drive, 3, Wish("a", None, 3, 0), other) == {"a": 0, "b": 0}
    other = Wish("b", report(version_of(drive, "b"), 0), 3, 0)
    assert divided(drive, 3, Wish("a", None, 3, 0), other) == {"a": 0, "b": 0}
    heard = Wish("a", report(version_of(drive, "a"), 0, running=1), 0, 0)
    assert divided(drive, 3, heard, other) == {"a": 0, "b": 2}


def test_a_shard_that_is_given_up_counts_until_it_has_ended(drive: Drive) -> None:
    """Until it has said that it has no slots, and its messages have ended; then it is forgotten."""
    known(drive, a="10 2 2 0 0 0", b="10 0 0 0 0 0")

    def drop(said: Report | None) -> dict[str, int | None]:
        other = Wish("b", report(version_of(drive, "b"), 0), 2, 0)
        return divided(drive, 2, Wish("a", said, None, 0, drop=True), other)

    assert drop(None) == {"a": 0, "b": 0}
    version = version_of(drive, "a")
    assert drop(report(version, 0, running=1)) == {"a": 0, "b": 1}
    assert version_of(drive, "a") == version
    assert drop(report(version, 0))["b"] == 2
    assert not drive.redis.hexists(f"{drive.namespace}:limits", "api/\na")


def test_after_a_failover_silent_shards_may_have_more_than_the_key_says(drive: Drive) -> None:
    """A shard with a newer share shows that the key has forgotten: others may have got what that one gave up."""
    known(drive, a="10 1 1 0 0 0", b="10 1 1 0 0 0")
    silent = Wish("a", None, None, 0)
    assert divided(drive, 2, silent, Wish("b", report(20, 0), 1, 0)) == {"a": 1, "b": 0}
    version = version_of(drive, "b")
    assert divided(drive, 2, silent, Wish("b", report(version, 0), 1, 0)) == {"a": 1, "b": 0}
    heard = Wish("a", report(20, 2, running=2), 1, 0)
    assert divided(drive, 2, heard, Wish("b", report(version, 0), 1, 0)) == {"a": 1, "b": 0}
    assert version_of(drive, "a") > 20  # it hears that it has one slot less
    ended = Wish("a", report(version_of(drive, "a"), 1, running=1), 1, 0)
    assert divided(drive, 2, ended, Wish("b", report(version, 0), 1, 0)) == {"a": 1, "b": 1}


def test_what_is_free_is_given_once(drive: Drive) -> None:
    """Two shards want the last slot, and the last part of the rate; a third one is silent, and may use its own."""
    known(drive, a="10 0 0 0 0 0", b="10 0 0 0 0 0", c="10 1 1 400000 400000 0")
    wishes = [Wish(shard, report(10, 0), 1, 600_000) for shard in "ab"]
    words = "c=2 r=10/1000"
    drive.redis.hset(f"{drive.namespace}:limits", "api/", words)
    command = allot(drive.namespace, "api/", words, [*wishes, Wish("c", None, None, 0)], rest_ms=0)
    shares = [(each.slots, each.part) for each in drive.run(command).values()]
    assert shares == [(1, 600_000), (0, 0), (1, 400_000)]


def test_a_part_that_was_given_up_is_free_when_its_shard_says_so(drive: Drive) -> None:
    """Until then it may still start as many."""
    known(drive, a="10 1 1 800000 800000 0", b="10 1 1 200000 200000 0")
    words = "c=2 r=10/1000"
    drive.redis.hset(f"{drive.namespace}:limits", "api/", words)

    def parts(version: int) -> list[int]:
        has = [Wish("a", report(version, 1), 1, 500_000), Wish("b", report(10, 1), 1, 500_000)]
        allotted = drive.run(allot(drive.namespace, "api/", words, has, rest_ms=0))
        return [each.part for each in allotted.values()]

    assert parts(9) == [500_000, 200_000]
    assert parts(version_of(drive, "a")) == [500_000, 500_000]


def test_a_limit_that_has_changed_is_not_divided(drive: Drive) -> None:
    """The caller has read it before."""
    drive.redis.hset(f"{drive.namespace}:limits", "api/", "c=1")
    assert drive.run(allot(drive.namespace, "api/", "c=2", [], rest_ms=0)) is None


def test_a_share_that_comes_late_changes_nothing(drive: Drive) -> None:
    """A newer one has come before it."""
    for version, slots in ((5, 2), (4, 9), (5, 9)):
        words = f"c={slots} s={version}"
        (said,) = drive.run(share(drive.keys, [("api/", version, words)]))
        assert (said.version, said.concurrency) == (5, 2)
