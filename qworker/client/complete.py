"""End a received message with a value, as a worker does."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from qworker.client.follow import next_effects
from qworker.client.message import Message
from qworker.client.per_shard import where_held
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.client.steps import MessageWriter, Past, past_of
from qworker.durations import Duration, duration_ms
from qworker.engine.effects import END_EFFECT, LIGHT, Effect, result_effect
from qworker.engine.result import read_results
from qworker.engine.settle import Outcomes, Settled, settle
from qworker.errors import InvalidOptionError, InvalidResultError, QworkerError, StaleReceiptError
from qworker.formats import size
from qworker.wire.codec import decode_call, encode
from qworker.wire.numbers import whole
from qworker.wire.result import MAX_KEEP_MS, MAX_RESULT, write_value

__all__ = ["complete"]

#: Seconds that other queues have to take what follows.
_SOON_S: Final = 1.0


@where_held
def complete(
    queue: QueueRef, message: Message, result: object, *, keep: Duration | None = None
) -> Plan[Message]:
    """Ack a message and store its result; both or neither.

    Its chain or group of calls continues with that value. `result` is any JSON value,
    up to 1 MiB; bytes are JSON that is written already. `keep`: for how long (1 s to 30 days), default as its sender
    asked; needed if it did not and nothing follows. Raises `StaleReceiptError` if the ack does not count,
    `InvalidResultError`, and `OutOfMemoryError` if the server is full and the result is larger than 512 bytes: nothing
    was changed.
    """
    asked_ms = whole(message.flags.get("r"))
    call = decode_call(message.body) if "j" in message.flags else None
    if keep is None and not asked_ms and call is None:
        raise InvalidOptionError(
            "keep", "is missing: the sender asked for no result", "say how long, such as keep='1h'"
        )
    keep_ms = asked_ms if keep is None else duration_ms(keep, "keep", minimum_ms=1000)
    keep_ms = min(keep_ms or 0, MAX_KEEP_MS)
    value = result if isinstance(result, bytes) else encode(result)
    if len(value) > MAX_RESULT:
        raise InvalidResultError(
            "result",
            f"has {len(value):,} bytes of JSON",
            f"at most {size(MAX_RESULT)}: store it elsewhere and keep a reference to it",
        )
    effects: list[Effect] = [END_EFFECT] if "h" in message.flags else []
    stored = write_value(value, queue.keyring, queue.namespace, queue.keys.name, message.id)
    if keep_ms:
        effects.append(result_effect(stored, keep_ms))
    if call is not None and call.then:
        writer = MessageWriter(queue.namespace, queue.keyring, message.flags.get("w"))
        name = queue.keys.name
        ended = Past(call.task, name, message.id, message.sent_ms, 0)
        effects += next_effects(
            call.then, value, queue=name, writer=writer, past=[*past_of(message.body), ended]
        )
    outcomes = Outcomes(message.receipt.lease_id)
    outcomes.ack_with(message.receipt.index, effects or [END_EFFECT])
    settled: Settled = yield settle(queue.keys, [outcomes], heavy=outcomes.effect_bytes > LIGHT)
    # A call that is repeated because its reply was lost finds the message acked, with this result.
    if not settled.counted[0] and not (
        keep_ms and (yield read_results([queue.keys], message.id)) == [stored]
    ):
        raise StaleReceiptError(queue.keys.queue, str(message.receipt))
    if outcomes.relayed:
        with suppress(QworkerError):  # A reaper does it, then.
            yield from each_soon(relay(queue.namespace, queue.keys), _SOON_S)
    return message
