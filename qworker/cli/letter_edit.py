"""Editing a dead letter: the new body from flags, a pipe or an editor, checked before anything is written."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.screen import note, print_json, print_line
from qworker.errors import InvalidBodyError, InvalidError, InvalidOptionError
from qworker.wire.codec import decode, decode_call, encode

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter
    from qworker.client.queue import Queue

__all__ = ["Edit", "edit_letter", "set_part"]

#: `kwargs.to`, `args[0]`, `items[2]["odd key"].price`: a name, an index or a quoted key at a time.
_STEP: Final = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What is to become of a body: `changes` are PATH=JSON, `body` the whole; without both an editor is opened."""

    changes: tuple[str, ...]
    body: str | None
    and_redrive: bool
    dry_run: bool
    as_json: bool


def edit_letter(place: Queue, letter: DeadLetter, edit: Edit) -> None:
    """Write the letter anew with the changed body, and redrive it if that is wanted."""
    if letter.message.unreadable:
        raise InvalidOptionError(
            "the body of this letter", letter.message.closed, "give the key in QWORKER_KEYS_FILE"
        )
    before = _read(letter.message.body, "the body of this letter")
    after = _changed(letter, before, edit)
    lines = list(_difference(before, after))
    new_id, redriven = letter.entry_id, False
    if lines and not edit.dry_run:
        new_id = place.edit_dead(letter.entry_id, after)
    if edit.and_redrive and not edit.dry_run:
        redriven = bool(place.redrive(new_id))
    if edit.as_json:
        print_json(
            {
                "queue": place.name,
                "entry_id": letter.entry_id,
                "new_entry_id": new_id,
                "changed": bool(lines),
                "redriven": redriven,
                "body": after,
                "dry_run": edit.dry_run,
            }
        )
        return
    for line in lines:
        print_line(line)
    print_line(_told(place.name, letter.entry_id, new_id, edit, redriven=redriven))


def set_part(body: Any, change: str) -> Any:
    """Set one part of a decoded body, in place, from `PATH=JSON`; returns the body. Raises `InvalidOptionError`.

    A list may be appended to, at the index behind its last one; an object may get a new key, except where the body
    is a call of a task: that has `args` and `kwargs` only.
    """
    path, equals, text = change.partition("=")
    steps = _steps(path)
    if not equals or not steps:
        raise InvalidOptionError(
            "--set", f"{ascii(change)[:80]} names no part", "write PATH=JSON: 'kwargs.to=\"a@b.c\"'"
        )
    value, flag = _json(text, f"--set {path}"), f"--set {path}"
    within = body
    if steps[0] == "kwargs" and len(steps) > 1 and _is_call(body):
        body.setdefault("kwargs", {})
    for step in steps[:-1]:
        _check_step(within, step, flag, may_be_new=False)
        within = within[step]
    last = steps[-1]
    _check_step(within, last, flag, may_be_new=not (within is body and _is_call(body)))
    if isinstance(within, list) and last == len(within):
        within.append(value)
    else:
        within[last] = value
    return body


def _changed(letter: DeadLetter, before: Any, edit: Edit) -> Any:
    if edit.changes and edit.body is not None:
        raise click.UsageError("--set and --body both say what the body is; give one of them")
    if edit.body is not None:
        text = sys.stdin.buffer.read() if edit.body == "-" else os.fsencode(edit.body)
        return _checked(letter, _read(text, "--body"))
    if edit.changes:
        after = decode(letter.message.body)
        for change in edit.changes:
            after = set_part(after, change)
        return _checked(letter, after)
    if not sys.stdin.isatty():
        raise click.UsageError(
            "no editor without a terminal: say what to change by --set or --body"
        )
    return _edited(letter, before)


def _edited(letter: DeadLetter, before: Any) -> Any:
    text = "\n".join(_pretty(before)) + "\n"
    while True:
        saved = click.edit(text, extension=".json")
        if saved is None:
            return before
        try:
            return _checked(
                letter, _read(saved.encode("utf-8", "surrogateescape"), "what was saved")
            )
        except InvalidError as error:
            note(f"error: {error}")
            text = saved
            if not click.confirm("Edit it again?", default=True, err=True):
                note("nothing was changed")
                raise click.exceptions.Exit(1) from error


def _checked(letter: DeadLetter, after: Any) -> Any:
    """Refuse a call that would be none afterwards."""
    if letter.message.task:
        decode_call(encode(after))
    return after


def _read(text: bytes, where: str) -> Any:
    try:
        return decode(text)
    except InvalidBodyError as error:
        raise error.at(where) from error


def _json(text: str, flag: str) -> Any:
    try:
        return decode(os.fsencode(text))
    except InvalidBodyError as error:
        raise InvalidOptionError(
            flag, f"{ascii(text)[:80]} is no JSON", f"text is written in quotes: '\"{text[:40]}\"'"
        ) from error


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            return []
        name, index, quoted = match.groups()
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name if name is not None else json.loads(f'"{quoted}"'))
        at = match.end()
    return steps


def _check_step(within: Any, step: str | int, flag: str, *, may_be_new: bool) -> None:
    if isinstance(within, dict) and isinstance(step, str):
        if step not in within and not may_be_new:
            near = get_close_matches(step, list(within), 1)
            limit = (
                f"did you mean {near[0]!r}?" if near else f"it has {', '.join(within) or 'none'}"
            )
            raise InvalidOptionError(flag, f"the body has no {step!r} there", limit)
    elif isinstance(within, list) and isinstance(step, int):
        if step > len(within) - (not may_be_new):
            raise InvalidOptionError(
                flag, f"the body has no [{step}] there", f"the list has {len(within)}, from [0] on"
            )
    else:
        kind = "neither object nor list"
        if isinstance(within, dict | list):
            kind = "an object" if isinstance(within, dict) else "a list"
        shown = f"[{step}]" if isinstance(step, int) else repr(step)
        raise InvalidOptionError(flag, f"{shown} is sought in what is {kind}", "see: dead show")


def _is_call(body: Any) -> bool:
    try:
        return bool(decode_call(encode(body)).task)
    except InvalidBodyError:
        return False


def _pretty(value: Any) -> list[str]:
    return json.dumps(value, indent=2, ensure_ascii=False).split("\n")


def _difference(before: Any, after: Any) -> list[str]:
    lines = list(unified_diff(_pretty(before), _pretty(after), lineterm="", n=1))
    return [line for line in lines[2:] if not line.startswith("@@")]


def _told(queue: str, old_id: str, new_id: str, edit: Edit, *, redriven: bool) -> str:
    if edit.dry_run:
        return f"would edit {old_id} of {queue}; nothing was changed"
    if redriven:
        return f"edited and redriven {old_id} of {queue}"
    if new_id == old_id:
        return f"nothing was changed in {old_id} of {queue}"
    return f"edited {old_id} of {queue}; it is {new_id} now (qworker dead redrive {queue} --id {new_id})"
