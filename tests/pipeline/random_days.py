"""Random histories of some days: messages, runs of workflows, and groups of calls."""

from __future__ import annotations

import random

from tests.pipeline.forging import EPOCH, Journal, at

__all__ = ["DAY", "GROUPS", "HOUR", "group", "history", "runs_and_groups", "step"]

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
#: How many groups of calls a history has, and how many runs.
GROUPS = 25


def life(rng: random.Random) -> list[tuple[str, int]]:
    """Some steps of a message, each with the ms after the one before."""
    pause = (1, 700, 30_000, 20 * MINUTE, 7 * HOUR, 30 * HOUR)
    steps = [("sent", 0)]
    for _ in range(rng.randint(0, 3)):
        held = rng.choice(["", ":rate", ":parent_concurrency", ":turn"])
        steps.append((f"delivered{held}", rng.choice(pause)))
        end = rng.choice(["nacked", "timed_out", "dead:rejected", "released", "acked", ""])
        if not end:
            break
        steps.append((end, rng.choice(pause)))
        if end == "acked":
            if rng.random() < 0.2:
                steps.append(("acked", 10 * MINUTE))  # a second end comes soon
            break
        if end.startswith("dead"):
            if rng.random() < 0.5:
                break
            steps.append(("redriven", rng.choice(pause)))
    return steps


def history(rng: random.Random, days: int) -> list[Journal]:
    """Two queues over some days, with entries that are missing and times without a journal."""
    journals = []
    for queue in ("emails", "orders"):
        journal = Journal(queue)
        for number in range(rng.randint(15, 40)):
            ms, text = rng.randrange(days * DAY), []
            for step, pause in life(rng):
                ms += pause
                event, _, reason = step.partition(":")
                text.append(f"{event}@{ms}{':' * bool(reason)}{reason}")
            task = rng.choice(["send_email", "resize"])
            journal.write(
                f"{queue}{number}", " ".join(text), task=task, worker=f"web-{number % 3}:1"
            )
        journal.rows = [row for row in journal.rows if row["ts"] < at(days * DAY)]
        if rng.random() < 0.6:
            begun = rng.randrange(days * DAY)
            for reason, ms in (("off", begun), ("all", begun + rng.randrange(20 * HOUR))):
                fields = {"event": "mode", "reason": reason, "ts": at(ms), "message_id": None}
                if ms < days * DAY:
                    journal.add(**fields)
        journal.sort()
        for _ in range(rng.randint(0, 3)):
            if (
                len(journal.rows) > 5
            ):  # trimmed before it was read: neither the first event nor the last
                del journal.rows[rng.randrange(1, len(journal.rows) - 1)]
        journals.append(journal)
    return journals


def step(journal: Journal, run: str, name: str, ms: float) -> None:
    """A step that a run records at its first attempt."""
    sent = at(journal.sent[run])
    fields = {"attempt": 1, "ts": at(ms), "sent_ts": sent, "ready_ts": sent, "task": None}
    journal.add(event="step", message_id=run, reason=f"{name}={hash(name) % 2**64:016x}", **fields)


def group(
    journal: Journal,
    name: str,
    begun: float,
    decided: float | None = None,
    *,
    size: int = 3,
    outcome: str = "ok",
    follows: str = "",
) -> None:
    """A group of calls that begins, and perhaps is decided."""
    word = f"{name}:{EPOCH + int(begun)}"
    of_none = {"message_id": None, "task": None, "attempt": 0}
    journal.add(
        event="group_begun",
        ts=at(begun),
        sent_ts=at(begun),
        reason=f"{word}:{size}:all:{follows or name}",
        **of_none,
    )
    if decided is not None:
        journal.add(
            event="group_decided",
            ts=at(decided),
            sent_ts=at(decided),
            reason=f"{word}:{outcome}:{follows or name}",
            **of_none,
        )


def runs_and_groups(rng: random.Random, days: int) -> list[Journal]:
    """A queue of runs that last for days, and one of groups that are decided on another day."""
    orders, video = Journal("runs"), Journal("video")
    for number in range(GROUPS):
        run, ms = f"r{number}", rng.randrange(days * DAY)
        orders.write(run, f"sent@{ms} delivered@{ms + 5}", task=rng.choice(["order", "ingest"]))
        for part in range(rng.randint(0, 3)):
            step(orders, run, f"s{part}", ms + 6 + part)
            pause = rng.choice((50, HOUR, 30 * HOUR))
            reason = rng.choice(("sleep", "signal", "gather"))
            orders.write(run, f"released@{ms + 20}:{reason} delivered@{ms + 20 + pause}")
            ms += 20 + pause
        if rng.random() < 0.7:
            end = rng.choice(("acked", "dead", "discarded"))
            orders.write(run, f"{end}@{ms + 9}")
        begun = rng.randrange(days * DAY)
        decided = begun + rng.choice((5, HOUR, 30 * HOUR)) if rng.random() < 0.7 else None
        outcome = rng.choice(("ok", "failed", "cancelled", "lost"))
        group(video, f"g{number}", begun, decided, size=rng.randint(1, 9), outcome=outcome)
    for journal in (orders, video):
        journal.rows = [row for row in journal.rows if row["ts"] < at(days * DAY)]
        journal.write("last", f"sent@{days * DAY - 1}")
        journal.sort()
    return [orders, video]
