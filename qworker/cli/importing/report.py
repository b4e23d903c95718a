"""The report of an import, as text and for `--json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.output import Block, Line, Note, Output, Table
from qworker.cli.framework.terminal import Cell, Column, note
from qworker.client.manage.attribute_text import read_attributes
from qworker.formats import count
from qworker.importers.source import State

if TYPE_CHECKING:
    from qworker.importers.outcome import Import

__all__ = ["moved_output", "survey_text"]

_NAMED: Final = 10
_STATES: Final = (State.READY, State.DELAYED, State.IN_FLIGHT)


def survey_text(imported: Import) -> Iterator[str | Block]:
    """List the moves, their tasks and attributes, and the messages that stay."""
    if not imported.surveys:
        yield f"{imported.system} has no queue on {imported.server}"
        return
    columns = [Column("QUEUE"), Column("INTO")]
    columns += [Column(state.name.replace("_", " "), number=True) for state in _STATES]
    columns += [Column("STAYS", number=True), Column("WHY", wide=True)]
    rows: list[list[Cell | str]] = []
    for name, survey in imported.surveys.items():
        stays = survey.reasons + survey.left
        numbers = [count(survey.states[state]) for state in _STATES]
        why = ", ".join(f"{count(number)} {reason}" for reason, number in stays.most_common())
        tone = "warn" if survey.reasons else ""
        rows.append([name, imported.into[name], *numbers, count(stays.total()), Cell(why, tone)])
    yield Table(columns, rows)
    if functions := _functions(imported):
        yield Line()
        yield Table(
            [Column("FUNCTION", wide=True), Column("TASK"), Column("MESSAGES", number=True)],
            [
                [name, imported.tasks[name], count(number)]
                for name, number in functions.most_common()
            ],
        )
    for name, stored in imported.attributes.items():
        if stored:
            texts = [f"{one.name} {one.text}" for one in read_attributes(stored) if one.is_set]
            yield f"{imported.into[name]} gets {', '.join(texts)}"
    yield from _refused(imported)


def moved_output(imported: Import, *, dry_run: bool) -> Output:
    """Report the messages moved, or to be moved."""
    total = imported.total
    if dry_run:
        text = f"would move {count(imported.movable, 'message')}; nothing was changed"
    elif not imported.movable:
        text = "nothing can be moved; nothing was changed"
    else:
        again = f", {count(total.known)} of which an earlier run had copied" if total.known else ""
        text = f"moved {count(total.stored + total.known, 'message')}{again}"
    if total.vanished:
        note(
            f"warning: consumers of {imported.system} took {count(total.vanished, 'message')} during the import: "
            "both systems will handle them"
        )
    return Output(_document(imported, dry_run=dry_run), text)


def _functions(imported: Import) -> Counter[str]:
    return sum((survey.functions for survey in imported.surveys.values()), Counter[str]())


def _refused(imported: Import) -> Iterator[Note]:
    refused = [(name, one) for name, survey in imported.surveys.items() for one in survey.refused]
    for name, message in refused[:_NAMED]:
        detail = f": {message.detail}" if message.detail else ""
        yield Note(f"stays: {name} {message.name}, {message.reason}{detail}")
    if imported.refused > _NAMED:
        more = count(imported.refused - min(len(refused), _NAMED))
        yield Note(f"stays: {more} more (--json lists 100 per queue)")


def _document(imported: Import, *, dry_run: bool) -> dict[str, Any]:
    total = imported.total
    return {
        "system": imported.system,
        "from": imported.server,
        "dry_run": dry_run,
        "movable": imported.movable,
        "moved": total.stored + total.known,
        "known": total.known,
        "vanished": total.vanished,
        "refused": imported.refused,
        "queues": [
            {
                "queue": name,
                "into": imported.into[name],
                **{state.value: survey.states[state] for state in _STATES},
                "refused": dict(survey.reasons),
                "left": dict(survey.left),
                "attributes": imported.attributes.get(name, {}),
                "refused_messages": [
                    {"id": message.name, "reason": message.reason, "detail": message.detail}
                    for message in survey.refused
                ],
            }
            for name, survey in imported.surveys.items()
        ],
        "tasks": [
            {"function": name, "task": imported.tasks[name], "messages": number}
            for name, number in _functions(imported).most_common()
        ],
    }
