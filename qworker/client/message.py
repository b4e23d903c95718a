"""What a receiver holds: the message, and the receipt that proves its delivery."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from qworker.client.commands.receiving import Batch
from qworker.client.commands.waiting import NEVER_MS
from qworker.client.options import MAX_VISIBILITY_MS
from qworker.errors import InvalidBodyError, InvalidOptionError
from qworker.wire.codec import decode, decode_call
from qworker.wire.envelope import Envelope, Kind, kind_of
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = ["DeadLetter", "Message", "Receipt", "Stored", "deliver"]

_RECEIPT: Final = re.compile(r"([A-Za-z0-9._-]{1,64}):(\d{1,4})(?:/(\d{1,2}))?")


class Receipt(msgspec.Struct, frozen=True):
    """Proof of one delivery: a lease, the place in it, and the shard that has it.

    Written `lease:index`, and `lease:index/3` in a shard beside the first one.
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
    receives, `shared` earlier deliveries lost in company, which do not. `plain` messages were pushed as bare
    JSON and get their id from the delivery.
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
    #: Why the body could not be opened, and is as it is stored; else ''. Only `received` gives such ones out.
    closed: str = ""

    @property
    def additional_deliveries(self) -> int:
        """Deliveries before this one."""
        return self.receive_count - 1

    @property
    def own_visibility_ms(self) -> int | None:
        """The visibility timeout that it was sent with, None without one; 0 is at most once."""
        own_ms = whole(self.flags.get("v"))
        return None if own_ms is None else min(own_ms, MAX_VISIBILITY_MS)

    def json(self) -> Any:
        """Decode the body. Raises `InvalidBodyError`."""
        return decode(self.body)


@dataclass(frozen=True, slots=True)
class Stored:
    """A message seen without being received, in `queue` or, as `queue/3` says, in a shard of it.

    `at_ms` is its due time or visibility deadline, where it has one.
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
    kind: Kind = Kind.OWN
    #: The whole item, header and body, as it is stored.
    item: bytes = field(default=b"", repr=False)
    #: Why the message may not be used, and the body is as it is stored: encrypted, or wrongly signed; else ''.
    closed: str = ""
    #: Of a message that `delete` returns: it is still stored, and is dropped when it comes back or is next met.
    marked: bool = False

    @property
    def additional_deliveries(self) -> int:
        """Deliveries beyond the first one; one that goes on counts."""
        return max(0, self.receives - (self.state != "unacked"))

    @property
    def unreadable(self) -> bool:
        """Whether the body is encrypted, and was not opened."""
        return bool(self.closed) and "e" in self.flags

    @property
    def task(self) -> str:
        """The task that the body calls; '' where it calls none."""
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
        """Read an item as stored; items that are not ours keep their bytes as body.

        What is delayed without a due time is held.
        """
        if state == "delayed" and at_ms is not None and at_ms >= NEVER_MS:
            state, at_ms = "held", None
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
            envelope.flags,
            at_ms,
            receipt,
            Kind.OWN,
            item,
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: the stored message, why it died, and the entry id by which it is redriven.

    Entry ids are written `<ms>-<number>`, and `<ms>-<number>/3` in a shard beside the first one.
    """

    entry_id: str
    reason: str
    error_class: str
    error: str
    died_ms: int
    message: Stored

    @classmethod
    def of(cls, keys: QueueKeys, entry_id: bytes, fields: list[bytes]) -> DeadLetter:
        """Read an entry of the dead stream; missing fields are empty."""
        named = dict(zip(fields[::2], fields[1::2], strict=False))
        died = whole(named.get(b"died_ms"))
        return cls(
            f"{entry_id.decode()}/{keys.shard}" if keys.shard else entry_id.decode(),
            named.get(b"reason", b"").decode("utf-8", "replace"),
            named.get(b"class", b"").decode("utf-8", "replace"),
            named.get(b"error", b"").decode("utf-8", "replace"),
            int(entry_id.partition(b"-")[0]) if died is None else died,
            Stored.of(keys.queue, "dead", named.get(b"envelope", b"")),
        )


def deliver(keys: QueueKeys, batch: Batch, position: int) -> Message | None:
    """Read one item of a batch; None where it is neither ours nor plain JSON (foreign)."""
    item, index = batch.items[position], batch.indices[position]
    receipt = Receipt(batch.lease_id, index, keys.shard)
    envelope = Envelope.parse(item)
    if envelope is None:
        if kind_of(item) is not Kind.PLAIN:
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
    flags = envelope.flags if envelope.has_flags else {}
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
