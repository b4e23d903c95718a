"""Flags made of an options class, so that command line, environment and file take the same values.

    @flags_of(RunOptions)        --grace TEXT, --procs INTEGER …; collected into `given: dict[str, str | bool]`

Values stay text here, but for those of `--name` and `--no-name`: `qworker.config.loading.load` parses them, and names
the flag in its errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final

import click

from qworker.config.fields import Options, kinds_of
from qworker.config.kinds import ChoiceKind, DurationKind, FlagKind, IntegerKind, Kind, SizeKind

__all__ = ["flags_of"]

_METAVARS: Final[dict[type[Kind], str]] = {
    DurationKind: "DURATION",
    IntegerKind: "N",
    SizeKind: "SIZE",
}


def flags_of(
    options: type[Options], *, without: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a flag for each field of an options class; the function gets the ones that were given, as `given`."""
    left_out = set(without)
    kinds = {name: kind for name, kind in kinds_of(options).items() if name not in left_out}

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def collect(*args: Any, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name) for name in kinds}
            return function(
                *args, given={k: v for k, v in given.items() if v is not None}, **kwargs
            )

        decorated: Callable[..., Any] = collect
        for name, kind in reversed(kinds.items()):
            default = getattr(options(), name)
            decorated = _flag(name, kind, default)(decorated)
        return decorated

    return add


def _flag(name: str, kind: Kind, default: object) -> Callable[[Callable[..., Any]], Any]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(kind, FlagKind):
        text = f"{_sentence(kind.help)} [default: {'yes' if default else 'no'}]"
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    metavar = (
        "|".join(kind.choices)
        if isinstance(kind, ChoiceKind)
        else _METAVARS.get(type(kind), "TEXT")
    )
    return click.option(
        flag,
        name,
        metavar=metavar,
        help=_help(kind, default),
        shell_complete=_choices(kind),
    )


def _choices(kind: Kind) -> Callable[..., list[str]]:
    choices = kind.choices if isinstance(kind, ChoiceKind) else ()
    return lambda _context, _parameter, incomplete: [
        one for one in choices if one.startswith(incomplete)
    ]


def _help(kind: Kind, default: object) -> str:
    shown = kind.show(default) if default is not None else kind.none
    zero = f" 0: {kind.zero}." if kind.zero else ""
    return (
        f"{_sentence(kind.help)}{zero} [default: {shown}]" if shown else _sentence(kind.help) + zero
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
