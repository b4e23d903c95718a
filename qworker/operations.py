"""The operations of the low-level queue API, free of I/O.

Each is a generator that yields commands and is sent their results; `Queue` runs it on the sync client and
`AsyncQueue` on the async one, so both do the same thing by construction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from qworker.codec import check_size, encode
from qworker.commands import upkeep
from qworker.commands.command import Command
from qworker.commands.receiving import Batch, Outcomes, Settled
from qworker.commands.receiving import settle as settle_outcomes
from qworker.commands.receiving import settle_receive as receive_batch
from qworker.commands.receiving import split as split_lease
from qworker.commands.sending import MAX_PER_CALL, NewMessage, SendCall, Sent
from qworker.commands.sending import send as send_messages
from qworker.durations import duration_ms
from qworker.envelope import tail
from qworker.errors import InvalidOptionError, StaleReceiptError
from qworker.ids import IdSource
from qworker.keys import QueueKeys, queues_key
from qworker.message import DeadLetter, Message, Receipt, Stored, deliver
from qworker.names import check_namespace, check_queue
from qworker.options import QueueAttributes, SendOptions

__all__ = ["MAX_VISIBILITY_MS", "Operations", "Plan"]

T = TypeVar("T")
#: Yields commands and sends, is sent their results, returns the operation's.
Plan = Generator[Command[Any] | SendCall, Any, T]

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
        if sending is not None:
            sending(data, flags)
        return NewMessage(
            self.ids.message_id(),
            tail(data, flags),
            flags.get("u", ""),
            options.ttl_ms or UNIQUE_MS,
        )

    def send(self, messages: Sequence[NewMessage], options: SendOptions) -> Plan[list[str]]:
        """Store messages in atomic calls of up to 1,000; returns an id for each.

        Where a unique key keeps a message out, its place has the id of the message that holds the key.
        """
        ids: list[str] = []
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
        self, count: int, *, visibility: object = None, wait: object = 0, pop: bool = False
    ) -> Plan[list[Message]]:
        """Receive up to `count` messages, waiting up to `wait` for the first; `pop` acks them before returning."""
        _check_count(count)
        visibility_ms = None if visibility is None else _visibility_ms(visibility)
        wait_s = duration_ms(wait, "wait", maximum_ms=24 * 3_600_000) / 1000
        deadline = time.monotonic() + wait_s
        while True:
            batch: Batch = yield receive_batch(
                self.keys, self.ids.lease_id(), count, visibility_ms=visibility_ms
            )
            messages = yield from self._delivered(batch, pop=pop)
            left_s = deadline - time.monotonic()
            if messages or left_s <= 0:
                return messages
            # The doorbell is a hint; the next receive is what counts. Redis takes 0 as "for ever".
            block_s = max(0.01, min(_BLOCK_S, left_s))
            if batch.hint_ms > 0:
                block_s = min(block_s, max(0.01, batch.hint_ms / 1000))
            if batch.hint_ms != 0:
                yield Command(None, (), ("BLPOP", self.keys.wake, f"{block_s:.3f}"), lambda _: None)

    def _delivered(self, batch: Batch, *, pop: bool) -> Plan[list[Message]]:
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
            if own_ms.isdecimal() and not pop:
                messages[position] = yield from self._own_visibility(message, int(own_ms))
        return messages

    def _own_visibility(self, message: Message, visibility_ms: int) -> Plan[Message]:
        lease_id = self.ids.lease_id()
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
        lease_id = self.ids.lease_id()
        deadline_ms: int = yield split_lease(
            self.keys, receipt.lease_id, receipt.index, lease_id, visibility_ms
        )
        if not deadline_ms:
            raise StaleReceiptError(self.keys.queue, str(receipt))
        return replace(message, receipt=Receipt(lease_id, receipt.index), deadline_ms=deadline_ms)

    # -- looking -------------------------------------------------------------------------------

    def peek(
        self, count: int = 10, *, state: str = "ready", newest: bool = False
    ) -> Plan[list[Stored]]:
        """Look at up to `count` messages of a state without receiving them, in the order of delivery."""
        _check_count(count)
        match state:
            case "ready":
                return (yield from self._peek_ready(count, newest=newest))
            case "delayed":
                return (yield from self._peek_delayed(count, newest=newest))
            case "unacked":
                return (yield from self._peek_unacked(count, newest=newest))
            case "dead":
                letters = yield from self.dead(count, newest=newest)
                return [letter.message for letter in letters]
        raise InvalidOptionError(
            "state", f"{ascii(state)[:80]} is no state", "one of ready, delayed, unacked, dead"
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
                found += yield from self._lease(lease.decode("utf-8", "replace"), int(float(score)))
            first += 20
        return found[:count]

    def _lease(self, lease_id: str, deadline_ms: int) -> Plan[list[Stored]]:
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
        start = "-" if after == "-" else f"({after}"
        words = (
            ("XREVRANGE", self.keys.dead, "+", "-", "COUNT", count)
            if newest
            else ("XRANGE", self.keys.dead, start, "+", "COUNT", count)
        )
        entries: list[Any] = yield Command(None, (), words, lambda reply: reply or [])
        return [DeadLetter.of(self.keys.queue, entry[0], entry[1]) for entry in entries]

    def redrive(self, entry_ids: Sequence[str]) -> Plan[list[str]]:
        """Put dead letters back to ready; returns the entry ids that were."""
        redriven: list[str] = []
        for first in range(0, len(entry_ids), 100):
            page = entry_ids[first : first + 100]
            results: tuple[int, ...] = yield upkeep.redrive(self.keys, page)
            redriven += [entry for entry, result in zip(page, results, strict=True) if result == 1]
        return redriven

    def drop_dead(self, entry_ids: Sequence[str]) -> Plan[int]:
        """Delete dead letters; returns how many there were."""
        dropped = 0
        for first in range(0, len(entry_ids), 100):
            page = entry_ids[first : first + 100]
            dropped += yield Command(None, (), ("XDEL", self.keys.dead, *page), int)
        return dropped

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
            letters = yield from self.dead(_PAGE, after=after)
            for letter in letters:
                if letter.message.id == message_id:
                    return letter.message
            if len(letters) < _PAGE:
                return None
            after = letters[-1].entry_id

    # -- the queue itself ----------------------------------------------------------------------

    def configure(self, attributes: QueueAttributes) -> Plan[None]:
        """Set the attributes of the queue; creates it where it is new."""
        yield from self.announce()
        yield upkeep.configure(self.keys, attributes.meta())

    def pause(self, direction: str) -> Plan[None]:
        """Pause 'in', 'out' or 'all'; '' resumes both."""
        if direction not in ("", "in", "out", "all"):
            raise InvalidOptionError(
                "pause", f"{ascii(direction)[:80]} is no direction", "one of in, out, all"
            )
        yield from self.announce()
        yield upkeep.configure(self.keys, {"paused": direction})

    def purge(self, state: str) -> Plan[int]:
        """Delete every message of a state: ready, delayed or dead; returns how many."""
        purged = 0
        while True:
            number: int = yield upkeep.purge(self.keys, state)
            purged += number
            if number < 1000:
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
