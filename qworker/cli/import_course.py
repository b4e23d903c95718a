"""The course of an import: look at all queues, tell, ask, move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.failures import FOUND
from qworker.cli.screen import note
from qworker.errors import ClusterMovingError, InvalidNameError, InvalidOptionError
from qworker.moving.mover import ImportSupersededError, Moved, Mover
from qworker.moving.survey import Survey, look
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.moving.waiting import Source, TaskNames

__all__ = ["Choice", "Import", "import_messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is asked for. `origin` is the URL of the other system's server, None: ours; no `queues`: all of them."""

    origin: str | None
    queues: tuple[str, ...]
    queue_pairs: tuple[str, ...]
    attributes: bool
    dry_run: bool
    yes: bool
    as_json: bool


@dataclass(slots=True)
class Import:
    """What an import found and did, by queue of theirs. `attributes` are those that ours takes over."""

    system: str
    server: str
    into: dict[str, str]
    surveys: dict[str, Survey] = field(default_factory=dict)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    moved: dict[str, Moved] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)

    @property
    def movable(self) -> int:
        """Messages that can be moved."""
        return sum(each.movable for each in self.surveys.values())

    @property
    def total(self) -> Moved:
        """What was moved."""
        return sum(self.moved.values(), Moved())

    @property
    def refused(self) -> int:
        """Messages that wait and cannot be moved."""
        return sum(each.reasons.total() for each in self.surveys.values())


def import_messages(
    session: Session,
    make: Callable[[Any], Source],
    choice: Choice,
    names: TaskNames | None = None,
) -> None:
    """Import from the source that `make` makes of a redis-py client.

    Exits with 3 where messages stay that cannot be moved. Raises `UsageError`, `InvalidError`s, `ServerError`s and
    `RefusedError`s; after all of them the same command goes on.
    """
    from qworker.cli.confirm import confirm
    from qworker.cli.formats import count
    from qworker.cli.import_report import print_found, print_moved

    with _source(session, make, choice) as (source, server):
        found = Import(source.system, server, _queues(source, choice))
        if names is not None:
            found.tasks = names.used
        _note_consumers(source)
        _look(session, source, found, choice)
        _note_unmatched(names)
        if not choice.as_json:
            print_found(found)
        if found.movable and not choice.dry_run:
            confirm(f"Move {count(found.movable, 'message')} out of {server}?", yes=choice.yes)
            _move(session, source, found)
        print_moved(found, choice)
    if found.refused:
        raise click.exceptions.Exit(FOUND)


def _note_unmatched(names: TaskNames | None) -> None:
    """Tell of entries of --task-map that fit nothing: most often they are misspelt."""
    if names is None or not names.unmatched:
        return
    asked = [each for each in names.used if each not in names.unmatched]
    near = ", ".join(asked[:5]) + (f" and {len(asked) - 5} more" if len(asked) > 5 else "")
    note(
        f"warning: --task-map {', '.join(names.unmatched)}: no waiting message calls that; "
        + (f"they call {near}" if asked else "none that can be moved waits")
    )


@contextmanager
def _source(
    session: Session, make: Callable[[Any], Source], choice: Choice
) -> Iterator[tuple[Source, str]]:
    """Open the other server; its errors become ours."""
    from redis.exceptions import RedisError

    from qworker.store.connection import ConnectionFactory
    from qworker.store.server_errors import map_error
    from qworker.store.url import ServerURL

    url = session.server if choice.origin is None else ServerURL.parse(choice.origin, "--from")
    where = "is not given, and our server" if choice.origin is None else "names what"
    in_cluster = InvalidOptionError(
        "--from",
        f"{where} is a Cluster",
        "these systems keep their queues on one server: name it, --from redis://host:6379/0",
    )
    if url.clustered:
        raise in_cluster
    redis = ConnectionFactory(url, name="qworker-import").redis()
    try:
        yield make(redis), url.address
    except (RedisError, OSError) as error:
        mapped = map_error(error, sent=False)
        if isinstance(mapped, ClusterMovingError):
            raise in_cluster from error
        mapped.args = (f"{url.address}: {mapped}",)
        raise mapped from error
    finally:
        redis.close()


def _queues(source: Source, choice: Choice) -> dict[str, str]:
    """Name the queues to be moved, theirs → ours, all names checked."""
    renamed = dict(_pair(each) for each in choice.queue_pairs)
    known = source.queues()
    for name in (*choice.queues, *renamed):
        if name not in known:
            there = ", ".join(known[:8]) or "none"
            raise InvalidOptionError(
                "--queue", f"{source.system} has no queue {ascii(name)[:80]}", f"there are: {there}"
            )
    into = {name: renamed.get(name, name) for name in choice.queues or known}
    for name, ours in into.items():
        try:
            check_queue(ours)
        except InvalidNameError as error:
            raise InvalidNameError(
                "--queue-map", error.problem, f"{error.limit}: --queue-map {name}=OURS"
            ) from error
    return into


def _pair(text: str) -> tuple[str, str]:
    theirs, equals, ours = text.rpartition("=")
    if not equals or not theirs or not ours:
        raise InvalidOptionError(
            "--queue-map", f"{ascii(text)[:80]} is no pair", "write THEIRS=OURS"
        )
    return theirs, ours


def _note_consumers(source: Source) -> None:
    running = source.consumers()
    if running is None:
        note(f"note: {source.system} does not tell whether consumers run; stop them first")
    elif running:
        note(
            f"warning: consumers of {source.system} seem to run ({running}); what they take while it is "
            "being moved is handled twice: stop them first"
        )


def _look(session: Session, source: Source, found: Import, choice: Choice) -> None:
    from qworker.cli.progress import progress
    from qworker.client.commands.inspecting import inspect
    from qworker.wire.keys import QueueKeys

    opened = {name: source.queue(name) for name in found.into}
    size = sum(place.size() for queue in opened.values() for place in queue.places)
    with progress(f"looking at {source.system}", size) as advance:
        for name, queue in opened.items():
            survey = found.surveys[name] = look(queue, advance)
            if survey.reasons["ambiguous_task"]:
                clash = next(each for each in survey.refused if each.reason == "ambiguous_task")
                raise InvalidOptionError(
                    "--task-map", clash.detail, "name both, or give --full-names; nothing was moved"
                )
            if choice.attributes:
                keys = QueueKeys(session.namespace, found.into[name])
                ours = session.client.execute(inspect(keys)).meta
                found.attributes[name] = {
                    attribute: value
                    for attribute, value in queue.attributes.items()
                    if attribute not in ours
                }


def _move(session: Session, source: Source, found: Import) -> None:
    from qworker.cli.formats import count
    from qworker.cli.progress import progress
    from qworker.client.commands.configuring import configure

    done = 0
    try:
        with progress(f"moving from {source.system}", found.movable) as advance:

            def tell(moved: Moved) -> None:
                nonlocal done
                done += moved.stored + moved.known
                advance(moved.stored + moved.known)

            for name, ours in found.into.items():
                ref = session.ref(ours)
                if found.attributes.get(name):
                    session.client.run(ref.announce())
                    session.client.execute(configure(ref.keys, found.attributes[name]))
                if found.surveys[name].movable:
                    mover = Mover(session.client, ref)
                    found.moved[name] = mover.move(source.queue(name), tell)
    except ImportSupersededError as error:
        raise click.ClickException(
            f"another import into the same queue has begun, and goes on with it; "
            f"this one moved {count(done, 'message')} and stopped"
        ) from error
    except BaseException:
        note(
            f"at least {count(done, 'message')} of {count(found.movable)} were moved; nothing is lost: "
            "the same command goes on where this one stopped"
        )
        raise
