"""The low-level queue API, sync: send, receive and settle messages without the consumer framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from qworker.client import journal, letters
from qworker.client.commands import upkeep
from qworker.client.commands.sending import NewMessage, confirm
from qworker.client.commands.upkeep import Inspection
from qworker.client.dead_filter import DeadFilter, DeadTally
from qworker.client.journal import JournalReader, ReaderLag
from qworker.client.message import DeadLetter, Message, Receipt, Stored
from qworker.client.operations import Operations
from qworker.client.options import QueueAttributes, SendOptions
from qworker.client.pending import Pending, received
from qworker.client.picking import Details, delete, details, enqueue, hold
from qworker.client.rate import Rate
from qworker.client.registry import attributes_of, change_queue, create_queue
from qworker.client.scanning import END, STATES, Page, iterate, scan_messages
from qworker.client.statistics import QueueStat, queue_stat
from qworker.client.sync import Client

if TYPE_CHECKING:
    from qworker.durations import Duration

__all__ = ["Queue"]


class Queue:
    """One queue. Thread-safe; makes no connection before its first call.

    Every method raises `ServerError` where Redis cannot serve it, `RefusedError` where the queue refuses it, and
    `InvalidError` for bad input, before anything is written.
    """

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self.client = client
        self.operations = Operations(namespace, name, client.ids, maxsize=QueueAttributes().maxsize)
        self.name = name
        self.keys = self.operations.keys

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # -- producing -----------------------------------------------------------------------------

    def send(self, body: object, options: SendOptions | None = None, **given: object) -> str:
        """Store one message: bytes as they are, any other value as JSON. Returns its id.

        Options as in `SendOptions`, by value or by keyword: delay, eta, ttl, priority, unique, max_receives,
        visibility, maxlen, replicas, within. With a unique key that another message holds, nothing is stored and that
        message's id is returned. Raises `NotReplicatedError`, the message being stored.
        """
        chosen = SendOptions.of(options, given)
        return self.store([self.operations.new_message(body, chosen)], chosen)[0]

    def send_all(
        self, bodies: Iterable[object], options: SendOptions | None = None, **given: object
    ) -> list[str]:
        """Store many messages, all checked first, in atomic calls of up to 1,000. Returns their ids."""
        chosen = SendOptions.of(options, given)
        messages = self.operations.new_messages(bodies, chosen)
        return self.store(messages, chosen)

    def store(self, messages: Sequence[NewMessage], options: SendOptions) -> list[str]:
        """Store messages that `Operations.new_message` has made. Returns their ids."""
        return self.client.run(self.operations.send(messages, options))

    def replicated(self, replicas: int, *, within: Duration = "1s") -> int:
        """Wait up to `within` (1ms-2s) until `replicas` have all that was stored before; returns how many have."""
        return self.client.execute(confirm(replicas, within))

    # -- consuming -----------------------------------------------------------------------------

    def receive(
        self,
        count: int = 1,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        then: Sequence[Queue] = (),
        reap: bool = False,
    ) -> list[Message]:
        """Receive up to `count` (1-1,000) messages into one lease, waiting up to `wait` for the first.

        `visibility` (1s-12h) counts from the receive; None takes the queue's. Unsettled messages come back after it.
        `then`: queues to go on with, in this order, while there are fewer than `count`; each makes a lease of its own,
        and its messages are settled by it. `reap`: do a reaper's work on the queues first (at least one call more), for
        programs that have neither daemon nor worker.
        """
        return self.client.run(
            self.operations.receive(
                count,
                wait=wait,
                visibility=visibility,
                then=[each.operations for each in then],
                reap=reap,
            )
        )

    def pop(
        self,
        count: int = 1,
        *,
        wait: Duration = 0,
        then: Sequence[Queue] = (),
        reap: bool = False,
    ) -> list[Message]:
        """Receive and ack at once: at most once, a crash after this loses the messages. Options as of `receive`."""
        return self.client.run(
            self.operations.receive(
                count, wait=wait, pop=True, then=[each.operations for each in then], reap=reap
            )
        )

    def received(self, receipt: Receipt | str) -> Message:
        """Read the message of a receipt again, to settle it elsewhere. Raises `StaleReceiptError`. Three calls."""
        found = Receipt.parse(receipt) if isinstance(receipt, str) else receipt
        return self.client.run(received(self.operations, found))

    def claim(
        self, count: int = 1, *, elapsed: Duration, visibility: Duration | None = None
    ) -> list[Message]:
        """Take over up to `count` messages whose receivers were last heard of `elapsed` ago, longest first.

        Their deliveries end as if their leases had run out: counted, dead at max receives, and a message that may have
        cost its receiver's life comes in a lease of its own. See `pending`; of at most 500 leases.
        """
        return self.client.run(self.operations.claim(count, elapsed=elapsed, visibility=visibility))

    def ack(self, *messages: Message) -> list[Message]:
        """Finish messages; returns those whose ack counted. A stale one changes nothing."""
        return self.client.run(self.operations.ack(messages))

    def nack(self, message: Message, *, delay: Duration = 0, error: str = "") -> None:
        """Count a failure; the message comes back after `delay`, or is dead at max receives.

        Raises `StaleReceiptError`.
        """
        self.client.run(self.operations.nack(message, delay, error))

    def release(self, message: Message, *, delay: Duration = 0) -> None:
        """Give a message back uncounted, to the head of ready or after `delay`. Raises `StaleReceiptError`."""
        self.client.run(self.operations.release(message, delay))

    def bury(self, message: Message, *, error: str = "") -> None:
        """Move a message to the dead letters, with reason `rejected`. Raises `StaleReceiptError`."""
        self.client.run(self.operations.bury(message, error))

    def extend(self, message: Message, visibility: Duration) -> Message:
        """Give a message a new visibility timeout from now; 0 makes it visible now.

        Returns the message with its new receipt (the old one is stale). Raises `StaleReceiptError`.
        """
        return self.client.run(self.operations.extend(message, visibility))

    def working(self, message: Message, visibility: Duration | None = None) -> Message:
        """Say that a message is still worked on: it gets its visibility timeout once more, from now.

        Returns the message with its new receipt and deadline, as `extend` does; but refused when half of its time to
        live is over, so that others have their turn. `visibility` None is the message's own, else the queue's. Raises
        `TooLateError`, `StaleReceiptError`.
        """
        return self.client.run(self.operations.working(message, visibility))

    # -- looking -------------------------------------------------------------------------------

    def inspect(self) -> Inspection:
        """Read sizes, ages, counters and attributes at one instant."""
        return self.client.execute(upkeep.inspect(self.keys))

    def peek(self, count: int = 10, *, state: str = "ready", newest: bool = False) -> list[Stored]:
        """Look at messages of a state (ready, delayed, held, unacked, dead) without receiving them.

        At most `count` (1-1,000), in the order of delivery; from the other end with `newest` or a negative count.
        """
        return self.client.run(self.operations.peek(count, state=state, newest=newest))

    def pending(
        self, count: int = 10, *, newest: bool = False, elapsed: Duration = 0, skip: int = 0
    ) -> list[Pending]:
        """List messages in hand for `elapsed` or longer, from the earliest deadline or (`newest`) from the latest.

        `skip` messages are left out; they are read all the same.
        """
        return self.client.run(
            self.operations.pending(count, newest=newest, elapsed=elapsed, skip=skip)
        )

    def scan(self, *states: str, count: int = 100) -> Iterator[Stored]:
        """Go through all messages in some states (ready, delayed, held, unacked, dead; none named: in all).

        Bounded calls that read about `count` (1-1,000) each. Ready ones come newest first; what moves meanwhile may be
        seen twice, what stays is seen.
        """
        return iterate(
            self.client,
            lambda cursor: scan_messages(self.operations, cursor, states or STATES, count=count),
        )

    def scan_page(self, cursor: str = END, *states: str, count: int = 100) -> Page[Stored]:
        """Read one page of a scan: about `count` messages, and the cursor of the next one, '0' after the last."""
        return self.client.run(
            scan_messages(self.operations, cursor, states or STATES, count=count)
        )

    def stat(self) -> QueueStat:
        """Tell what the queue does: its age and idle time, who waits for it, what came and went, its pause."""
        return self.client.run(queue_stat(self.operations, self.operations.namespace))

    def details(self, message_id: str) -> Details | None:
        """Find a message as `show` does, and say what its times mean now."""
        return self.client.run(details(self.operations, message_id))

    def show(self, message_id: str) -> Stored | None:
        """Find a message by its id; None if it is not seen. O(n) of the queue."""
        return self.client.run(self.operations.show(message_id))

    def dead(
        self,
        count: int = 10,
        wanted: DeadFilter | None = None,
        *,
        after: str = "-",
        newest: bool = False,
        **given: object,
    ) -> list[DeadLetter]:
        """List dead letters that fit, oldest first; `after`: the entry id to go on behind.

        Filters as in `DeadFilter`, by value or by keyword: task, reason, error_class, error (a part of its text),
        older_than, newer_than, ids.
        """
        chosen = DeadFilter.of(wanted, given)
        return self.client.run(letters.find(self.keys, count, chosen, after=after, newest=newest))

    def tally_dead(self, wanted: DeadFilter | None = None, **given: object) -> DeadTally:
        """Count dead letters that fit by reason, error class and task; filters as in `dead`. O(n)."""
        return self.client.run(letters.tally(self.keys, DeadFilter.of(wanted, given)))

    # -- operating -----------------------------------------------------------------------------

    def redrive(
        self,
        *entry_ids: str,
        wanted: DeadFilter | None = None,
        rate: Rate | None = None,
        limit: int | None = None,
        **given: object,
    ) -> list[str]:
        """Put dead letters back to ready with fresh counts; returns the entry ids that were.

        Which: by entry id, or by filters as in `dead` (`everything=True` for all); letters that die meanwhile are left
        alone. `rate` is "100/s", "50/m" or a number per second; None: at once. Whoever is interrupted calls it again.
        """
        plan = letters.chosen(
            self.keys, letters.redrive, entry_ids, wanted, given, rate=rate, limit=limit
        )
        return self.client.run(plan).entry_ids

    def drop_dead(
        self,
        *entry_ids: str,
        wanted: DeadFilter | None = None,
        limit: int | None = None,
        **given: object,
    ) -> int:
        """Delete dead letters, chosen as in `redrive`; returns how many there were."""
        plan = letters.chosen(self.keys, letters.drop, entry_ids, wanted, given, limit=limit)
        return self.client.run(plan).done

    def edit_dead(self, entry_id: str, body: object) -> str:
        """Give a dead letter another body, JSON as in `send`; returns its new entry id, to redrive it by.

        The new entry is written before the old one goes, in one script. Raises `InvalidError`s, among them one where
        the entry is not there.
        """
        return self.client.run(letters.edit(self.keys, entry_id, body, self.operations.maxsize))

    def create(self, attributes: QueueAttributes | None = None, **given: object) -> None:
        """Make the queue, with attributes by value or by keyword. Raises `QueueExistsError`.

        Nothing needs it: a queue comes to be by its first message.
        """
        self.client.run(create_queue(self.operations, attributes, given))

    def attributes(self) -> QueueAttributes:
        """Read the attributes; totals and times are in `inspect`. Raises `QueueNotFoundError`."""
        return self.client.run(attributes_of(self.operations))

    def change(self, **attributes: object) -> QueueAttributes:
        """Change some attributes and leave the others; returns all. Raises `QueueNotFoundError`."""
        return self.client.run(change_queue(self.operations, attributes))

    def configure(self, attributes: QueueAttributes) -> None:
        """Set attributes; creates the queue where it is new."""
        self.client.run(self.operations.configure(attributes))

    def pause(self, direction: str = "all", *, strict: bool = False) -> str:
        """Pause sending ('in'), receiving ('out') or both ('all'); 'none' ends it, 'state' only asks.

        Returns what is paused then: in, out, all or none. Messages in hand are settled, timed out and promoted as ever;
        but while input is paused with `strict`, what timed out does not come back before the pause ends.
        """
        return self.client.run(self.operations.pause(direction, strict=strict))

    def resume(self) -> None:
        """End a pause."""
        self.client.run(self.operations.pause("none"))

    def purge(self, state: str = "ready") -> int:
        """Delete all messages of a state (ready, delayed, dead); returns how many. Not atomic."""
        return self.client.run(self.operations.purge(state))

    def cancel(self, message_id: str) -> None:
        """Drop a message wherever it waits, when it is next met; one that runs already is not stopped."""
        self.client.run(self.operations.cancel(message_id))

    def hold(self, *message_ids: str) -> list[str]:
        """Take ready and delayed messages out of the queue without losing them; returns the ids of those held now.

        They wait in state `held`, also past their time to live, until they are enqueued or deleted. O(n) each.
        """
        return self.client.run(hold(self.operations, message_ids))

    def enqueue(self, *message_ids: str) -> list[str]:
        """Put delayed and held messages to the tail of ready now; returns the ids of those that were. O(n) each."""
        return self.client.run(enqueue(self.operations, message_ids))

    def delete(self, message_id: str) -> Stored | None:
        """Delete a message wherever it is; returns it as it was found, None if it was not seen. O(n).

        What is unacked is not taken from who has it: an ack ends it as ever, and it is dropped if it comes back.
        """
        return self.client.run(delete(self.operations, message_id))

    # -- readers of the journal ----------------------------------------------------------------

    def register_reader(self, name: str) -> None:
        """Make a reader of the journal known, so that `doctor` and metrics warn before it misses entries."""
        self.client.run(journal.register(self.keys, name))

    def advance_reader(self, name: str, epoch: int, entry: int) -> None:
        """Note the last entry of the journal, `<epoch>-<entry>`, that a reader has read for good."""
        self.client.run(journal.advance(self.keys, name, epoch, entry))

    def forget_reader(self, name: str) -> bool:
        """Forget a reader of the journal; returns whether there was one."""
        return self.client.run(journal.forget(self.keys, name))

    def readers(self) -> list[JournalReader]:
        """List the readers of the journal by name."""
        return self.client.run(journal.readers(self.keys))

    def reader_lags(self) -> list[ReaderLag]:
        """Tell how far each reader of the journal is behind. One call per reader and two more."""
        return self.client.run(journal.lags(self.keys))

    # -- the end -------------------------------------------------------------------------------

    def remove(self) -> None:
        """Delete the queue with all its messages, attributes and counters. Leases in hand become stale."""
        self.client.run(self.operations.remove())
