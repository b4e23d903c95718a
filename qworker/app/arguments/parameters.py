"""Parameters of a handler: names, kinds and resolved types, each with a decoder from JSON."""

from __future__ import annotations

import collections.abc
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Parameter as Source
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from msgspec import Raw

from qworker.app.arguments.failures import Failure, among_failures, decoder_among_failures
from qworker.app.arguments.models import model_decoder
from qworker.app.arguments.shapes import (
    foreign_class,
    forgets_keys,
    has_number_keys,
    key_problem,
    unknown_key,
)
from qworker.app.functions import namespace_of
from qworker.app.signatures import annotation_text, signature_of
from qworker.errors import InvalidOptionError

__all__ = ["Parameter", "item_of_batch", "parameters_of", "returned_by"]

_TYPES: Final = (
    "use str, int, float, bool, None, list, tuple, set, dict, datetime, date, time, timedelta, UUID, Decimal, bytes, "
    "Enum, Literal, a dataclass, TypedDict, msgspec.Struct or pydantic model, or leave it unannotated to take plain "
    "JSON"
)
_KEYS: Final = (
    "keys in JSON are text; use str, int, float, datetime, date, time, timedelta, UUID, Decimal, bytes, Enum, or "
    "Literal of text or of numbers"
)
_AWAITABLE: Final = (collections.abc.Awaitable, collections.abc.Coroutine)
_LISTS: Final = (list, collections.abc.Sequence)


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A parameter of a function: its type, and `decode` from the JSON of an argument to that type."""

    source: Source
    annotation: Any
    decode: Callable[[Raw], Any]
    has_number_keys: bool
    """Its type contains a dict with numbers as keys."""
    position: int | None
    """Index among the positional parameters; None for `*args` and keyword-only ones."""

    @property
    def is_special(self) -> bool:
        """Whether decoding takes more than msgspec: pydantic, or a check for undeclared keys of a TypedDict."""
        return not isinstance(getattr(self.decode, "__self__", None), msgspec.json.Decoder)

    @property
    def name(self) -> str:
        """The name."""
        return self.source.name

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.source.default is Source.empty and not (self.is_rest or self.is_rest_named)

    @property
    def is_named(self) -> bool:
        """Whether it can be given by name."""
        return self.source.kind in (Source.POSITIONAL_OR_KEYWORD, Source.KEYWORD_ONLY)

    @property
    def is_rest(self) -> bool:
        """Whether it is `*args`."""
        return self.source.kind is Source.VAR_POSITIONAL

    @property
    def is_rest_named(self) -> bool:
        """Whether it is `**kwargs`."""
        return self.source.kind is Source.VAR_KEYWORD

    def default(self) -> Any:
        """Return the default, the same object each time, as Python does."""
        return self.source.default

    def __str__(self) -> str:
        stars = "*" if self.is_rest else "**" if self.is_rest_named else ""
        type_text = "" if self.annotation is Any else f": {annotation_text(self.annotation)}"
        default = "" if self.source.default is Source.empty else " = ..."
        return f"{stars}{self.name}{type_text}{default}"


def parameters_of(function: Callable[..., object], task: str) -> list[Parameter]:
    """List the parameters of a handler.

    Raises `InvalidOptionError` for the field `task(parameter)` if its annotation cannot be resolved or decoded.
    """
    try:
        sources = signature_of(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise InvalidOptionError(
            task, f"has no readable signature: {error}", "a task is a plain function"
        ) from error
    namespace = namespace_of(function)
    parameters = []
    for index, source in enumerate(sources):
        field = f"{task}({source.name})"
        annotation = _resolved(source, namespace, field)
        by_position = source.kind in (Source.POSITIONAL_ONLY, Source.POSITIONAL_OR_KEYWORD)
        position = index if by_position else None
        parameters.append(Parameter(source, annotation, *_decoder(annotation, field), position))
    return parameters


def item_of_batch(parameters: list[Parameter], task: str) -> Parameter:
    """Turn the parameter `list[T]` of a batch handler into its item, a T given by position."""
    limit = "a batch handler takes one parameter, annotated list[T]"
    if len(parameters) != 1 or parameters[0].position is None:
        raise InvalidOptionError(task, f"takes ({', '.join(map(str, parameters))})", limit)
    (batch,) = parameters
    field = f"{task}({batch.name})"
    if batch.annotation is Any or batch.annotation is list:
        item: Any = Any
    elif typing.get_origin(batch.annotation) in _LISTS:
        (item,) = typing.get_args(batch.annotation)
    else:
        raise InvalidOptionError(field, f"is annotated {annotation_text(batch.annotation)}", limit)
    source = batch.source.replace(kind=Source.POSITIONAL_ONLY, default=Source.empty)
    decode, has_numbers = _decoder(item, field)
    return replace(
        batch, source=source, annotation=item, decode=decode, has_number_keys=has_numbers
    )


def returned_by(function: Callable[..., object], task: str) -> Parameter:
    """Describe what a handler returns, or what awaiting it gives, as a parameter named result.

    Raises `InvalidOptionError` for the field `task(result)` as `parameters_of` does for a parameter.
    """
    try:
        annotation = signature_of(function).return_annotation
    except ValueError:  # a class of Python's own, such as int, as a step of a run
        annotation = Source.empty
    source = Source("result", Source.KEYWORD_ONLY, annotation=annotation)
    field = f"{task}(result)"
    resolved = _resolved(source, namespace_of(function), field)
    if typing.get_origin(resolved) in _AWAITABLE:
        resolved = typing.get_args(resolved)[-1]
    return Parameter(source, resolved, *_decoder(resolved, field), None)


def _resolved(source: Source, namespace: dict[str, Any], field: str) -> Any:
    """Evaluate an annotation, which may be text (`from __future__ import annotations`)."""
    if source.annotation is Source.empty:
        return Any
    holder = SimpleNamespace(__annotations__={source.name: source.annotation})
    try:
        annotation = typing.get_type_hints(holder, namespace, include_extras=True)[source.name]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InvalidOptionError(
            field,
            f"is annotated {annotation_text(source.annotation)}, which cannot be resolved: {error}",
            "import or define the type at module level (not under `if TYPE_CHECKING:`), "
            "or leave the parameter unannotated",
        ) from error
    return Any if annotation is object else annotation


def _decoder(annotation: Any, field: str) -> tuple[Callable[[Raw], Any], bool]:
    """Make a decoder from JSON to a type, and say whether the type has numbers as keys."""
    value, with_failures = among_failures(annotation)
    if with_failures and value is not Failure:
        of_value, has_numbers = _decoder(value, field)
        return decoder_among_failures(of_value), has_numbers
    shown = annotation_text(annotation)
    try:
        decode = model_decoder(annotation)
        is_model = decode is not None
        decode = decode or msgspec.json.Decoder(annotation).decode
        info = _type_info(annotation, is_model=is_model)
    except (TypeError, ValueError, NameError, AttributeError) as error:
        problem = f"is annotated {shown}: {error}"
        raise InvalidOptionError(field, problem.replace("\n", " "), _TYPES) from error
    foreign = None if is_model else foreign_class(info)
    if foreign is not None:
        name = annotation_text(foreign)
        inside = "" if name == shown else f" (it contains {name})"
        raise InvalidOptionError(
            field, f"is annotated {shown}{inside}, which JSON cannot be converted to", _TYPES
        )
    problem_of_keys = key_problem(info)
    if problem_of_keys is not None:
        raise InvalidOptionError(field, f"is annotated {shown}: {problem_of_keys}", _KEYS)
    if forgets_keys(info):
        decode = _refusing_unknown_keys(decode, info)
    return decode, has_number_keys(info)


def _type_info(annotation: Any, *, is_model: bool) -> msgspec.inspect.Type:
    """Return msgspec's view of a type; Any for one that only pydantic understands."""
    try:
        return msgspec.inspect.type_info(annotation)
    except TypeError:
        if is_model:
            return msgspec.inspect.AnyType()
        raise


def _refusing_unknown_keys(
    decode: Callable[[Raw], Any], info: msgspec.inspect.Type
) -> Callable[[Raw], Any]:
    """Refuse keys that a TypedDict does not declare; decoding drops them."""

    def strict(raw: Raw) -> Any:
        unknown = unknown_key(info, msgspec.json.decode(raw))
        if unknown:
            path, problem = unknown
            raise msgspec.ValidationError(f"{problem} - at `${path}`")
        return decode(raw)

    return strict
