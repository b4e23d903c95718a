"""Workers: what each runs and how long, the stacks of its handlers, its processes; and the tasks that they know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qworker.errors import ServerError, UnavailableError
from qworker.web.page_request import Page
from qworker.web.question import Question

if TYPE_CHECKING:
    from qworker.client.namespace.workers import Worker
    from qworker.web.page_request import PageRequest

__all__ = ["confirm_drain", "tone_of", "worker", "workers"]

#: Handlers and tasks of a page.
_RUNNING: Final = 25
_TASKS: Final = 200
#: Seconds from which a handler runs for long.
_LONG_S: Final = 180.0


def workers(request: PageRequest) -> Page:
    """List the workers, the handlers that have run the longest, and the tasks."""
    found = request.sample.workers
    alive = [one for one in found if not one.is_gone]
    running = sorted((run for one in alive for run in one.running), key=lambda run: -run.seconds)
    wanted = request.query.get("task", "").strip().lower()
    paused: dict[str, int] = {}
    unpaused = ""
    try:
        paused = request.readings.paused_tasks.get()
    except ServerError as error:
        unpaused = str(error)  # their node of a Cluster is away, that of the workers is not
    known: dict[str, int] = {}
    for one in alive:
        for task in one.described.tasks or ():
            known[task] = known.get(task, 0) + 1
    tasks = sorted(name for name in {*known, *paused} if wanted in name.lower())
    # Paused ones first, so that they are not forgotten.
    tasks.sort(key=lambda name: name not in paused)
    return Page(
        "workers.html",
        "Workers",
        {
            "workers": [(one, tone_of(one)) for one in found],
            "alive": len(alive),
            "processes": sum(len(one.described.children) for one in alive),
            "handled": sum(one.described.handled_per_s for one in alive),
            "memory": sum(one.rss_bytes for one in alive),
            "running": running[:_RUNNING],
            "runs": len(running),
            "long_s": _LONG_S,
            "tasks": [(name, known.get(name, 0), paused.get(name)) for name in tasks[:_TASKS]],
            "more_tasks": max(0, len(tasks) - _TASKS),
            "wanted": wanted,
            "unpaused": unpaused,
        },
        card=True,
    )


def worker(request: PageRequest) -> Page:
    """Show one worker: its processes, the handlers that run in them, and their stacks if they are asked for."""
    found = _find(request)
    if found is None:
        return _gone(request)
    stacks, asked = None, request.query.get("stacks") == "1" and not request.live
    if asked and not found.is_gone:
        stacks = request.readings.stacks.of(found.name)
    return Page(
        "worker.html",
        found.name,
        {
            "worker": found,
            "tone": tone_of(found),
            "running": found.running,
            "long_s": _LONG_S,
            "asked": asked,
            "stacks": stacks,
        },
    )


def confirm_drain(request: PageRequest) -> Page:
    """Ask before a worker is drained."""
    found = _find(request)
    if found is None or found.is_gone:
        return _gone(request)
    number = len(found.running)
    return Question(
        sentence=f"It takes no more messages, and exits when {number:,} running "
        f"{'handler has' if number == 1 else 'handlers have'} ended. A service manager that always restarts it "
        "brings it back.",
        button="Drain this worker",
        to="/workers/drain",
        fields={"name": found.name},
        back=request.to("/worker", name=found.name),
    ).page(f"Drain {found.name}")


def tone_of(found: Worker) -> tuple[str, str]:
    """Describe the state of a worker, with its tone."""
    if found.is_gone:
        return "gone", "bad"
    return ("leaving", "warn") if found.described.leaving else ("alive", "good")


def _find(request: PageRequest) -> Worker | None:
    """Return the worker that the query names. Raises `UnavailableError` if the workers cannot be read now."""
    name = request.query.get("name", "")
    if (why := request.sample.unknown.get("workers")) is not None:
        raise UnavailableError(why)
    return next((one for one in request.sample.workers if one.name == name), None)


def _gone(request: PageRequest) -> Page:
    return Page("no_worker.html", "No such worker", {}, status=404)
