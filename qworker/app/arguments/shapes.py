"""What the type of a parameter contains: dict keys, TypedDicts, and classes that JSON cannot be converted to.

Keys in JSON are text. Numbers, dates, UUIDs and Enum members are written as text and converted back by their
annotation; key types that cannot be converted back are refused when the task is declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from msgspec import inspect as types

__all__ = [
    "foreign_class",
    "forgets_keys",
    "has_number_keys",
    "key_problem",
    "types_in",
    "unknown_key",
]

#: Key types that msgspec writes as text.
_TEXT_KEYS: Final = (
    types.DateTimeType,
    types.DateType,
    types.TimeType,
    types.TimeDeltaType,
    types.UUIDType,
    types.DecimalType,
    types.BytesType,
)
_NUMBER_KEYS: Final = (types.IntType, types.FloatType)
_OF_ITEMS: Final = (
    types.ListType,
    types.SetType,
    types.FrozenSetType,
    types.VarTupleType,
    types.CollectionType,
)
_OF_FIELDS: Final = (
    types.TypedDictType,
    types.StructType,
    types.DataclassType,
    types.NamedTupleType,
)


def types_in(info: object) -> Iterator[types.Type]:
    """List a type and all types inside it, each once."""
    seen: set[int] = set()
    rest = [info]
    while rest:
        part = rest.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tuple):
            rest.extend(reversed(part))
        elif isinstance(part, types.Type | types.Field):
            if isinstance(part, types.Type):
                yield part
            rest.extend(getattr(part, name) for name in reversed(part.__struct_fields__))


def foreign_class(info: types.Type) -> type | None:
    """Find a class that msgspec does not know: it accepts the type, but would fail at the first message."""
    for part in types_in(info):
        if isinstance(part, types.CustomType) and part.cls is not object:
            return part.cls
    return None


def key_problem(info: types.Type) -> str | None:
    """Say which keys of a dict cannot be converted back; None if all can."""
    for part in types_in(info):
        if isinstance(part, types.DictType):
            problem = _problem_of(part.key_type)
            if problem:
                return problem
    return None


def _problem_of(key: types.Type) -> str | None:
    members = key.types if isinstance(key, types.UnionType) else (key,)
    for member in members:
        if isinstance(member, types.LiteralType):
            if len({type(value) for value in member.values}) > 1:
                return "its keys are text and numbers, which JSON cannot distinguish"
        elif not isinstance(
            member, (types.AnyType, types.StrType, types.EnumType, *_TEXT_KEYS, *_NUMBER_KEYS)
        ):
            name = type(member).__name__.removesuffix("Type").lower()
            return f"its keys are of type {name}, which cannot be a JSON key"
    if len(members) > 1 and not all(isinstance(member, _NUMBER_KEYS) for member in members):
        return "its keys are of several types, which JSON cannot distinguish"
    return None


def has_number_keys(info: types.Type) -> bool:
    """Whether a dict in the type has numbers as keys."""
    return any(
        isinstance(part, types.DictType) and not _are_texts(part.key_type)
        for part in types_in(info)
    )


def _are_texts(key: types.Type) -> bool:
    if isinstance(key, types.LiteralType):
        return all(isinstance(value, str) for value in key.values)
    if isinstance(key, types.EnumType):
        return all(isinstance(member.value, str) for member in key.cls)
    return not isinstance(key, (types.UnionType, *_NUMBER_KEYS))


def forgets_keys(info: types.Type) -> bool:
    """Whether the type contains a TypedDict: decoding drops keys that it does not declare."""
    return any(isinstance(part, types.TypedDictType) for part in types_in(info))


def unknown_key(info: types.Type, value: Any, path: str = "") -> tuple[str, str] | None:
    """Find the first key that a TypedDict does not declare; returns its path and the problem. `value` is plain JSON.

    Ignores values that do not fit their type in other ways.
    """
    for inner, member, step in _members(info, value):
        if isinstance(inner, str):
            return path, inner
        unknown = unknown_key(inner, member, path + step)
        if unknown:
            return unknown
    return None


def _members(info: types.Type, value: Any) -> Iterator[tuple[types.Type | str, Any, str]]:
    """Yield type, value and path step of each member of a value; for an undeclared key the problem, None and ''."""
    if isinstance(info, types.UnionType):
        yield from ((inner, value, "") for inner in info.types if _may_be(inner, value))
    elif isinstance(info, types.DictType) and isinstance(value, dict):
        yield from ((info.value_type, member, "[...]") for member in value.values())
    elif isinstance(info, _OF_ITEMS) and isinstance(value, list):
        yield from ((info.item_type, item, f"[{at}]") for at, item in enumerate(value))
    elif isinstance(info, types.TupleType) and isinstance(value, list):
        inside = zip(info.item_types, value, strict=False)
        yield from ((inner, item, f"[{at}]") for at, (inner, item) in enumerate(inside))
    elif isinstance(info, _OF_FIELDS) and isinstance(value, list):
        first = int(isinstance(info, types.StructType) and info.tag is not None)
        fields = zip(info.fields, value[first:], strict=False)
        yield from ((field.type, item, f"[{at}]") for at, (field, item) in enumerate(fields, first))
    elif isinstance(info, _OF_FIELDS) and isinstance(value, dict):
        declared = {field.encode_name: field.type for field in info.fields}
        for key, member in value.items():
            if key in declared:
                yield declared[key], member, f".{key}"
            elif isinstance(info, types.TypedDictType):
                close = get_close_matches(key, declared, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                yield (
                    f"has the key {key!r}, which {info.cls.__name__} does not declare{hint}",
                    None,
                    "",
                )


def _may_be(info: types.Type, value: Any) -> bool:
    """Whether a value can be this member of a union; tags distinguish Structs."""
    if not isinstance(info, types.StructType) or info.tag is None:
        return True
    if isinstance(value, dict):
        return bool(value.get(info.tag_field) == info.tag)
    return isinstance(value, list) and value[:1] == [info.tag]
