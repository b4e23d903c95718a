"""Arguments of a task: bound as Python binds them, validated and converted by the annotations of its function.

Sends accept exactly what workers accept: `Signature.encode` writes the call and decodes it again. Conversion is strict
(`"5"` is not an int), except that text becomes a datetime, UUID, Decimal, bytes or Enum, an array a set or tuple, and
an object a dataclass or Struct: JSON has no other form for them.

Calls by position have a fast path, one precompiled decoder of the whole body (see calls.py). What it refuses goes to
the general path, which binds argument by argument and names the wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Raw

from qworker.app.arguments.models import model_error
from qworker.app.arguments.parameters import Parameter, item_of_batch, parameters_of
from qworker.errors import ArgumentsError
from qworker.wire import codec

__all__ = ["NO_KWARGS", "CallByPosition", "Signature"]

#: The kwargs of a call that has none.
NO_KWARGS: Final = Raw(b"{}")
_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_ERRORS: Final = (ValueError, RecursionError, msgspec.MsgspecError)


class CallByPosition(msgspec.Struct):
    """A body with decoded arguments: `args` is a Struct with a field per parameter, `kwargs` is still JSON."""

    args: Any
    kwargs: Raw


class Signature:
    """The parameters of a task's function, each with a decoder of its type.

    A batch handler has one parameter, `list[T]`; its calls carry one T, by position. Unannotated parameters take any
    JSON. Raises `InvalidOptionError`, which names the parameter, for an annotation that cannot be resolved or that JSON
    cannot be converted to.
    """

    __slots__ = (
        "_named",
        "_number_keys",
        "_parameters",
        "_positional",
        "_required",
        "_rest",
        "_rest_named",
        "_whole",
        "call_type",
        "task",
    )

    def __init__(self, function: Callable[..., object], task: str, *, batch: bool = False) -> None:
        self.task = task
        own = parameters_of(function, task)
        self._parameters = parameters = [item_of_batch(own, task)] if batch else own
        self._positional = [taker for taker in parameters if taker.position is not None]
        self._required = [taker for taker in parameters if taker.is_required]
        self._named = {taker.name: taker for taker in parameters if taker.is_named}
        #: Dicts may have numbers as keys; `encode` then checks that all of them come back.
        self._number_keys = any(taker.has_number_keys for taker in parameters)
        self._rest = next((taker for taker in parameters if taker.is_rest), None)
        self._rest_named = next((taker for taker in parameters if taker.is_rest_named), None)
        #: The type of a call's body; None if the function takes no calls by position, or only the general path can.
        self.call_type = self._call_type()
        self._whole = None if self.call_type is None else msgspec.json.Decoder(self.call_type)

    def __str__(self) -> str:
        return f"{self.task}({', '.join(map(str, self._parameters))})"

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Write the body of the call `task(*args, **kwargs)`; workers will accept it.

        Raises `ArgumentsError`, with the field `task(argument)`, and `InvalidBodyError` for values that JSON cannot
        carry.
        """
        body = codec.encode_call(self.task, args, kwargs, number_keys=self._number_keys)
        if kwargs or self._number_keys or not self._accepts(body):
            call = codec.decode_call(body)
            read, named = self.decode(call.args, call.kwargs)
            if self._number_keys:
                codec.check_number_keys(
                    {"args": args, "kwargs": kwargs}, {"args": read, "kwargs": named}
                )
        return body

    def encode_after_first(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[list[Raw], dict[str, Raw]]:
        """Write the arguments of a call but the first, which is the value of another call. Raises as `encode` does."""
        body = codec.encode_call(self.task, [None, *args], kwargs, number_keys=self._number_keys)
        call = codec.decode_call(body)
        given, named = _ARRAY.decode(call.args), _OBJECT.decode(call.kwargs)
        takers = self._takers(len(given))
        by_name = {name: self._taker(name, len(given)) for name in named}
        for required in self._required:
            if required not in takers and required not in by_name.values():
                raise self._error(required.name, "is missing")
        for taker, raw in zip(takers[1:], given[1:], strict=True):
            self._read(taker, taker.name, raw)
        for name, taker in by_name.items():
            self._read(taker, name, named[name])
        return given[1:], named

    def first(self) -> Parameter | None:
        """Return the parameter that takes the first argument by position; None if there is none."""
        return next(iter(self._positional), self._rest)

    def identify(self, body: bytes) -> bytes:
        """Return a digest of a call: the same whether arguments are given by position or by name."""
        call = codec.decode_call(body)
        given, named = _ARRAY.decode(call.args), _OBJECT.decode(call.kwargs)
        takers = self._takers(len(given))
        by_name = {
            taker.name: raw for taker, raw in zip(takers, given, strict=True) if taker.is_named
        }
        rest = [raw for taker, raw in zip(takers, given, strict=True) if not taker.is_named]
        written = msgspec.json.encode([self.task, rest, {**by_name, **named}])
        # The order of keys does not matter.
        written = msgspec.json.encode(msgspec.json.decode(written), order="deterministic")
        return blake2b(written, digest_size=16).hexdigest().encode()

    def check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise the errors of `encode`, at the same cost."""
        self.encode(args, kwargs)

    def decode(self, args: Raw, kwargs: Raw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the arguments of a call (a JSON array and a JSON object) to `(args, kwargs)` for the function.

        Raises `ArgumentsError`, with the field `task(argument)`, the problem and the declared type.
        """
        try:
            given, named = _ARRAY.decode(args), _OBJECT.decode(kwargs)
        except _ERRORS as error:
            raise self._error(
                None, f"got arguments that cannot be read: {_words(error)[1]}"
            ) from error
        takers = self._takers(len(given))
        takers_by_name = {name: self._taker(name, len(given)) for name in named}
        for required in self._required:
            # A positional-only parameter may share its name with a key of **kwargs.
            by_name = required.is_named and required.name in named
            if not by_name and required not in takers:
                raise self._error(required.name, "is missing")
        return (
            tuple(
                [
                    self._read(taker, taker.name, raw)
                    for taker, raw in zip(takers, given, strict=True)
                ]
            ),
            {name: self._read(taker, name, named[name]) for name, taker in takers_by_name.items()},
        )

    def _accepts(self, body: bytes) -> bool:
        """Whether the fast path takes a body that `encode_call` wrote, which is never too deep."""
        try:
            return self._whole is not None and self._whole.decode(body) is not None
        except _ERRORS:
            return False

    def _call_type(self) -> type[CallByPosition] | None:
        """Make the type of a body: the task is its tag, the arguments are an array, defaults may be left out."""
        if self._rest is not None or any(taker.position is None for taker in self._required):
            return None
        if any(taker.is_special for taker in self._parameters):
            return None
        # Numbered, because a Struct does not take every name of a parameter.
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            (f"p{index}", taker.annotation)
            if taker.is_required
            else (f"p{index}", taker.annotation, msgspec.field(default_factory=taker.default))
            for index, taker in enumerate(self._positional)
        ]
        arguments = msgspec.defstruct(
            "Arguments", fields, array_like=True, forbid_unknown_fields=True, gc=False
        )
        call: Any = msgspec.defstruct(
            "CallByPosition",
            [("args", arguments), ("kwargs", Raw, NO_KWARGS)],
            bases=(CallByPosition,),
            tag_field="task",
            tag=self.task,
            gc=False,
        )
        call_type: type[CallByPosition] = call
        return call_type

    def _takers(self, count: int) -> list[Parameter]:
        """List the parameters that take `count` arguments by position."""
        if count <= len(self._positional):
            return self._positional[:count]
        if self._rest is None:
            raise self._error(
                None, f"got {count} positional arguments and takes {len(self._positional)}"
            )
        return self._positional + [self._rest] * (count - len(self._positional))

    def _taker(self, name: str, count: int) -> Parameter:
        """Return the parameter that takes the argument `name`, given `count` arguments by position."""
        parameter = self._named.get(name, self._rest_named)
        if parameter is None:
            close = get_close_matches(name, self._named, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise self._error(name, f"is not a parameter{hint}")
        if parameter.position is not None and parameter.position < count:
            raise self._error(name, "is given twice, by position and by name")
        return parameter

    def _read(self, parameter: Parameter, name: str, raw: Raw) -> Any:
        try:
            return parameter.decode(raw)
        except _ERRORS as error:
            path, problem = _words(error)
            raise ArgumentsError(
                f"{self.task}({_shown(name)}{path})",
                problem,
                f"the parameter is declared as `{parameter}`",
            ) from error

    def _error(self, name: str | None, problem: str) -> ArgumentsError:
        field = self.task if name is None else f"{self.task}({_shown(name)})"
        return ArgumentsError(field, problem, f"the task is `{self}`")


_AT: Final = re.compile(r" - at `\$(.*)`\Z", re.DOTALL)
_LENGTH: Final = 200


def _words(error: Exception) -> tuple[str, str]:
    """Split an error of the decoder into the path inside the argument and the problem."""
    if isinstance(error, UnicodeDecodeError):
        return "", "is not UTF-8"
    if isinstance(error, RecursionError):
        return "", "is nested too deep"
    if model := model_error(error):
        path, problem = model
        return _shown(path), _shown(problem[:1].lower() + problem[1:])
    text = str(error)
    at = _AT.search(text)
    path = at.group(1) if at else ""
    problem = text[: at.start()] if at else text
    return _shown(path), _shown(problem[:1].lower() + problem[1:].replace("`", ""))


def _shown(text: str) -> str:
    # Escaped: text of a foreign body must not reach a terminal or a log raw.
    shown = ascii(text)[1:-1]
    return shown if len(shown) <= _LENGTH else shown[: _LENGTH - 3] + "..."
