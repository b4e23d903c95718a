"""Bodies for `qworker send`: from an argument, a file or a pipe; each checked before the first one is sent."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final

import click

from qworker.errors import InvalidBodyError, InvalidError, InvalidOptionError
from qworker.wire.codec import check_size, encode_call
from qworker.wire.names import check_task

__all__ = ["Bodies", "BodyOptions", "call_body", "open_bodies"]

#: Bytes of a pipe that are kept in memory, the rest in a temporary file; no single body is larger.
_SPOOL_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies to send: `total` of them, none over the size limit. Each iteration reads them again."""

    total: int
    _single: bytes = b""
    _lines: IO[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        if self._lines is None:
            for _ in range(self.total):
                yield self._single
            return
        self._lines.seek(0)
        for line in self._lines:
            if body := line.rstrip(b"\r\n"):
                yield body

    @property
    def first(self) -> bytes:
        """The first body; b"" if there is none."""
        return next(iter(self), b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """The options about bodies: BODY, --file, --task with arguments, --lines, --count."""

    body: str | None
    file: str | None
    lines: bool
    task: str | None
    args: tuple[str, ...]
    kwargs: tuple[str, ...]
    times: int

    @property
    def is_silent(self) -> bool:
        """Whether no option gives the body: then it is read from the pipe."""
        return self.body is None and self.file is None and self.task is None

    def check(self, *, unique: bool) -> None:
        """Raise `UsageError` for flags that exclude each other."""
        given = {"BODY": self.body, "--file": self.file, "--task": self.task}
        ways = [name for name, way in given.items() if way is not None]
        if len(ways) > 1:
            raise click.UsageError(f"{ways[0]} and {ways[1]} exclude each other")
        if (self.args or self.kwargs) and self.task is None:
            raise click.UsageError("--arg and --kwarg require --task")
        if self.lines and (self.times > 1 or self.task is not None):
            raise click.UsageError("--lines excludes --count and --task")
        if unique and (self.lines or self.times > 1):
            raise click.UsageError("--unique admits one message: it excludes --lines and --count")
        if self.is_silent and sys.stdin.isatty():
            raise click.UsageError("nothing to send: give BODY, --file or --task, or - to type it")

    def own_body(self) -> bytes | None:
        """Return the body that the command line gives; None if it is in a file or pipe.

        Raises `InvalidError` naming the flag.
        """
        if self.task is not None:
            return call_body(self.task, self.args, self.kwargs)
        return None if self.body is None or self.body == "-" else os.fsencode(self.body)


def call_body(task: str, args: Sequence[str], kwargs: Sequence[str]) -> bytes:
    """Write the call of a task, its arguments given as JSON. Raises `InvalidError` naming the flag."""
    named = {}
    for pair in kwargs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidOptionError(
                "--kwarg", f"{ascii(pair)[:80]} has no name", "write NAME=JSON"
            )
        named[name] = _json(text, f"--kwarg {name}")
    return encode_call(check_task(task, "--task"), [_json(text, "--arg") for text in args], named)


@contextmanager
def open_bodies(source: BodyOptions, maxsize: int) -> Iterator[Bodies]:
    """Open the bodies, none of which may be larger than `maxsize` bytes.

    Raises `BodyTooLargeError` (for lines naming the line), `InvalidOptionError` and `UsageError` (nothing in the
    pipe) before anything can be sent.
    """
    with _opened(source.own_body(), source.file, again=source.lines) as stream:
        bodies = (
            _counted(stream, maxsize)
            if source.lines
            else Bodies(source.times, _single(stream, maxsize))
        )
        if source.is_silent and not bodies.first:
            raise click.UsageError(
                "nothing to send: the pipe is empty; give BODY, --file or --task"
            )
        yield bodies


def _single(stream: IO[bytes], maxsize: int) -> bytes:
    # Not read whole: a file that was named by mistake may be endless.
    body = stream.read(_SPOOL_BYTES + 1)
    if len(body) > _SPOOL_BYTES:
        raise InvalidBodyError(
            "body", "is larger than 64 MiB", f"the limit (maxsize) is {maxsize} bytes"
        )
    check_size(body, maxsize)
    return body


def _counted(source: IO[bytes], maxsize: int) -> Bodies:
    total = 0
    for number, line in enumerate(source, 1):
        stripped = line.rstrip(b"\r\n")
        if len(stripped) > maxsize:
            raise InvalidBodyError(
                f"line {number}",
                f"is {len(stripped)} bytes",
                f"the limit (maxsize) is {maxsize} bytes; nothing was sent",
            )
        total += bool(stripped)
    return Bodies(total, _lines=source)


@contextmanager
def _opened(body: bytes | None, file: str | None, *, again: bool) -> Iterator[IO[bytes]]:
    """Open the source of the body; with `again` it can be read twice."""
    if body is not None:
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as source:
            source.write(body)
            source.seek(0)
            yield source
        return
    if file is not None and file != "-":
        try:
            opened: IO[bytes] = open(file, "rb")  # noqa: SIM115  closed below; errors of the caller are not ours
        except OSError as error:
            raise InvalidOptionError(
                "--file",
                f"{ascii(file)[:200]} cannot be read: {error.strerror}",
                "pass a readable file",
            ) from error
        with opened:
            if again and not opened.seekable():
                with _spooled(opened) as source:
                    yield source
            else:
                yield opened
        return
    if sys.stdin.isatty():
        click.echo("reading the body from the terminal; end it with Ctrl-D", err=True)
    if not again:
        yield sys.stdin.buffer
        return
    with _spooled(sys.stdin.buffer) as source:
        yield source


@contextmanager
def _spooled(stream: Any) -> Iterator[IO[bytes]]:
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as source:
        while piece := stream.read(1024 * 1024):
            source.write(piece)
        source.seek(0)
        yield source


def _json(text: str, flag: str) -> Any:
    from qworker.wire.codec import decode

    try:
        return decode(text.encode("utf-8", "surrogateescape"))
    except InvalidError as error:
        raise InvalidOptionError(
            flag,
            f"{ascii(text)[:80]} is not JSON",
            f"write JSON, text in double quotes: {flag.split()[0]} '{json.dumps('text')}'",
        ) from error
