"""Messages as received, stored and dead, and receipts that prove a delivery."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from qworker.engine.message import NEVER_MS, SEATS_FROM
from qworker.engine.options import MAX_VISIBILITY_MS
from qworker.engine.receive import Batch
from qworker.errors import InvalidBodyError, InvalidOptionError, shown
from qworker.wire.codec import decode, decode_call
from qworker.wire.envelope import UNFLAGGED, Envelope, ItemKind, kind_of
from qworker.wire.ids import EntryId
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = ["DeadLetter", "Message", "Receipt", "Stored", "deliver", "deliver_unflagged"]

_RECEIPT: Final = re.compile(r"([A-Za-z0-9._-]{1,64}):(\d{1,4})(?:/(\d{1,2}))?")


class Receipt(msgspec.Struct, frozen=True):
    """Proof of one delivery: a lease, the index in it, and its shard.

    Written `lease:index`, and `lease:index/3` in a shard other than the first.
    """

    lease_id: str
    index: str
    shard: int = 0

    def __str__(self) -> str:
        written = f"{self.lease_id}:{self.index}"
        return f"{written}/{self.shard}" if self.shard else written

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read the written form. Raises `InvalidOptionError`."""
        match = _RECEIPT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidOptionError(
                "receipt",
                f"{ascii(text)[:80]} is not a receipt",
                "it is written <lease>:<index>, or <lease>:<index>/<shard>",
            )
        return cls(match[1], match[2], int(match[3] or 0))


class Message(msgspec.Struct, frozen=True):
    """One delivered message. Times are ms since 1970 by the server's clock.

    `receive_count` is 1 at the first delivery; `nacks` and `timeouts` are earlier failures that count against max
    receives, `shared` earlier deliveries that were lost with other messages, which do not. `plain` messages were pushed
    as bare JSON and get their id from the delivery.
    """

    queue: str
    id: str
    body: bytes
    receipt: Receipt
    receive_count: int
    nacks: int
    timeouts: int
    shared: int
    sent_ms: int
    first_received_ms: int
    received_ms: int
    deadline_ms: int
    flags: dict[str, str]
    plain: bool = False
    #: Why the body could not be opened and is as stored; else ''. Only `received` returns such messages.
    closed: str = ""

    @property
    def additional_deliveries(self) -> int:
        """Deliveries before this one."""
        return self.receive_count - 1

    @property
    def own_visibility_ms(self) -> int | None:
        """The visibility timeout it was sent with, if any; 0 is at most once."""
        own_ms = whole(self.flags.get("v"))
        return None if own_ms is None else min(own_ms, MAX_VISIBILITY_MS)

    def json(self) -> Any:
        """Decode the body. Raises `InvalidBodyError`."""
        return decode(self.body)


def check_received(messages: Iterable[object]) -> None:
    """Raise `InvalidOptionError` for anything but a received message, such as a list of them."""
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidOptionError(
                "message",
                f"{shown(message)} is not a received message",
                "pass messages as receive returned them, one by one: "
                "queue.ack(*messages), queue.extend_all(messages, …)",
            )


@dataclass(frozen=True, slots=True)
class Stored:
    """A message read without receiving it, in `queue` or in a shard of it, as `queue/3`.

    `at_ms` is its due time or visibility deadline, if it has one.
    """

    queue: str
    state: str
    id: str
    body: bytes
    receives: int
    nacks: int
    timeouts: int
    sent_ms: int | None
    flags: dict[str, str]
    at_ms: int | None = None
    receipt: Receipt | None = None
    kind: ItemKind = ItemKind.OWN
    #: The whole item, header and body, as stored.
    item: bytes = field(default=b"", repr=False)
    #: Why the message cannot be used (encrypted, or wrongly signed), so that its body is as stored; else ''.
    closed: str = ""
    #: Set by `delete`: the message is still stored, and is dropped when it comes back or is next received.
    marked: bool = False

    @property
    def additional_deliveries(self) -> int:
        """Deliveries beyond the first one, including one in progress."""
        return max(0, self.receives - (self.state != "unacked"))

    @property
    def unreadable(self) -> bool:
        """Whether the body is encrypted and was not opened."""
        return bool(self.closed) and "e" in self.flags

    @property
    def task(self) -> str:
        """The task that the body calls; '' if it calls none."""
        try:
            return decode_call(self.body).task
        except InvalidBodyError:
            return ""

    @classmethod
    def of(
        cls,
        queue: str,
        state: str,
        item: bytes,
        at_ms: int | None = None,
        receipt: Receipt | None = None,
    ) -> Stored:
        """Read an item as stored; the body of a foreign item is all its bytes.

        A delayed message without a due time is held; one with a seat in its group is ready.
        """
        if state == "delayed" and at_ms is not None and at_ms >= NEVER_MS:
            state, at_ms = "held", None
        elif state == "delayed" and at_ms is not None and at_ms >= SEATS_FROM:
            state, at_ms = "ready", None
        envelope = Envelope.parse(item)
        if envelope is None:
            name = str(receipt).replace(":", ".") if receipt else ""
            return cls(
                queue, state, name, item, 0, 0, 0, None, {}, at_ms, receipt, kind_of(item), item
            )
        return cls(
            queue,
            state,
            envelope.id,
            envelope.body,
            envelope.receives,
            envelope.nacks,
            envelope.timeouts,
            envelope.sent_ms,
            dict(envelope.flags),
            at_ms,
            receipt,
            ItemKind.OWN,
            item,
        )


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter: the stored message, why it died, and the entry by which it is redriven."""

    entry: EntryId
    reason: str
    error_class: str
    error: str
    died_ms: int
    message: Stored

    @property
    def entry_id(self) -> str:
        """The entry as text: `<ms>-<number>`, and `<ms>-<number>/3` in a shard other than the first."""
        return str(self.entry)

    @classmethod
    def of(cls, keys: QueueKeys, entry_id: bytes, fields: list[bytes]) -> DeadLetter:
        """Read an entry of the dead stream; missing fields are empty."""
        entry = EntryId.of_stream(entry_id, keys.shard)
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        died = whole(named.get(b"died_ms"))
        return cls(
            entry,
            named.get(b"reason", b"").decode("utf-8", "replace"),
            named.get(b"class", b"").decode("utf-8", "replace"),
            named.get(b"error", b"").decode("utf-8", "replace"),
            entry.ms if died is None else died,
            Stored.of(keys.queue, "dead", named.get(b"envelope", b"")),
        )


def deliver(keys: QueueKeys, batch: Batch, position: int) -> Message | None:
    """Read one item of a batch; None if it is foreign, neither ours nor plain JSON."""
    item, index = batch.items[position], batch.indices[position]
    receipt = Receipt(batch.lease_id, index, keys.shard)
    envelope = Envelope.parse(item)
    if envelope is None:
        if kind_of(item) is not ItemKind.PLAIN:
            return None
        return Message(
            keys.name,
            f"{batch.lease_id}.{index}",
            item,
            receipt,
            1,
            0,
            0,
            0,
            batch.now_ms,
            batch.now_ms,
            batch.now_ms,
            batch.deadline_ms,
            {},
            plain=True,
        )
    flags = dict(envelope.flags) if envelope.has_flags else {}
    first = whole(flags.get("f"))
    return Message(
        keys.name,
        envelope.id,
        envelope.body,
        receipt,
        envelope.receives + 1,
        envelope.nacks,
        envelope.timeouts,
        envelope.shared,
        envelope.sent_ms,
        batch.now_ms if first is None else first,
        batch.now_ms,
        batch.deadline_ms,
        flags,
    )


def deliver_unflagged(keys: QueueKeys, batch: Batch) -> list[Message] | None:
    """Read a batch of first deliveries without flags, as `deliver` would one by one; None if an item is anything else.

    Most batches are such, and this takes half the time.
    """
    queue, lease_id, shard = keys.name, batch.lease_id, keys.shard
    now_ms, deadline_ms, match = batch.now_ms, batch.deadline_ms, UNFLAGGED.match
    messages = []
    for item, index in zip(batch.items, batch.indices, strict=True):
        header = match(item)
        if header is None:
            return None
        message_id, sent_ms = header.groups()
        messages.append(
            Message(
                queue,
                message_id.decode(),
                item[header.end() :],
                Receipt(lease_id, index, shard),
                1,
                0,
                0,
                0,
                int(sent_ms),
                now_ms,
                now_ms,
                deadline_ms,
                {},
            )
        )
    return messages
