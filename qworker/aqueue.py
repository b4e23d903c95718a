"""The low-level queue API, async: send, receive and settle messages without the consumer framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from qworker.aclient import AsyncClient
from qworker.commands import upkeep
from qworker.commands.sending import NewMessage
from qworker.commands.upkeep import Inspection
from qworker.message import DeadLetter, Message, Stored
from qworker.operations import Operations
from qworker.options import QueueAttributes, SendOptions

if TYPE_CHECKING:
    from qworker.durations import Duration

__all__ = ["AsyncQueue"]


class AsyncQueue:
    """One queue. For one event loop; makes no connection before its first call.

    Every method raises `ServerError` where Redis cannot serve it, `RefusedError` where the queue refuses it, and
    `InvalidError` for bad input, before anything is written.
    """

    def __init__(self, client: AsyncClient, namespace: str, name: str) -> None:
        self.client = client
        self.operations = Operations(namespace, name, client.ids, maxsize=QueueAttributes().maxsize)
        self.name = name
        self.keys = self.operations.keys

    def __repr__(self) -> str:
        return f"AsyncQueue({self.name!r})"

    # -- producing -----------------------------------------------------------------------------

    async def send(self, body: object, options: SendOptions | None = None, **given: object) -> str:
        """Store one message: bytes as they are, any other value as JSON. Returns its id.

        Options as in `SendOptions`, by value or by keyword: delay, eta, ttl, priority, unique, max_receives. With a
        unique key that another message holds, nothing is stored and that message's id is returned.
        """
        return (await self.send_all([body], options, **given))[0]

    async def send_all(
        self, bodies: Iterable[object], options: SendOptions | None = None, **given: object
    ) -> list[str]:
        """Store many messages, all checked first, in atomic calls of up to 1,000. Returns their ids."""
        chosen = SendOptions.of(options, given)
        messages = [self.operations.new_message(body, chosen) for body in bodies]
        return await self.store(messages, chosen)

    async def store(self, messages: Sequence[NewMessage], options: SendOptions) -> list[str]:
        """Store messages that `Operations.new_message` has made. Returns their ids."""
        return await self.client.run(self.operations.send(messages, options))

    # -- consuming -----------------------------------------------------------------------------

    async def receive(
        self, count: int = 1, *, wait: Duration = 0, visibility: Duration | None = None
    ) -> list[Message]:
        """Receive up to `count` (1-1,000) messages into one lease, waiting up to `wait` for the first.

        `visibility` (1s-12h) counts from the receive; None takes the queue's. Unsettled messages come back after it.
        """
        return await self.client.run(
            self.operations.receive(count, wait=wait, visibility=visibility)
        )

    async def pop(self, count: int = 1, *, wait: Duration = 0) -> list[Message]:
        """Receive and ack at once: at most once, a crash after this loses the messages."""
        return await self.client.run(self.operations.receive(count, wait=wait, pop=True))

    async def ack(self, *messages: Message) -> list[Message]:
        """Finish messages; returns those whose ack counted. A stale one changes nothing."""
        return await self.client.run(self.operations.ack(messages))

    async def nack(self, message: Message, *, delay: Duration = 0, error: str = "") -> None:
        """Count a failure; the message comes back after `delay`, or is dead at max receives.

        Raises `StaleReceiptError`.
        """
        await self.client.run(self.operations.nack(message, delay, error))

    async def release(self, message: Message, *, delay: Duration = 0) -> None:
        """Give a message back uncounted, to the head of ready or after `delay`. Raises `StaleReceiptError`."""
        await self.client.run(self.operations.release(message, delay))

    async def bury(self, message: Message, *, error: str = "") -> None:
        """Move a message to the dead letters, with reason `rejected`. Raises `StaleReceiptError`."""
        await self.client.run(self.operations.bury(message, error))

    async def extend(self, message: Message, visibility: Duration) -> Message:
        """Give a message a new visibility timeout from now; 0 makes it visible now.

        Returns the message with its new receipt (the old one is stale). Raises `StaleReceiptError`.
        """
        return await self.client.run(self.operations.extend(message, visibility))

    # -- looking -------------------------------------------------------------------------------

    async def inspect(self) -> Inspection:
        """Read sizes, ages, counters and attributes at one instant."""
        return await self.client.execute(upkeep.inspect(self.keys))

    async def peek(
        self, count: int = 10, *, state: str = "ready", newest: bool = False
    ) -> list[Stored]:
        """Look at up to `count` messages of a state (ready, delayed, unacked, dead) without receiving them."""
        return await self.client.run(self.operations.peek(count, state=state, newest=newest))

    async def show(self, message_id: str) -> Stored | None:
        """Find a message by its id; None if it is not seen. O(n) of the queue."""
        return await self.client.run(self.operations.show(message_id))

    async def dead(
        self, count: int = 10, *, after: str = "-", newest: bool = False
    ) -> list[DeadLetter]:
        """List dead letters, oldest first; `after`: the entry id to go on behind."""
        return await self.client.run(self.operations.dead(count, after=after, newest=newest))

    # -- operating -----------------------------------------------------------------------------

    async def redrive(self, *entry_ids: str) -> list[str]:
        """Put dead letters back to ready with fresh counts; returns the entry ids that were."""
        return await self.client.run(self.operations.redrive(entry_ids))

    async def drop_dead(self, *entry_ids: str) -> int:
        """Delete dead letters; returns how many there were."""
        return await self.client.run(self.operations.drop_dead(entry_ids))

    async def configure(self, attributes: QueueAttributes) -> None:
        """Set attributes; creates the queue where it is new."""
        await self.client.run(self.operations.configure(attributes))

    async def pause(self, direction: str = "all") -> None:
        """Pause sending ('in'), receiving ('out') or both ('all')."""
        await self.client.run(self.operations.pause(direction))

    async def resume(self) -> None:
        """End a pause."""
        await self.client.run(self.operations.pause(""))

    async def purge(self, state: str = "ready") -> int:
        """Delete all messages of a state (ready, delayed, dead); returns how many. Not atomic."""
        return await self.client.run(self.operations.purge(state))

    async def cancel(self, message_id: str) -> None:
        """Drop a message wherever it waits, when it is next met; one that runs already is not stopped."""
        await self.client.run(self.operations.cancel(message_id))

    async def remove(self) -> None:
        """Delete the queue with all its messages, attributes and counters. Leases in hand become stale."""
        await self.client.run(self.operations.remove())
