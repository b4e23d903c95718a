"""What `qworker doctor` says of schedules: of which apps no worker has been seen for long, and what is paused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from qworker.cli.finding import Finding, Status, listed
from qworker.cli.formats import count, safe, span, word

if TYPE_CHECKING:
    from qworker.cli.presence import Worker
    from qworker.cli.session import Session

__all__ = ["check_schedules"]

#: A deploy or a night without workers is nothing to speak of.
_ABSENT_MS: Final = 3_600_000


def check_schedules(session: Session, workers: Iterable[Worker]) -> Iterator[Finding]:
    """Name the apps whose schedules fire, or have stopped firing, without a worker of the app."""
    from qworker.client.owners import same_owner
    from qworker.daemon.schedules import list_schedules

    schedules = list_schedules(session.client, session.namespace)
    running = {each.text("app") for each in workers if not each.is_gone}
    now_ms = session.now_ms() if schedules else 0
    for app in sorted({each.app for each in schedules}):
        of_app = [each for each in schedules if each.app == app]
        if any(same_owner(app, name) or same_owner(name, app) for name in running):
            continue
        seen_ms = of_app[0].app_seen_ms
        if seen_ms is not None and now_ms - seen_ms < _ABSENT_MS:
            continue
        since = "" if seen_ms is None else f" for {span((now_ms - seen_ms) / 1000)}"
        orphaned = of_app[0].orphaned
        fate = "have stopped firing" if orphaned else "go on firing"
        text = (
            f"{count(len(of_app), 'schedule')} of app {app!r} {fate}, and no worker of it has been seen"
            f"{since}: {listed([each.name for each in of_app])}"
        )
        fix = f"was the app renamed or removed? qworker schedule rm --app {word(app)}; else start its worker"
        yield Finding("schedules.orphaned", Status.WARNING, safe(text), safe(fix))
    yield from _paused_tasks(session)
    paused = [each.name for each in schedules if each.paused_ms is not None]
    if paused:
        yield Finding(
            "schedules.paused",
            Status.WARNING,
            listed(paused),
            f"qworker schedule resume {word(paused[0])}",
        )


def _paused_tasks(session: Session) -> Iterator[Finding]:
    from qworker.client.paused_tasks import read_paused_tasks

    tasks = sorted(read_paused_tasks(session.client.execute, session.namespace))
    if tasks:
        fix = f"qworker task resume {safe(tasks[0])}"
        yield Finding("tasks.paused", Status.WARNING, listed(tasks), fix)
