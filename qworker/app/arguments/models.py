"""Pydantic models as arguments. Pydantic is never imported here, only used if the application has imported it.

A parameter whose annotation contains a model at any depth (`list[Order]`, `Order | None`, a dataclass with an Order) is
converted by pydantic alone, by the rules of the model; all others are converted by msgspec.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from typing import Any

__all__ = ["model_decoder", "model_error"]


def model_decoder(annotation: Any) -> Callable[[Any], Any] | None:
    """Return a decoder from JSON to a type that contains a model; None for a type without one.

    Raises `TypeError` for a type that pydantic does not know.
    """
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is None or not _holds_model(annotation, pydantic.BaseModel, set()):
        return None
    try:
        validate: Callable[[bytes], Any] = pydantic.TypeAdapter(annotation).validate_json
    except pydantic.errors.PydanticUserError as error:
        raise TypeError(error.message) from error
    return lambda raw: validate(bytes(raw))


def model_error(error: BaseException) -> tuple[str, str] | None:
    """Return path and problem of pydantic's first finding; None for another error."""
    core: Any = sys.modules.get("pydantic_core")
    if core is None or not isinstance(error, core.ValidationError):
        return None
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    more = error.error_count() - 1
    return path, f"{first['msg']}{f' (and {more} more)' if more else ''}"


def _holds_model(annotation: Any, model: type, seen: set[int]) -> bool:
    if id(annotation) in seen:
        return False
    seen.add(id(annotation))
    if isinstance(annotation, type) and not typing.get_args(annotation):
        if issubclass(annotation, model):
            return True
        if not dataclasses.is_dataclass(annotation) and not typing.is_typeddict(annotation):
            return False
        try:
            inside = typing.get_type_hints(annotation, include_extras=True).values()
        except (NameError, TypeError, AttributeError):
            return False  # msgspec's decoder names the problem
        return any(_holds_model(part, model, seen) for part in inside)
    return any(_holds_model(part, model, seen) for part in typing.get_args(annotation))
