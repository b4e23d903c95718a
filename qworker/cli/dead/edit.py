"""Edit a dead letter: the new body comes from flags, a pipe or an editor, and is checked before it is written."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.output import Output
from qworker.cli.framework.suggestions import did_you_mean
from qworker.cli.framework.terminal import note
from qworker.errors import InvalidBodyError, InvalidError, InvalidOptionError
from qworker.wire.codec import decode, decode_call, encode

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter, Stored
    from qworker.client.queue import Queue

__all__ = ["Edit", "edit_dead_letter", "set_part"]

#: `kwargs.to`, `args[0]`, `items[2]["odd key"].price`: a name, an index or a quoted key at a time.
_STEP: Final = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """How to change a body: `changes` are PATH=JSON, `body` is the whole; without both an editor is opened."""

    changes: tuple[str, ...]
    body: str | None
    and_redrive: bool
    dry_run: bool


def edit_dead_letter(queue: Queue, dead_letter: DeadLetter, edit: Edit) -> Output:
    """Replace the body, and redrive the dead letter if that is wanted."""
    message, old_id = dead_letter.message, dead_letter.entry_id
    if message.unreadable:
        raise InvalidOptionError("body", message.closed, "give the key in QWORKER_KEYS_FILE")
    before = _read(message.body, "body")
    after = _followed_as_before(before, _edited(message, before, edit))
    difference = list(_difference(before, after))
    new_id, redriven = old_id, False
    if difference and not edit.dry_run:
        new_id = queue.edit_dead(old_id, after)
    if edit.and_redrive and not edit.dry_run:
        redriven = bool(queue.redrive(new_id))
    document = {
        "queue": queue.name,
        "entry_id": old_id,
        "new_entry_id": new_id,
        "changed": bool(difference),
        "redriven": redriven,
        "body": after,
        "dry_run": edit.dry_run,
    }
    return Output(
        document, [*difference, _result(queue.name, old_id, new_id, edit, redriven=redriven)]
    )


def set_part(body: Any, change: str) -> Any:
    """Set one part of a decoded body, in place, from `PATH=JSON`; returns the body. Raises `InvalidOptionError`.

    The index after the last one appends to a list; an object may get a new key, unless the body is a call of a task,
    which has only `args` and `kwargs`.
    """
    path, equals, text = change.partition("=")
    steps = _steps(path)
    if not equals or not steps:
        raise InvalidOptionError(
            "--set", f"{ascii(change)[:80]} is not PATH=JSON", "write 'kwargs.to=\"a@b.c\"'"
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


def _edited(message: Stored, before: Any, edit: Edit) -> Any:
    if edit.changes and edit.body is not None:
        raise click.UsageError("--set and --body exclude each other")
    if edit.body is not None:
        text = sys.stdin.buffer.read() if edit.body == "-" else os.fsencode(edit.body)
        return _checked(message, _read(text, "--body"))
    if edit.changes:
        after = decode(message.body)
        for change in edit.changes:
            after = set_part(after, change)
        return _checked(message, after)
    if not sys.stdin.isatty():
        raise click.UsageError("cannot open an editor: not a terminal; pass --set or --body")
    return _edited_by_hand(message, before)


def _edited_by_hand(message: Stored, before: Any) -> Any:
    text = "\n".join(_pretty(before)) + "\n"
    while True:
        saved = click.edit(text, extension=".json")
        if saved is None:
            return before
        try:
            body = _read(saved.encode("utf-8", "surrogateescape"), "edited body")
            return _checked(message, body)
        except InvalidError as error:
            note(f"error: {error}")
            text = saved
            if not click.confirm("Edit again?", default=True, err=True):
                note("nothing was changed")
                raise click.exceptions.Exit(1) from error


def _followed_as_before(before: Any, after: Any) -> Any:
    """Add the steps and the group of calls that follow a call, as `edit_dead` does, so that the difference is true."""
    if not _is_call(before) or not _is_call(after):
        return after
    kept = {name: before[name] for name in ("then", "gather") if name in before}
    return {**after, **{name: value for name, value in kept.items() if name not in after}}


def _checked(message: Stored, after: Any) -> Any:
    """Refuse a body that is not a call any more."""
    if message.task:
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
            flag, f"{ascii(text)[:80]} is not JSON", f"quote text: '\"{text[:40]}\"'"
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
            limit = did_you_mean(step, within, f"it has {', '.join(within) or 'none'}")
            raise InvalidOptionError(flag, f"the body has no {step!r} there", limit)
    elif isinstance(within, list) and isinstance(step, int):
        if step > len(within) - (not may_be_new):
            raise InvalidOptionError(
                flag,
                f"the body has no [{step}] there",
                f"the list has {len(within)} items, from [0]",
            )
    else:
        shown = f"[{step}]" if isinstance(step, int) else repr(step)
        use = "in a value that is neither an object nor a list"
        if isinstance(within, dict | list):
            use = "as a key of an object" if isinstance(within, dict) else "as an index into a list"
        raise InvalidOptionError(flag, f"cannot use {shown} {use}", "see qworker dead show")


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


def _result(queue: str, old_id: str, new_id: str, edit: Edit, *, redriven: bool) -> str:
    if edit.dry_run:
        return f"would edit {old_id} of {queue}; nothing was changed"
    if redriven:
        return f"edited and redriven {old_id} of {queue}"
    if new_id == old_id:
        return f"{old_id} of {queue} is unchanged"
    return f"edited {old_id} of {queue}; its new entry id is {new_id} (qworker dead redrive {queue} --id {new_id})"
