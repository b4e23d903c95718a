"""The operations of the low-level queue API, free of I/O.

Each is a generator that yields commands and is sent their results; `Queue` runs it on the sync client and
`AsyncQueue` on the async one, so both do the same thing by construction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from qworker.client import letters
from qworker.client.commands import upkeep
from qworker.client.commands.command import Command, Pause
from qworker.client.commands.receiving import Batch, Outcomes, Settled
from qworker.client.commands.receiving import settle as settle_outcomes
from qworker.client.commands.receiving import settle_receive as receive_batch
from qworker.client.commands.receiving import split as split_lease
from qworker.client.commands.sending import MAX_PER_CALL, NewMessage, SendCall, Sent
from qworker.client.commands.sending import send as send_messages
from qworker.client.commands.upkeep import NEVER_MS
from qworker.client.dead_filter import DeadFilter
from qworker.client.message import DeadLetter, Message, Receipt, Stored, deliver
from qworker.client.options import QueueAttributes, SendOptions
from qworker.client.pending import Pending, claim_pending, list_pending
from qworker.client.scanning import STATES
from qworker.client.several import receive_several
from qworker.durations import duration_ms
from qworker.errors import InvalidError, InvalidOptionError, StaleReceiptError
from qworker.wire.codec import check_size, encode
from qworker.wire.envelope import tail
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import check_namespace, check_queue

__all__ = ["MAX_VISIBILITY_MS", "Operations", "Plan"]

T = TypeVar("T")
#: Yields commands, sends and pauses, is sent their results, returns the operation's.
Plan = Generator[Command[Any] | SendCall | Pause, Any, T]

MAX_VISIBILITY_MS: Final = 12 * 3_600_000
#: How long a unique key is held where its message has no time to live.
UNIQUE_MS: Final = 24 * 3_600_000
#: Seconds after which a client that uses a queue writes it into the registry again.
ANNOUNCE_S: Final = 60.0
_CANCEL_MS: Final = 7 * 24 * 3_600_000
_BLOCK_S: Final = 2.0
_PAGE: Final = 500


class Operations:
    """The operations on one queue. `maxsize` is checked before anything is sent, in bytes."""

    def __init__(self, namespace: str, queue: str, ids: IdSource, *, maxsize: int) -> None:
        self.keys = QueueKeys(check_namespace(namespace), check_queue(queue))
        self.ids = ids
        self.maxsize = maxsize
        self.namespace = namespace
        self._registry = queues_key(namespace)
        self._announced = float("-inf")

    # -- sending -------------------------------------------------------------------------------

    def new_message(
        self,
        body: object,
        options: SendOptions,
        *,
        flags: dict[str, str] | None = None,
        sending: Callable[[bytes, dict[str, str]], None] | None = None,
    ) -> NewMessage:
        """Make a message of a body: bytes as they are, anything else as JSON. Raises `InvalidError`s.

        `sending` is told the body and the header flags, and may change the flags.
        """
        data = body if isinstance(body, bytes) else encode(body)
        check_size(data, self.maxsize)
        flags = {} if flags is None else flags
        if options.max_receives is not None:
            flags["m"] = str(options.max_receives)
        if options.priority:
            flags["p"] = str(options.priority)
        if options.unique is not None:
            flags["u"] = options.unique
        if options.visibility_ms is not None:
            flags["v"] = str(options.visibility_ms)
            if options.visibility_ms == 0:
                flags["m"] = "1"  # at most once: what fails or is lost is dead
        if sending is not None:
            sending(data, flags)
        return NewMessage(
            self.ids.message_id(),
            tail(data, flags),
            flags.get("u", ""),
            options.ttl_ms or UNIQUE_MS,
        )

    def new_messages(self, bodies: Iterable[object], options: SendOptions) -> list[NewMessage]:
        """Make a message of each body. Raises the `InvalidError` of the first that is refused, naming its index."""
        messages = []
        for index, body in enumerate(bodies):
            try:
                messages.append(self.new_message(body, options))
            except InvalidError as error:
                path = error.field.removeprefix("body")
                dot = "." if path and path == error.field else ""
                raise error.at(f"bodies[{index}]{dot}{path}") from error
        return messages

    def send(self, messages: Sequence[NewMessage], options: SendOptions) -> Plan[list[str]]:
        """Store messages in atomic calls of up to 1,000; returns an id for each.

        Where a unique key keeps a message out, its place has the id of the message that holds the key.
        """
        ids: list[str] = []
        if messages:
            yield from self.announce()
        for first in range(0, len(messages), MAX_PER_CALL):
            call = partial(
                send_messages,
                self.keys,
                messages[first : first + MAX_PER_CALL],
                delay_ms=options.delay_ms,
                due_ms=options.eta_ms,
                ttl_ms=options.ttl_ms,
                priority=options.priority,
                maxlen=options.maxlen,
                # Who has the last call has those before it.
                replicas=options.replicas if first + MAX_PER_CALL >= len(messages) else 0,
                within_ms=options.within_ms,
                earlier=tuple(ids),
            )
            sent: Sent = yield SendCall(call)
            ids += sent.ids
        return ids

    def announce(self) -> Plan[None]:
        """Write the queue into the registry, at most once a minute."""
        now = time.monotonic()
        if now - self._announced >= ANNOUNCE_S:
            yield Command(None, (), ("HSET", self._registry, self.keys.queue, 1), int)
            self._announced = now

    # -- receiving -----------------------------------------------------------------------------

    def receive(
        self,
        count: int,
        *,
        visibility: object = None,
        wait: object = 0,
        pop: bool = False,
        then: Sequence[Operations] = (),
        reap: bool = False,
    ) -> Plan[list[Message]]:
        """Receive up to `count` messages, waiting up to `wait` for the first; `pop` acks them before returning.

        `then`: queues to go on with. `reap`: reap each queue before.
        """
        _check_count(count)
        visibility_ms = None if visibility is None else _visibility_ms(visibility)
        wait_s = duration_ms(wait, "wait", maximum_ms=24 * 3_600_000) / 1000
        if then or reap:
            return (
                yield from receive_several(
                    [self, *then],
                    count,
                    visibility_ms=visibility_ms,
                    wait_s=wait_s,
                    pop=pop,
                    reap=reap,
                )
            )
        deadline = time.monotonic() + wait_s
        while True:
            batch: Batch = yield receive_batch(
                self.keys,
                self.ids.lease_id(visibility_ms),
                count,
                visibility_ms=visibility_ms,
            )
            messages = yield from self.delivered(batch, pop=pop)
            left_s = deadline - time.monotonic()
            if messages or left_s <= 0:
                return messages
            # The doorbell is a hint; the next receive is what counts. Redis takes 0 as "for ever".
            block_s = max(0.01, min(_BLOCK_S, left_s))
            if batch.hint_ms > 0:
                block_s = min(block_s, max(0.01, batch.hint_ms / 1000))
            if batch.hint_ms != 0:
                yield Command(None, (), ("BLPOP", self.keys.wake, f"{block_s:.3f}"), lambda _: None)

    def delivered(self, batch: Batch, *, pop: bool) -> Plan[list[Message]]:
        """Make messages of a batch: foreign items are buried, and with `pop` the others are acked."""
        outcomes = Outcomes(batch.lease_id)
        messages: list[Message] = []
        for position, index in enumerate(batch.indices):
            message = deliver(self.keys.queue, batch, position)
            if message is None:
                outcomes.bury(index, "foreign")
                continue
            messages.append(message)
            if pop:
                _ack_into(outcomes, message)
        if outcomes:
            settled: Settled = yield settle_outcomes(self.keys, [outcomes])
            if pop and not all(settled.counted):
                messages = []
        for position, message in enumerate(messages):
            own_ms = message.flags.get("v", "")
            if own_ms.isdecimal() and own_ms != "0" and not pop:
                messages[position] = yield from self._own_visibility(message, int(own_ms))
        return messages

    def _own_visibility(self, message: Message, visibility_ms: int) -> Plan[Message]:
        lease_id = self.ids.lease_id(min(visibility_ms, MAX_VISIBILITY_MS))
        receipt = message.receipt
        deadline_ms: int = yield split_lease(
            self.keys,
            receipt.lease_id,
            receipt.index,
            lease_id,
            min(visibility_ms, MAX_VISIBILITY_MS),
        )
        if not deadline_ms:
            return message
        return replace(message, receipt=Receipt(lease_id, receipt.index), deadline_ms=deadline_ms)

    # -- settling ------------------------------------------------------------------------------

    def ack(self, messages: Sequence[Message]) -> Plan[list[Message]]:
        """Ack messages; returns those whose ack counted (the others were settled before or redelivered)."""
        by_lease: dict[str, Outcomes] = {}
        order: dict[str, list[Message]] = {}
        for message in messages:
            lease_id = message.receipt.lease_id
            outcomes = by_lease.setdefault(lease_id, Outcomes(lease_id))
            _ack_into(outcomes, message)
            order.setdefault(lease_id, []).append(message)
        counted: list[Message] = []
        leases = list(by_lease.values())
        for first in range(0, len(leases), 64):
            page = leases[first : first + 64]
            settled: Settled = yield settle_outcomes(self.keys, page)
            # The script answers uniques before acks within a lease.
            asked = [
                message
                for outcomes in page
                for message in sorted(
                    order[outcomes.lease_id], key=lambda each: not each.flags.get("u")
                )
            ]
            counted += [
                message for message, held in zip(asked, settled.counted, strict=True) if held
            ]
        return counted

    def settle_one(self, message: Message, outcomes: Outcomes) -> Plan[None]:
        """Apply the outcome of one message. Raises `StaleReceiptError`."""
        settled: Settled = yield settle_outcomes(self.keys, [outcomes])
        if not all(settled.counted):
            raise StaleReceiptError(self.keys.queue, str(message.receipt))

    def nack(self, message: Message, delay: object, error: str) -> Plan[None]:
        """Count a failure. Raises `StaleReceiptError`."""
        outcomes = Outcomes(message.receipt.lease_id)
        outcomes.nack(
            message.receipt.index,
            duration_ms(delay, "delay"),
            first_received_ms=message.first_received_ms,
            error=("", error),
        )
        yield from self.settle_one(message, outcomes)

    def release(self, message: Message, delay: object) -> Plan[None]:
        """Give a message back uncounted. Raises `StaleReceiptError`."""
        outcomes = Outcomes(message.receipt.lease_id)
        outcomes.release(message.receipt.index, duration_ms(delay, "delay"))
        yield from self.settle_one(message, outcomes)

    def bury(self, message: Message, error: str) -> Plan[None]:
        """Move a message to the dead letters. Raises `StaleReceiptError`."""
        outcomes = Outcomes(message.receipt.lease_id)
        outcomes.bury(message.receipt.index, "rejected", ("", error))
        yield from self.settle_one(message, outcomes)

    def extend(self, message: Message, visibility: object) -> Plan[Message]:
        """Give one message a new visibility timeout from now, in a lease of its own; 0 makes it visible now.

        Returns the message with its new receipt; the old one is stale. Raises `StaleReceiptError`.
        """
        receipt = message.receipt
        visibility_ms = duration_ms(visibility, "visibility", maximum_ms=MAX_VISIBILITY_MS)
        if visibility_ms == 0:
            outcomes = Outcomes(receipt.lease_id)
            outcomes.release(receipt.index)
            yield from self.settle_one(message, outcomes)
            return message
        lease_id = self.ids.lease_id(visibility_ms)
        deadline_ms: int = yield split_lease(
            self.keys, receipt.lease_id, receipt.index, lease_id, visibility_ms
        )
        if not deadline_ms:
            raise StaleReceiptError(self.keys.queue, str(receipt))
        return replace(message, receipt=Receipt(lease_id, receipt.index), deadline_ms=deadline_ms)

    def working(self, message: Message, visibility: object) -> Plan[Message]:
        """Give one message more time from now, unless half of its time to live is over; as `extend` but for that.

        Raises `TooLateError`, `StaleReceiptError`.
        """
        receipt = message.receipt
        visibility_ms = None if visibility is None else _visibility_ms(visibility)
        lease_id = self.ids.lease_id()
        deadline_ms: int = yield split_lease(
            self.keys, receipt.lease_id, receipt.index, lease_id, visibility_ms, half=True
        )
        if not deadline_ms:
            raise StaleReceiptError(self.keys.queue, str(receipt))
        return replace(message, receipt=Receipt(lease_id, receipt.index), deadline_ms=deadline_ms)

    # -- looking -------------------------------------------------------------------------------

    def peek(
        self, count: int = 10, *, state: str = "ready", newest: bool = False
    ) -> Plan[list[Stored]]:
        """Look at up to `count` messages of a state without receiving them, in the order of delivery.

        `newest`, or a negative count, looks from the other end.
        """
        if isinstance(count, int) and count < 0:
            count, newest = -count, not newest
        _check_count(count)
        match state:
            case "ready":
                return (yield from self._peek_ready(count, newest=newest))
            case "delayed":
                return (yield from self._peek_delayed(count, newest=newest))
            case "held":
                return (yield from self._peek_held(count, newest=newest))
            case "unacked":
                return (yield from self._peek_unacked(count, newest=newest))
            case "dead":
                found = yield from self.dead(count, newest=newest)
                return [letter.message for letter in found]
        raise InvalidOptionError(
            "state", f"{ascii(state)[:80]} is no state", f"one of {', '.join(STATES)}"
        )

    def _peek_ready(self, count: int, *, newest: bool) -> Plan[list[Stored]]:
        found: list[Stored] = []
        lists = (self.keys.suspect, *reversed(self.keys.ready))
        for key in reversed(lists) if newest else lists:
            if len(found) >= count:
                break
            left = count - len(found)
            span = (-left, -1) if newest else (0, left - 1)
            items: list[bytes] = yield Command(None, (), ("LRANGE", key, *span), list)
            if newest:
                items.reverse()
            found += [Stored.of(self.keys.queue, "ready", item) for item in items]
        return found

    def _peek_delayed(self, count: int, *, newest: bool) -> Plan[list[Stored]]:
        verb = "ZREVRANGE" if newest else "ZRANGE"
        flat: list[bytes] = yield Command(
            None, (), (verb, self.keys.delayed, 0, count - 1, "WITHSCORES"), list
        )
        return [
            Stored.of(self.keys.queue, "delayed", item, int(float(score)))
            for item, score in zip(flat[::2], flat[1::2], strict=True)
        ]

    def _peek_held(self, count: int, *, newest: bool) -> Plan[list[Stored]]:
        verb, span = (
            ("ZREVRANGEBYSCORE", ("+inf", NEVER_MS))
            if newest
            else ("ZRANGEBYSCORE", (NEVER_MS, "+inf"))
        )
        items: list[bytes] = yield Command(
            None, (), (verb, self.keys.delayed, *span, "LIMIT", 0, count), list
        )
        return [Stored.of(self.keys.queue, "delayed", item, NEVER_MS) for item in items]

    def _peek_unacked(self, count: int, *, newest: bool) -> Plan[list[Stored]]:
        verb = "ZREVRANGE" if newest else "ZRANGE"
        found: list[Stored] = []
        first = 0
        while len(found) < count:
            flat: list[bytes] = yield Command(
                None, (), (verb, self.keys.unacked, first, first + 19, "WITHSCORES"), list
            )
            if not flat:
                break
            for lease, score in zip(flat[::2], flat[1::2], strict=True):
                held = yield from self.lease(lease.decode("utf-8", "replace"), int(float(score)))
                found += held[::-1] if newest else held
            first += 20
        return found[:count]

    def lease(self, lease_id: str, deadline_ms: int) -> Plan[list[Stored]]:
        """List the messages of a lease in order; none where it is gone."""
        flat: list[bytes] = yield Command(None, (), ("HGETALL", self.keys.lease(lease_id)), list)
        held = sorted(
            (int(index), item)
            for index, item in zip(flat[::2], flat[1::2], strict=True)
            if index.isdigit()
        )
        return [
            Stored.of(self.keys.queue, "unacked", item, deadline_ms, Receipt(lease_id, str(index)))
            for index, item in held
        ]

    def dead(
        self, count: int = 10, *, after: str = "-", newest: bool = False
    ) -> Plan[list[DeadLetter]]:
        """List up to `count` dead letters, oldest first; `after` is the entry id to go on behind."""
        return letters.find(self.keys, count, DeadFilter(), after=after, newest=newest)

    def show(self, message_id: str) -> Plan[Stored | None]:
        """Find a message by its id: from the tail of ready, then delayed, unacked and dead; None if not seen.

        O(n). A message that moves meanwhile may be missed; under receiving alone none is.
        """
        mark = f"q1 {message_id} ".encode()
        for key in (*self.keys.ready, self.keys.suspect):
            last = -1
            while True:
                page: list[bytes] = yield Command(
                    None, (), ("LRANGE", key, last - _PAGE + 1, last), list
                )
                for item in page:
                    if item.startswith(mark):
                        return Stored.of(self.keys.queue, "ready", item)
                if len(page) < _PAGE:
                    break
                last -= _PAGE
        for state in ("delayed", "unacked"):
            seen: list[Stored] = []
            first = 0
            if state == "unacked":
                seen = yield from self._peek_unacked(1_000_000_000, newest=False)
            else:
                while True:
                    flat: list[bytes] = yield Command(
                        None,
                        (),
                        ("ZRANGE", self.keys.delayed, first, first + _PAGE - 1, "WITHSCORES"),
                        list,
                    )
                    seen = [
                        Stored.of(self.keys.queue, "delayed", item, int(float(score)))
                        for item, score in zip(flat[::2], flat[1::2], strict=True)
                        if item.startswith(mark)
                    ]
                    if seen or len(flat) < 2 * _PAGE:
                        break
                    first += _PAGE
            for each in seen:
                if each.id == message_id:
                    return each
        after = "-"
        while True:
            found = yield from self.dead(_PAGE, after=after)
            for letter in found:
                if letter.message.id == message_id:
                    return letter.message
            if len(found) < _PAGE:
                return None
            after = found[-1].entry_id

    # -- the queue itself ----------------------------------------------------------------------

    def configure(self, attributes: QueueAttributes) -> Plan[None]:
        """Set the attributes of the queue; creates it where it is new. One at its default is not stored."""
        defaults = QueueAttributes().meta()
        stored = {
            name: "" if value == defaults[name] else value
            for name, value in attributes.meta().items()
        }
        yield from self.announce()
        yield upkeep.configure(self.keys, stored)

    def pause(self, direction: str, *, strict: bool = False) -> Plan[str]:
        """Pause 'in', 'out' or 'all'; 'none' resumes both, 'state' changes nothing. Returns what is paused then.

        A `strict` pause of the input keeps expired leases from coming back as well.
        """
        if direction not in ("in", "out", "all", "none", "state"):
            raise InvalidOptionError(
                "pause",
                f"{ascii(direction)[:80]} is no direction",
                "one of in, out, all, none, state",
            )
        if direction == "state":
            seen: upkeep.Inspection = yield upkeep.inspect(self.keys)
            return seen.paused or "none"
        if strict and direction not in ("in", "all"):
            raise InvalidOptionError("strict", "is no pause of the input", "pause in or all")
        paused = "" if direction == "none" else direction
        yield from self.announce()
        yield upkeep.configure(self.keys, {"paused": paused, "pause_strict": "1" if strict else ""})
        return direction

    def purge(self, state: str) -> Plan[int]:
        """Delete every message of a state: ready, delayed or dead; returns how many."""
        if state not in ("ready", "delayed", "dead"):
            raise InvalidOptionError(
                "state", f"{ascii(state)[:80]} cannot be purged", "one of ready, delayed, dead"
            )
        purged = 0
        while True:
            done: upkeep.Purged = yield upkeep.purge(self.keys, state)
            purged += done.messages
            if not done.more:
                return purged

    def remove(self) -> Plan[None]:
        """Delete every key of the queue, its leases included, and its entry in the registry."""
        while True:
            leases: list[bytes] = yield Command(
                None, (), ("ZRANGE", self.keys.unacked, 0, _PAGE - 1), list
            )
            if not leases:
                break
            names = [self.keys.lease(lease.decode("utf-8", "replace")) for lease in leases]
            yield Command(None, (), ("UNLINK", *names), int)
            yield Command(None, (), ("ZREM", self.keys.unacked, *leases), int)
        yield Command(None, (), ("UNLINK", *self.keys.all()), int)
        yield Command(None, (), ("HDEL", self._registry, self.keys.queue), int)
        self._announced = float("-inf")

    def pending(
        self, count: int, *, newest: bool = False, elapsed: object = 0, skip: int = 0
    ) -> Plan[list[Pending]]:
        """List messages in hand for `elapsed` or longer; the first `skip` are left out."""
        _check_count(count)
        elapsed_ms = duration_ms(elapsed, "elapsed")
        return (
            yield from list_pending(self, count, newest=newest, elapsed_ms=elapsed_ms, skip=skip)
        )

    def claim(
        self, count: int, *, elapsed: object, visibility: object = None
    ) -> Plan[list[Message]]:
        """Take over messages that have been in hand for `elapsed` or longer."""
        _check_count(count)
        visibility_ms = None if visibility is None else _visibility_ms(visibility)
        elapsed_ms = duration_ms(elapsed, "elapsed")
        return (
            yield from claim_pending(
                self, count, elapsed_ms=elapsed_ms, visibility_ms=visibility_ms
            )
        )

    def cancel(self, message_id: str) -> Plan[None]:
        """Drop a message wherever it waits; a message that runs already is not stopped."""
        yield upkeep.cancel(self.keys, message_id, _CANCEL_MS)


def _ack_into(outcomes: Outcomes, message: Message) -> None:
    unique = message.flags.get("u")
    if unique:
        outcomes.uniques += (message.receipt.index, unique, message.id)
    else:
        outcomes.acks.append(message.receipt.index)


def _visibility_ms(visibility: object) -> int:
    return duration_ms(visibility, "visibility", minimum_ms=1000, maximum_ms=MAX_VISIBILITY_MS)


def _check_count(count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_PER_CALL:
        raise InvalidOptionError(
            "count", f"{ascii(count)[:80]} is out of range", f"a number from 1 to {MAX_PER_CALL}"
        )
