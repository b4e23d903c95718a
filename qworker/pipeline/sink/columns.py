"""The columns that a write takes, and their types in Spark.

Any other column is refused: it would be lost silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from qworker.errors import InvalidOptionError
from qworker.pipeline.sink.options import WriteOptions

__all__ = ["DEAD_LETTER_COLUMNS", "MESSAGE_COLUMNS", "check_columns"]

_TEXT: Final = ("string", "varchar", "char")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
#: Column → the types it may have, by Spark's names.
MESSAGE_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": (*_TEXT, "binary"),
    "queue": _TEXT,
    "id": (*_TEXT, *_WHOLE),
    "delay": (*_TEXT, *_WHOLE),
    "ttl": (*_TEXT, *_WHOLE),
    "priority": _WHOLE,
}
DEAD_LETTER_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": _TEXT,
    "entry_id": _TEXT,
    "message_id": _TEXT,
}


def check_columns(columns: Mapping[str, str], options: WriteOptions) -> None:
    """Check the columns of the input, name → type as Spark writes it ("bigint").

    Raises `InvalidOptionError` naming the column that is missing, unknown or of a wrong type.
    """
    known = MESSAGE_COLUMNS if options.action == "send" else DEAD_LETTER_COLUMNS
    for name, kind in columns.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise InvalidOptionError(
                f"column {name}",
                f"cannot be used with action {options.action}",
                (f"did you mean {near[0]!r}? " if near else "")
                + f"it takes {', '.join(known)}; send_rows makes a body of all columns"
                if options.action == "send"
                else f"it takes {', '.join(known)}; select these",
            )
        if kind.partition("(")[0] not in known[name]:
            raise InvalidOptionError(
                f"column {name}", f"is of type {kind}", f"it must be {' or '.join(known[name])}"
            )
    if options.action == "send" and "body" not in columns:
        raise _missing("body", "send_rows makes one of all columns")
    if options.action != "send" and not {"entry_id", "message_id"} & set(columns):
        raise _missing("entry_id", "select it from the table 'dead', or message_id")
    if "queue" not in columns and options.queue is None:
        raise _missing("queue", "add it, or give the option queue")
    if options.action == "send" and options.idempotence == "ids" and "id" not in columns:
        raise _missing("id", "add it, or leave the option idempotence out")


def _missing(name: str, remedy: str) -> InvalidOptionError:
    return InvalidOptionError(f"column {name}", "is missing", remedy)
