"""Random histories of a queue against a model: every script, several consumers, lost replies, jumping clocks.

After each step the test compares the whole queue in Redis with the model, and checks the invariants without the model:
each message is stored once, none is lost or invented, acked ones never come back, counters are right.
QWORKER_MODEL_EXAMPLES sets the number of histories; QWORKER_MODEL_NO_SHRINK reports a failure without shrinking it,
which is faster.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from qworker.engine.attributes import configure
from qworker.engine.command import Command
from qworker.engine.dead import drop, redrive
from qworker.engine.extend import extend, split
from qworker.engine.fire import Fired, fire
from qworker.engine.inspect import inspect
from qworker.engine.message import cancel
from qworker.engine.reap import promote, prune, reap, recount, sweep, trim
from qworker.engine.receive import Suspects, settle_receive
from qworker.engine.remove import purge
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.errors import RefusedError
from qworker.wire.envelope import tail
from qworker.wire.ids import EntryId
from tests import servers
from tests.effort import examples
from tests.journals import event_lines, groups_of, told_times
from tests.lua.drive import NOW, Drive
from verification.model.queue_model import Ending, Item, LeaseEnd, Model

TICK_MS = 1000
SPEC = b"spec"
CONSUMERS = ("ann", "bob", "cyd")
LANES = ("one", "two")
KEYS = (None, None, None, "k", "a b%")
#: Events that end a message, unless it is redriven.
ENDS = {"acked", "discarded", "expired", "cancelled", "dead"}
#: Reasons of dead letters here.
CAUSES = {"foreign", "max_receives", "rejected"}

short_delays = st.sampled_from([0, 0, 0, 1, 40, 3000])


class QueueMachine(RuleBasedStateMachine):
    """One history of one queue."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.drive = Drive(self.url, "m", uuid.uuid4().hex[:12])
        self.keys = self.drive.keys
        self.drive.redis.hset(self.keys.schedules, "s", SPEC)
        self.drive.redis.hset(self.keys.meta, "journal", "all")
        self.model = Model()
        self.now = self.model.now = NOW
        self.events_of: dict[str, list[str]] = {}
        self.entries = self.events = self.written = 0
        self.number = 0
        self.sequences = dict.fromkeys(LANES, 0)
        self.sends: dict[str, list[tuple[Any, ...]]] = {lane: [] for lane in LANES}
        self.leases_of: dict[str, list[str]] = {name: [] for name in CONSUMERS}
        self.last_receive: dict[str, tuple[Any, ...] | None] = dict.fromkeys(CONSUMERS)
        self.ghosts: list[tuple[Any, ...]] = []
        self.acked: set[str] = set()

    def teardown(self) -> None:
        """Delete the queue's keys."""
        for key in self.drive.redis.scan_iter(match=self.drive.base + "*", count=1_000_000):
            self.drive.redis.unlink(key)
        self.drive.close()

    # -- small parts ---------------------------------------------------------------------------

    def run_command(self, command: Command[Any]) -> Any:
        """Return the result, or the name of the refusal."""
        try:
            return self.drive.run(command)
        except RefusedError as error:
            return type(error).__name__

    def new_name(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number:03d}"

    # -- sending -------------------------------------------------------------------------------

    @rule(
        lane=st.sampled_from(["", *LANES]),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        delay_ms=short_delays,
        ttl_ms=st.sampled_from([0, 0, 0, 2500]),
        priority=st.sampled_from([0, 0, 5, 9]),
        max_receives=st.sampled_from([None, None, 1, 2]),
    )
    def send_new(
        self,
        lane: str,
        keys: list[str | None],
        delay_ms: int,
        ttl_ms: int,
        priority: int,
        max_receives: int | None,
    ) -> None:
        """Send some messages as a new call of a lane, or without a lane."""
        messages = []
        for key in keys:
            flags = {"m": str(max_receives)} if max_receives else {}
            flags |= {"p": str(priority)} if priority else {}
            flags |= {"u": key} if key else {}
            name = self.new_name("m")
            messages.append((Item("own", name, flags=tuple(flags.items()), body=name), key))
        if lane:
            self.sequences[lane] += 1
        call = (messages, lane, self.sequences.get(lane, 0), delay_ms, ttl_ms, priority)
        self.send_call(*call)
        if lane:
            self.sends[lane].append(call)

    def send_call(
        self,
        messages: list[tuple[Item, str | None]],
        lane: str,
        sequence: int,
        delay_ms: int,
        ttl_ms: int,
        priority: int,
    ) -> None:
        new = [
            NewMessage(item.id, tail(item.body.encode(), dict(item.flags)), key or "", 4000)
            for item, key in messages
        ]
        got = self.run_command(
            send(
                self.keys,
                new,
                lane=lane,
                sequence=sequence,
                delay_ms=delay_ms,
                ttl_ms=ttl_ms,
                priority=priority,
                now_ms=self.now,
            )
        )
        expected = self.model.send(
            self.now,
            messages,
            lane,
            sequence,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            priority=priority,
            hold_ms=4000,
        )
        if not isinstance(got, str):
            got = (list(got.ids), list(got.duplicates), got.repeated)
        assert got == expected

    @precondition(lambda self: any(self.sends.values()))
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """A reply was lost: the last call of a lane is repeated; or a ghost of an older one arrives late."""
        lane = data.draw(st.sampled_from([lane for lane in LANES if self.sends[lane]]))
        calls = self.sends[lane]
        self.send_call(
            *(calls[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(calls)))
        )

    @rule(kind=st.sampled_from(["plain", "plain", "newer", "foreign"]))
    def push_by_others(self, kind: str) -> None:
        """Another program pushes plain, newer or foreign items; plain bodies are all alike."""
        item = Item(
            kind,
            body={"plain": '{"a": " x=1 u=k "}', "newer": "q2 x x=1\n", "foreign": "hello"}[kind],
        )
        self.drive.redis.rpush(self.keys.ready[0], item.text)
        self.model.push(item)

    @rule()
    def push_unreadable(self) -> None:
        """Another program stores an item with our prefix and an invalid header; it counts as sent."""
        item = Item("unread", body=f"q1 {self.new_name('u')} 1 1234567 0 0 0\nx")
        self.drive.redis.rpush(self.keys.ready[0], item.text)
        self.drive.redis.hincrby(self.keys.stats, "stored", 1)
        self.model.push(item)
        self.model.stats["stored"] += 1

    @rule(slot=st.integers(0, 3))
    def fire_slot(self, slot: int) -> None:
        """A daemon fires a slot that others may have fired."""
        name = self.new_name("s")
        command = fire(
            self.keys,
            "s",
            slot,
            SPEC,
            message_id=name,
            tail=tail(name.encode()),
            ttl_ms=0,
            now_ms=self.now,
        )
        said = self.run_command(command)
        fired = said.fired if isinstance(said, Fired) else said  # or how it was refused
        assert fired == self.model.fire(self.now, slot, Item("own", name, body=name))

    # -- receiving and settling ----------------------------------------------------------------

    def draw_ends(self, data: st.DataObject, consumer: str) -> list[LeaseEnd]:
        """Draw outcomes for some of a consumer's leases, some of them stale or duplicate."""
        ends = []
        for lease in data.draw(
            st.lists(st.sampled_from(self.leases_of[consumer] or ["x"]), max_size=2, unique=True)
        ):
            held = self.model.leases.get(lease, {})
            end = LeaseEnd(lease)
            indices = st.sampled_from([*held, "0", "1"])
            for index in data.draw(st.lists(indices, max_size=3)):
                item = held.get(index)
                key = item.flag("u") if item else None
                if key and item:
                    end.uniques.append((index, key, item.id))
                else:
                    end.acks.append(index)
            for kind in data.draw(st.lists(st.sampled_from("nnncrrsbd"), max_size=3)):
                other = Ending(kind, data.draw(indices))
                if kind in "nr":
                    other.delay_ms = data.draw(short_delays)
                if kind in "nc":
                    other.max_receives = data.draw(st.sampled_from([None, None, 2, 3]))
                if kind == "b":
                    other.reason = "rejected"
                other.times = data.draw(st.sampled_from(["", "1 2 3 a.task", "1 - - -"]))
                end.others.append(other)
            if data.draw(st.integers(0, 4)) == 0:
                end.others.append(Ending("r", "*"))
            if data.draw(st.integers(0, 5)) == 0:
                end.acks, end.ack_all = [], True
            end.told = not (end.ack_all and end.others) and data.draw(st.booleans())
            ends.append(end)
        return ends

    def outcomes(self, ends: list[LeaseEnd]) -> list[Outcomes]:
        """Return the same outcomes as the commands take them."""
        written = []
        for end in ends:
            words = [word for unique in end.uniques for word in unique]
            groups = groups_of(self.model.lines(end)) if end.told else []
            end.told = bool(groups)
            outcomes = Outcomes(end.lease, end.ack_all, list(end.acks), words, groups)
            for other in end.others:
                times = told_times(other.times)
                match other.kind:
                    case "n":
                        outcomes.nack(
                            other.index,
                            other.delay_ms,
                            max_receives=other.max_receives,
                            times=times,
                        )
                    case "c":
                        outcomes.crash(other.index, max_receives=other.max_receives, times=times)
                    case "r":
                        outcomes.release(other.index, other.delay_ms, times=times)
                    case "s":
                        outcomes.share(other.index, times=times)
                    case "b":
                        outcomes.bury(other.index, other.reason, times=times)
                    case "d":
                        outcomes.discard(other.index, times=times)
            written.append(outcomes)
        return written

    def note_acked(self, ends: list[LeaseEnd]) -> None:
        """Remember what these outcomes are about to ack."""
        for end in ends:
            held = self.model.leases.get(end.lease, {})
            named = [*end.acks, *(index for index, _, _ in end.uniques)]
            moved = {
                index
                for other in end.others
                for index in (held if other.index == "*" else [other.index])
            }
            named += [index for index in held if end.ack_all and index not in moved]
            self.acked |= {held[index].id for index in named if index in held}

    @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS))
    def settle_some(self, data: st.DataObject, consumer: str) -> None:
        """A consumer settles without receiving."""
        ends = self.draw_ends(data, consumer)
        self.note_acked(ends)
        got = self.drive.settle(*self.outcomes(ends), at=self.now)
        per_lease, counted = self.model.settle(self.now, ends)
        self.model.ring_settled()
        assert (list(got.per_lease), list(got.counted)) == (per_lease, counted)

    @rule(
        data=st.data(),
        consumer=st.sampled_from(CONSUMERS),
        count=st.sampled_from([0, 1, 1, 2, 5, 50]),
        visibility_ms=st.sampled_from([500, 4000, 30_000]),
        suspects=st.sampled_from([0, 1, 1, 2]),
    )
    def receive_more(
        self, data: st.DataObject, consumer: str, count: int, visibility_ms: int, suspects: int
    ) -> None:
        """A consumer settles and receives; its reply may be lost, see `repeat_receive`."""
        call = (
            consumer,
            self.draw_ends(data, consumer),
            self.new_name("L"),
            count,
            visibility_ms,
            suspects,
        )
        self.receive_call(*call)
        self.last_receive[consumer] = call

    def receive_call(
        self,
        consumer: str,
        ends: list[LeaseEnd],
        lease: str,
        count: int,
        visibility_ms: int,
        suspects: int,
        *,
        resume: bool = False,
    ) -> None:
        for end in ends:  # a repeated call carries no journal events
            end.told = end.told and resume is False
        command = settle_receive(
            self.keys,
            lease,
            count,
            outcomes=self.outcomes(ends),
            visibility_ms=visibility_ms,
            suspects=Suspects(suspects),
            now_ms=self.now,
        )
        got = self.run_command(command.repeated() if resume else command)
        if not resume and count and lease in self.model.leases:
            assert got == "LeaseUsedError"
            return
        self.note_acked(ends)
        per_lease, _ = self.model.settle(self.now, ends, per_message=False)
        batch: list[tuple[str, Item]] = []
        hint, alone = -2, False
        if resume and count:
            batch, alone = self.model.resume(lease)
            self.model.ring_settled()
        elif count:
            batch, hint, alone = self.model.receive(self.now, lease, count, visibility_ms, suspects)
        else:
            self.model.ring_settled()
        received = [
            (index, item.decode()) for index, item in zip(got.indices, got.items, strict=True)
        ]
        assert received == [(index, item.text) for index, item in batch]
        assert (list(got.settled), got.hint_ms, got.alone) == (per_lease, hint, alone)
        assert not got.degraded
        assert not self.acked & {item.id for _, item in batch if item.id}
        if batch and lease not in self.leases_of[consumer]:
            self.leases_of[consumer].append(lease)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def repeat_receive(self, consumer: str) -> None:
        """The reply of a consumer's last call was lost: it is repeated to resume."""
        if call := self.last_receive[consumer]:
            self.receive_call(*call, resume=True)

    @rule(data=st.data(), consumer=st.sampled_from(CONSUMERS))
    def resume_before_the_call(self, data: st.DataObject, consumer: str) -> None:
        """A repetition overtakes its call, which hangs in the network: it finds no lease, and the id is burned."""
        call = (consumer, self.draw_ends(data, consumer), self.new_name("G"), 3, 4000, 1)
        self.receive_call(*call, resume=True)
        self.ghosts.append(call)

    @precondition(lambda self: self.ghosts)
    @rule()
    def ghost_arrives(self) -> None:
        """The overtaken call arrives: at worst it creates a lease without a receiver."""
        self.receive_call(*self.ghosts.pop())

    @precondition(lambda self: any(self.last_receive.values()))
    @rule(consumer=st.sampled_from(CONSUMERS))
    def use_a_lease_twice(self, consumer: str) -> None:
        """A call with the id of an existing lease is refused before it settles."""
        if (call := self.last_receive[consumer]) and call[2] in self.model.leases:
            self.receive_call(*call)

    @precondition(lambda self: self.model.leases)
    @rule(
        data=st.data(),
        visibility_ms=st.sampled_from([0, 700, 9000]),
        consumer=st.sampled_from(CONSUMERS),
    )
    def split_one(self, data: st.DataObject, visibility_ms: int, consumer: str) -> None:
        """A message gets its own lease; the call may be repeated."""
        lease = data.draw(st.sampled_from(sorted(self.model.leases)))
        index = data.draw(st.sampled_from(["0", "1", "2"]))
        new = self.new_name("P")
        got = self.run_command(split(self.keys, lease, index, new, visibility_ms, now_ms=self.now))
        assert got == self.model.split(self.now, lease, index, new, visibility_ms)
        if got:
            self.leases_of[consumer].append(new)
            command = split(self.keys, lease, index, new, visibility_ms, now_ms=self.now + 1)
            assert self.run_command(command) == got

    @rule(data=st.data(), visibility_ms=st.sampled_from([1, 1000, 60_000]))
    def extend_some(self, data: st.DataObject, visibility_ms: int) -> None:
        """A supervisor extends leases, some of them gone."""
        leases = data.draw(
            st.lists(st.sampled_from([*self.model.leases, "gone"]), max_size=4, unique=True)
        )
        got = self.run_command(extend(self.keys, leases, visibility_ms, now_ms=self.now))
        assert got.deadlines == self.model.extend(self.now, leases, visibility_ms)

    # -- time and upkeep -----------------------------------------------------------------------

    @rule(step_ms=st.sampled_from([1, 400, 900, 1000]))
    def time_passes(self, step_ms: int) -> None:
        """Time passes, and a reaper ticks."""
        self.set_clock(self.now + step_ms)
        self.tick()

    @rule(jump_ms=st.sampled_from([5000, 40_000, -3000]))
    def clock_jumps(self, jump_ms: int) -> None:
        """The server was frozen, or its clock was set."""
        self.set_clock(self.now + jump_ms)

    def set_clock(self, now: int) -> None:
        self.now = self.model.now = now

    @rule(times=st.integers(1, 9))
    def idle_time(self, times: int) -> None:
        """Some seconds in which only the reaper works."""
        for _ in range(times):
            self.set_clock(self.now + 900)
            self.tick()

    @rule(limit=st.sampled_from([1, 100]), most=st.sampled_from([1, 10]))
    def tick(self, limit: int = 100, most: int = 10) -> None:
        """One pass of a reaper."""
        now_ms, swept = self.drive.run(sweep([self.keys], TICK_MS, leases=most, now_ms=self.now))
        overdue = self.model.sweep(self.now, TICK_MS, most)
        assert (now_ms, list(swept[0].overdue)) == (self.now, overdue)
        if overdue:
            reaped = self.drive.run(reap(self.keys, overdue, TICK_MS, now_ms=self.now))
            assert (reaped.leases, reaped.messages) == self.model.reap(self.now, overdue, TICK_MS)
        promoted = self.drive.run(promote(self.keys, limit, now_ms=self.now))
        assert (promoted.moved, promoted.ended) == self.model.promote(self.now, limit)

    @rule(data=st.data())
    def late_reaper(self, data: st.DataObject) -> None:
        """A second reaper tries leases that it read a while ago, overdue or not."""
        leases = data.draw(
            st.lists(st.sampled_from([*self.model.leases, "gone"]), max_size=3, unique=True)
        )
        reaped = self.drive.run(reap(self.keys, leases, TICK_MS, now_ms=self.now))
        assert (reaped.leases, reaped.messages) == self.model.reap(self.now, leases, TICK_MS)

    @rule(limit=st.sampled_from([1, 50]), idle_ms=st.sampled_from([1000, 900_000]))
    def trim_and_prune(self, limit: int, idle_ms: int) -> None:
        """The slower duties of a reaper."""
        got = self.drive.run(trim(self.keys, limit, now_ms=self.now))
        assert got.expired == self.model.trim(self.now, limit)
        assert self.drive.run(recount(self.keys, now_ms=self.now)) == self.model.recount()
        forgotten = self.drive.run(prune(self.keys, idle_ms, now_ms=self.now)).forgotten
        assert forgotten == self.model.prune(self.now, idle_ms)
        # Lanes are pruned long after their senders have given up.
        for lane in LANES:
            if lane not in self.model.lanes:
                self.sends[lane].clear()

    # -- operators -----------------------------------------------------------------------------

    @rule(paused=st.sampled_from(["", "", "in", "out", "all"]))
    def pause(self, paused: str) -> None:
        """An operator pauses or resumes."""
        self.drive.run(configure(self.keys, {"paused": paused}, now_ms=self.now))
        self.model.pause(paused)

    @rule(maxlen=st.sampled_from([0, 0, 6]), max_receives=st.sampled_from([1, 2, 5]))
    def configure_limits(self, maxlen: int, max_receives: int) -> None:
        """An operator changes limits."""
        attributes = {"maxlen": str(maxlen) if maxlen else "", "max_receives": str(max_receives)}
        self.drive.run(configure(self.keys, attributes, now_ms=self.now))
        self.model.maxlen, self.model.max_receives = maxlen, max_receives

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def cancel_one(self, data: st.DataObject) -> None:
        """An operator cancels a message, wherever it is or was."""
        name = f"m{data.draw(st.integers(1, self.number)):03d}"
        self.drive.run(cancel(self.keys, name, 3000, now_ms=self.now))
        self.model.cancelled[name] = self.now + 3000

    @rule(state=st.sampled_from(["ready", "delayed", "dead"]), limit=st.sampled_from([1, 3]))
    def purge_some(self, state: str, limit: int) -> None:
        """An operator deletes some messages."""
        purged = self.drive.run(purge(self.keys, state, limit, now_ms=self.now))
        assert purged.messages == self.model.purge(state, limit)

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def redrive_some(self, data: st.DataObject) -> None:
        """An operator puts dead letters back."""
        positions = data.draw(
            st.lists(st.integers(0, len(self.model.dead) - 1), min_size=1, max_size=3, unique=True)
        )
        entries = [
            EntryId.of_stream(entry, 0) for entry, _ in self.drive.redis.xrange(self.keys.dead)
        ]
        got = self.drive.run(redrive(self.keys, [entries[n] for n in positions], now_ms=self.now))
        assert list(got) == self.model.redrive(self.now, positions)

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def drop_some(self, data: st.DataObject) -> None:
        """An operator deletes dead letters, one of them already gone."""
        positions = data.draw(
            st.lists(st.integers(0, len(self.model.dead) - 1), max_size=2, unique=True)
        )
        entries = [
            EntryId.of_stream(entry, 0) for entry, _ in self.drive.redis.xrange(self.keys.dead)
        ]
        command = drop(
            self.keys, [EntryId(5, 5), *(entries[n] for n in positions)], now_ms=self.now
        )
        assert self.drive.run(command)[0] == self.model.drop(positions)

    @rule()
    def doorbell_is_heard(self) -> None:
        """A waiting consumer takes a token."""
        self.drive.redis.lpop(self.keys.wake)
        self.model.tokens = max(0, self.model.tokens - 1)

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def redis_matches_the_model(self) -> None:
        """Every key, every header and every counter."""
        state = self.drive.state()
        self.check_any_queue(state)
        self.check_journal(state.pop("journal", []))
        schedules = state.pop("schedules")
        assert schedules.get("s:fired") == (
            None if self.model.fired_ms is None else str(self.model.fired_ms)
        )
        meta = state.pop("meta", {})
        levels = meta.get("levels", "")
        state["levels"] = sorted({0, *map(int, levels)}, reverse=True)
        if "dead" in state:
            state["dead"] = [(entry["envelope"], entry["reason"]) for entry in state["dead"]]
        if "stats" in state:
            # A lane stands among the counters, or, with '-' there, beside them.
            stats: dict[str, str] = state.pop("stats")
            lanes = {name: stats.pop(name) for name in [*stats] if name.startswith("lane:")}
            state["producers"] = {
                **state.get("producers", {}),
                **{name.removeprefix("lane:"): text for name, text in lanes.items() if text != "-"},
            }
            state["stats"] = {
                name: int(number)
                for name, number in stats.items()
                if number != "0" and not name.startswith("journal_")
            }
        # A receive by the short way leaves a doorbell with a token as it is: one starts any number of consumers.
        tokens = len(state.get("wake", ()))
        if 0 < tokens < self.model.tokens:
            self.model.tokens = tokens
        assert {part: value for part, value in state.items() if value} == self.model.table()

    def check_journal(self, entries: list[dict[str, str]]) -> None:
        """The journal has all events of every message, in order, and its entries are numbered without gaps."""
        for entry in entries[self.entries :]:
            lines = event_lines(entry["e1"])
            assert list(entry) == ["n", "k", "b", "t", "w", "e1"]
            assert (int(entry["n"]), int(entry["k"])) == (self.events, len(lines))
            assert int(entry["b"]) == self.written
            self.events += len(lines)
            self.written += len(entry["e1"]) + 64
            for line in lines:
                self.events_of.setdefault(line.split(" ")[7], []).append(line)
        self.entries = len(entries)
        wrong = [
            name for name, story in self.model.story.items() if self.events_of.get(name) != story
        ]
        assert [(self.events_of.get(name), self.model.story[name]) for name in wrong] == []
        assert self.events_of.keys() == self.model.story.keys()
        for name, story in self.events_of.items():
            ends = [line.split(" ")[0] for line in story if name != "-"]
            last = max((n for n, event in enumerate(ends) if event == "redriven"), default=-1)
            over = [event in ENDS for event in ends[last + 1 :]]
            assert over.count(True) <= 1, story
            # Dropping a dead letter ends it again.
            assert True not in over or over.index(True) >= len(over) - 1 - (ends[-1] == "purged")

    def check_any_queue(self, state: dict[str, Any]) -> None:
        """Check what holds for any queue, without the model."""
        leases = {part.removeprefix("lease:") for part in state if part.startswith("lease:")}
        assert leases == set(state.get("unacked", {}))
        delivered = [item for lease in leases for item in state[f"lease:{lease}"].values()]
        waiting = [*state.get("suspect", []), *state.get("delayed", {})]
        for part in state:
            if part.startswith("ready"):
                waiting += state[part]
        dead = [entry["envelope"] for entry in state.get("dead", [])]
        ids = [
            item.split(" ")[1] for item in (*delivered, *waiting, *dead) if item.startswith("q1 ")
        ]
        assert len(ids) == len(set(ids)), "a message is stored twice"
        assert not self.acked & set(ids), "an acked message is back"
        stats = state.get("stats", {})
        stored = len(delivered) + sum(item.startswith("q1 ") for item in waiting)
        assert int(stats.get("stored", 0)) == stored
        assert int(stats.get("unacked", 0)) == len(delivered)
        assert {entry["reason"] for entry in state.get("dead", [])} <= CAUSES
        assert len(state.get("wake", [])) <= 8

    @rule()
    def inspect(self) -> None:
        """An inspection changes nothing and counts what is stored."""
        inspection = self.drive.run(inspect(self.keys, now_ms=self.now))
        assert inspection.ready == sum(map(len, self.model.ready.values())) + len(
            self.model.suspects
        )
        assert (inspection.delayed, inspection.dead) == (
            len(self.model.delayed),
            len(self.model.dead),
        )
        assert inspection.unacked == sum(map(len, self.model.leases.values()))
        assert inspection.leases == len(self.model.deadlines)


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    """A separate server: the invariants read every key."""
    with servers.start("valkey") as server:
        yield server.url


@pytest.mark.slow
@pytest.mark.bad_input("time or host: clock back an hour within a pass")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "number", [30, pytest.param(100, marks=pytest.mark.nightly("test_queue_behaves_as_the_model"))]
)
def test_queue_behaves_as_the_model(model_url: str, number: int) -> None:
    """Whatever happens, in any order, the queue follows the rules and loses nothing."""
    machine = type("QueueMachine", (QueueMachine,), {"url": model_url})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=int(os.environ.get("QWORKER_MODEL_EXAMPLES") or examples(number)),
            phases=[Phase.generate] if os.environ.get("QWORKER_MODEL_NO_SHRINK") else list(Phase),
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
