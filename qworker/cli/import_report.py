"""What an import found and did, for people and programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.attributes import read_attributes
from qworker.cli.formats import count
from qworker.cli.screen import Cell, Column, note, print_json, print_line, print_table
from qworker.moving.waiting import State

if TYPE_CHECKING:
    from qworker.cli.import_course import Choice, Import

__all__ = ["print_found", "print_moved"]

_NAMED: Final = 10
_STATES: Final = (State.READY, State.DELAYED, State.IN_FLIGHT)


def print_found(found: Import) -> None:
    """Print what would go where, what becomes of functions and attributes, and what stays."""
    if not found.surveys:
        print_line(f"{found.system} has no queue on {found.server}")
        return
    columns = [Column("QUEUE"), Column("INTO")]
    columns += [Column(state.name.replace("_", " "), number=True) for state in _STATES]
    columns += [Column("STAYS", number=True), Column("WHY", wide=True)]
    rows: list[list[Cell | str]] = []
    for name, survey in found.surveys.items():
        stays = survey.reasons + survey.left
        numbers = [count(survey.states[state]) for state in _STATES]
        why = ", ".join(f"{count(number)} {reason}" for reason, number in stays.most_common())
        tone = "warn" if survey.reasons else ""
        rows.append([name, found.into[name], *numbers, count(stays.total()), Cell(why, tone)])
    print_table(columns, rows)
    if functions := _functions(found):
        print_line()
        print_table(
            [Column("FUNCTION", wide=True), Column("TASK"), Column("MESSAGES", number=True)],
            [[name, found.tasks[name], count(number)] for name, number in functions.most_common()],
        )
    for name, attributes in found.attributes.items():
        if attributes:
            texts = [
                f"{each.name} {each.text}" for each in read_attributes(attributes) if each.is_set
            ]
            print_line(f"{found.into[name]} takes over {', '.join(texts)}")
    _note_refused(found)


def print_moved(found: Import, choice: Choice) -> None:
    """Print what was moved."""
    total = found.total
    if choice.as_json:
        print_json(_document(found, choice))
    elif choice.dry_run:
        print_line(f"would move {count(found.movable, 'message')}; nothing was changed")
    elif not found.movable:
        print_line("nothing can be moved; nothing was changed")
    else:
        again = f", {count(total.known)} of which an earlier run had copied" if total.known else ""
        print_line(f"moved {count(total.stored + total.known, 'message')}{again}")
    if total.vanished:
        note(
            f"warning: {count(total.vanished, 'message')} were taken by a consumer of {found.system} "
            "while they were being moved: both will handle them"
        )


def _functions(found: Import) -> Counter[str]:
    return sum((each.functions for each in found.surveys.values()), Counter[str]())


def _note_refused(found: Import) -> None:
    named = [(name, each) for name, survey in found.surveys.items() for each in survey.refused]
    for name, each in named[:_NAMED]:
        detail = f": {each.detail}" if each.detail else ""
        note(f"stays: {name} {each.name}, {each.reason}{detail}")
    if found.refused > _NAMED:
        note(
            f"stays: {count(found.refused - min(len(named), _NAMED))} more (--json names 100 a queue)"
        )


def _document(found: Import, choice: Choice) -> dict[str, Any]:
    total = found.total
    return {
        "system": found.system,
        "from": found.server,
        "dry_run": choice.dry_run,
        "movable": found.movable,
        "moved": total.stored + total.known,
        "known": total.known,
        "vanished": total.vanished,
        "refused": found.refused,
        "queues": [
            {
                "queue": name,
                "into": found.into[name],
                **{state.value: survey.states[state] for state in _STATES},
                "refused": dict(survey.reasons),
                "left": dict(survey.left),
                "attributes": found.attributes.get(name, {}),
                "refused_messages": [
                    {"id": each.name, "reason": each.reason, "detail": each.detail}
                    for each in survey.refused
                ],
            }
            for name, survey in found.surveys.items()
        ],
        "tasks": [
            {"function": name, "task": found.tasks[name], "messages": number}
            for name, number in _functions(found).most_common()
        ],
    }
