"""What the type of a parameter holds: keys, TypedDicts, and classes that JSON cannot be converted to.

JSON has text as keys alone. Numbers, dates, UUIDs and members of an Enum are written as text and come back by their
annotation; what cannot come back as it was is refused when a task is declared.
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

#: Keys that are text in Python or in JSON by a form of their own.
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
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, tuple):
            rest.extend(reversed(each))
        elif isinstance(each, types.Type | types.Field):
            if isinstance(each, types.Type):
                yield each
            rest.extend(getattr(each, name) for name in reversed(each.__struct_fields__))


def foreign_class(info: types.Type) -> type | None:
    """Find a class that msgspec knows nothing of: it takes it here and fails at the first message."""
    for each in types_in(info):
        if isinstance(each, types.CustomType) and each.cls is not object:
            return each.cls
    return None


def key_problem(info: types.Type) -> str | None:
    """Say which keys of a dict would not come back as they were sent; None where all do."""
    for each in types_in(info):
        if isinstance(each, types.DictType):
            problem = _problem_of(each.key_type)
            if problem:
                return problem
    return None


def _problem_of(key: types.Type) -> str | None:
    members = key.types if isinstance(key, types.UnionType) else (key,)
    for each in members:
        if isinstance(each, types.LiteralType):
            if len({type(value) for value in each.values}) > 1:
                return "its keys are text and numbers, which JSON does not tell apart"
        elif not isinstance(
            each, (types.AnyType, types.StrType, types.EnumType, *_TEXT_KEYS, *_NUMBER_KEYS)
        ):
            name = type(each).__name__.removesuffix("Type").lower()
            return f"its keys are of type {name}, which has no form as a JSON key"
    if len(members) > 1 and not all(isinstance(each, _NUMBER_KEYS) for each in members):
        return "its keys are of several types, which JSON does not tell apart"
    return None


def has_number_keys(info: types.Type) -> bool:
    """Whether a dict in the type has keys that are numbers, so text only in JSON."""
    return any(
        isinstance(each, types.DictType) and not _are_texts(each.key_type)
        for each in types_in(info)
    )


def _are_texts(key: types.Type) -> bool:
    if isinstance(key, types.LiteralType):
        return all(isinstance(value, str) for value in key.values)
    if isinstance(key, types.EnumType):
        return all(isinstance(member.value, str) for member in key.cls)
    return not isinstance(key, (types.UnionType, *_NUMBER_KEYS))


def forgets_keys(info: types.Type) -> bool:
    """Whether decoding leaves out keys that a TypedDict in the type does not declare."""
    return any(isinstance(each, types.TypedDictType) for each in types_in(info))


def unknown_key(info: types.Type, value: Any, path: str = "") -> tuple[str, str] | None:
    """Find the first key that a TypedDict does not declare, as its path and the problem; `value` is plain JSON.

    What does not fit its type in another way is passed over.
    """
    for inner, member, step in _members(info, value):
        if isinstance(inner, str):
            return path, inner
        found = unknown_key(inner, member, path + step)
        if found:
            return found
    return None


def _members(info: types.Type, value: Any) -> Iterator[tuple[types.Type | str, Any, str]]:
    """List what is inside of a value with the type that it has there, or the problem with a key."""
    if isinstance(info, types.UnionType):
        yield from ((each, value, "") for each in info.types if _may_be(each, value))
    elif isinstance(info, types.DictType) and isinstance(value, dict):
        yield from ((info.value_type, each, "[...]") for each in value.values())
    elif isinstance(info, _OF_ITEMS) and isinstance(value, list):
        yield from ((info.item_type, each, f"[{at}]") for at, each in enumerate(value))
    elif isinstance(info, types.TupleType) and isinstance(value, list):
        inside = zip(info.item_types, value, strict=False)
        yield from ((inner, each, f"[{at}]") for at, (inner, each) in enumerate(inside))
    elif isinstance(info, _OF_FIELDS) and isinstance(value, list):
        first = int(isinstance(info, types.StructType) and info.tag is not None)
        fields = zip(info.fields, value[first:], strict=False)
        yield from ((field.type, each, f"[{at}]") for at, (field, each) in enumerate(fields, first))
    elif isinstance(info, _OF_FIELDS) and isinstance(value, dict):
        declared = {field.encode_name: field.type for field in info.fields}
        for key, each in value.items():
            if key in declared:
                yield declared[key], each, f".{key}"
            elif isinstance(info, types.TypedDictType):
                close = get_close_matches(key, declared, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                yield (
                    f"has the key {key!r}, which {info.cls.__name__} does not declare{hint}",
                    None,
                    "",
                )


def _may_be(info: types.Type, value: Any) -> bool:
    """Whether a value is that member of a union: of several Structs, the one of its tag."""
    if not isinstance(info, types.StructType) or info.tag is None:
        return True
    if isinstance(value, dict):
        return bool(value.get(info.tag_field) == info.tag)
    return isinstance(value, list) and value[:1] == [info.tag]
