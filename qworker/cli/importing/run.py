"""An import: read all queues, report, ask, move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.errors import FOUND
from qworker.cli.framework.output import Output
from qworker.cli.framework.terminal import note
from qworker.errors import ClusterMovingError, InvalidNameError, InvalidOptionError
from qworker.importers.mover import ImportSupersededError, MoveCounts, Mover
from qworker.importers.outcome import Import
from qworker.importers.survey import survey_queue
from qworker.wire.names import check_queue

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.cli.importing.options import ImportSelection
    from qworker.importers.source import Source
    from qworker.importers.task_names import TaskNames

__all__ = ["import_messages"]


def import_messages(
    session: Session,
    make: Callable[[Any], Source],
    choice: ImportSelection,
    names: TaskNames | None = None,
) -> Iterator[Output]:
    """Import from the source that `make` creates from a redis-py client.

    Exits with 3 if messages cannot be moved. Raises `UsageError`, `InvalidError`s, `ServerError`s and `RefusedError`s;
    after any of them the same command continues.
    """
    from qworker.cli.framework.confirm import confirm
    from qworker.cli.importing.report import moved_output, survey_text
    from qworker.formats import count

    with _source(session, make, choice) as (source, server):
        imported = Import(source.system, server, _queues(source, choice))
        if names is not None:
            imported.tasks = names.used
        _note_consumers(source)
        _survey(session, source, imported, choice)
        _note_unmatched(names)
        yield Output(text=survey_text(imported))
        if imported.movable and not choice.dry_run:
            confirm(f"Move {count(imported.movable, 'message')} out of {server}?", yes=choice.yes)
            _move(session, source, imported)
        yield moved_output(imported, dry_run=choice.dry_run)
    if imported.refused:
        raise click.exceptions.Exit(FOUND)


def _note_unmatched(names: TaskNames | None) -> None:
    """Name the entries of --task-map that no message calls: most often they are misspelt."""
    if names is None or not names.unmatched:
        return
    called = [name for name in names.used if name not in names.unmatched]
    some = ", ".join(called[:5]) + (f" and {len(called) - 5} more" if len(called) > 5 else "")
    note(
        f"warning: --task-map {', '.join(names.unmatched)}: no waiting message calls it; "
        + (f"they call {some}" if called else "no message can be moved")
    )


@contextmanager
def _source(
    session: Session, make: Callable[[Any], Source], choice: ImportSelection
) -> Iterator[tuple[Source, str]]:
    """Open the other server, and map its errors to ours."""
    from redis.exceptions import RedisError

    from qworker.store.connections import ConnectionFactory
    from qworker.store.server_errors import map_error
    from qworker.store.url import ServerURL

    url = session.server if choice.origin is None else ServerURL.parse(choice.origin, "--from")
    in_cluster = InvalidOptionError(
        "--from",
        "names a Cluster"
        if choice.origin
        else "is not given, and the server of qworker is a Cluster",
        "pass the one server of the other system: --from redis://host:6379/0",
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


def _queues(source: Source, choice: ImportSelection) -> dict[str, str]:
    """Map the queues to move to their names here, all names checked."""
    renamed = dict(map(_pair, choice.queue_pairs))
    known = source.queues()
    for name in (*choice.queues, *renamed):
        if name not in known:
            there = ", ".join(known[:8]) or "none"
            raise InvalidOptionError(
                "--queue",
                f"{source.system} has no queue {ascii(name)[:80]}",
                f"its queues: {there}",
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
            "--queue-map", f"{ascii(text)[:80]} is not a pair", "write THEIRS=OURS"
        )
    return theirs, ours


def _note_consumers(source: Source) -> None:
    running = source.consumers()
    if running is None:
        note(f"note: {source.system} does not report its consumers; stop them first")
    elif running:
        note(
            f"warning: consumers of {source.system} seem to be running ({running}): messages that they take "
            "during the import are handled twice; stop them first"
        )


def _survey(session: Session, source: Source, imported: Import, choice: ImportSelection) -> None:
    from qworker.cli.framework.progress import progress
    from qworker.client.inspect.peek import inspect

    opened = {name: source.queue(name) for name in imported.into}
    size = sum(key.size() for queue in opened.values() for key in queue.keys)
    with progress(f"reading {source.system}", size) as advance:
        for name, queue in opened.items():
            survey = imported.surveys[name] = survey_queue(queue, advance)
            if survey.reasons["ambiguous_task"]:
                clash = next(one for one in survey.refused if one.reason == "ambiguous_task")
                raise InvalidOptionError(
                    "--task-map",
                    clash.detail,
                    "map both functions, or pass --full-names; nothing was moved",
                )
            if choice.attributes:
                ours = session.client.run(inspect(session.queues.ref(imported.into[name]))).meta
                imported.attributes[name] = {
                    attribute: value
                    for attribute, value in queue.attributes.items()
                    if attribute not in ours
                }


def _move(session: Session, source: Source, imported: Import) -> None:
    from qworker.cli.framework.progress import progress
    from qworker.client.manage.attributes import write_stored
    from qworker.formats import count

    done = 0
    try:
        with progress(f"moving from {source.system}", imported.movable) as advance:

            def tell(moved: MoveCounts) -> None:
                nonlocal done
                done += moved.stored + moved.known
                advance(moved.stored + moved.known)

            for name, ours in imported.into.items():
                ref = session.queues.ref(ours)
                if imported.attributes.get(name):
                    session.client.run(write_stored(ref, imported.attributes[name]))
                if imported.surveys[name].movable:
                    mover = Mover(session.client, ref)
                    imported.moved[name] = mover.move(source.queue(name), tell)
    except ImportSupersededError as error:
        raise click.ClickException(
            f"another import into the same queue took over; this one moved {count(done, 'message')} and stopped"
        ) from error
    except BaseException:
        note(
            f"moved at least {count(done, 'message')} of {count(imported.movable)}; nothing is lost: "
            "run it again to continue"
        )
        raise
