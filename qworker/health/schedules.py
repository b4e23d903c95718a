"""The checks of `qworker doctor` on schedules: apps without a worker, and paused schedules and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from qworker.formats import count, safe, span, word
from qworker.health.finding import Finding, Status, listed

if TYPE_CHECKING:
    from qworker.client.namespace.workers import Worker
    from qworker.health.access import NamespaceAccess

__all__ = ["check_schedules"]

#: An app without a worker for less than this is not reported: it may be a deploy.
_ABSENT_MS: Final = 3_600_000


def check_schedules(access: NamespaceAccess, workers: Iterable[Worker]) -> Iterator[Finding]:
    """Name the apps whose schedules fire, or have stopped firing, without a worker of the app."""
    from qworker.client.namespace.owners import same_owner
    from qworker.daemon.schedule_listing import list_schedules

    schedules = list_schedules(access.client, access.namespace, access.queues.shards)
    running = {worker.described.app for worker in workers if not worker.is_gone}
    now_ms = access.now_ms() if schedules else 0
    for app in sorted({schedule.app for schedule in schedules} - {""}):
        of_app = [schedule for schedule in schedules if schedule.app == app]
        if any(same_owner(app, name) or same_owner(name, app) for name in running):
            continue
        seen_ms = of_app[0].app_seen_ms
        if seen_ms is not None and now_ms - seen_ms < _ABSENT_MS:
            continue
        since = "" if seen_ms is None else f" for {span((now_ms - seen_ms) / 1000)}"
        orphaned = of_app[0].orphaned
        firing, stopped = ("fires", "has") if len(of_app) == 1 else ("fire", "have")
        state = f"{stopped} stopped firing" if orphaned else f"still {firing}"
        text = (
            f"{count(len(of_app), 'schedule')} of app {app!r} {state}, and the app has had no worker"
            f"{since}: {listed([schedule.name for schedule in of_app])}"
        )
        fix = f"start its worker; if the app was renamed or removed: qworker schedule rm --app {word(app)}"
        yield Finding("schedules.orphaned", Status.WARNING, safe(text), safe(fix))
    yield from _paused_tasks(access)
    paused = [schedule.name for schedule in schedules if schedule.paused_ms is not None]
    if paused:
        yield Finding(
            "schedules.paused",
            Status.WARNING,
            listed(paused),
            f"qworker schedule resume {word(paused[0])}",
        )


def _paused_tasks(access: NamespaceAccess) -> Iterator[Finding]:
    from qworker.client.namespace.paused_tasks import read_paused_tasks

    tasks = sorted(read_paused_tasks(access.client.execute, access.namespace))
    if tasks:
        fix = f"qworker task resume {safe(tasks[0])}"
        yield Finding("tasks.paused", Status.WARNING, listed(tasks), fix)
