"""Handlers: whether a function can be one, whether its calls are awaited, and its name.

Calling a generator function, plain or async, runs nothing, so it cannot be a task. Whether a function is async depends
on what the call reaches, not on what a decorator says that it wraps: `@wraps` around `asyncio.run` makes a plain
function of a coroutine function. What only the call can tell (a lambda that returns a coroutine) the worker checks on
the returned value.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from qworker.app.signatures import signature_of
from qworker.errors import InvalidNameError, InvalidOptionError, shown

__all__ = ["check_function", "default_name", "is_async", "namespace_of", "replaces", "wraps_async"]

_HANDLER: Final = "a task is a plain or async function that does its work when called"


def check_function(function: object, name: str = "task") -> None:
    """Raise `InvalidOptionError` for anything but a function that does its work when called."""
    if not callable(function):
        raise InvalidOptionError(
            name,
            f"{shown(function)} is not a function",
            "write @app.task above a function; options are given by name: @app.task(name='…')",
        )
    if isinstance(function, type):
        raise InvalidOptionError(
            name, f"{function.__qualname__} is a class: calling it makes an object", _HANDLER
        )
    called = _called(function)
    shown_name = getattr(called, "__qualname__", None) or shown(called)
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        kind = "an async generator" if inspect.isasyncgenfunction(called) else "a generator"
        raise InvalidOptionError(
            name,
            f"{shown_name} is {kind} function: it has a yield, so calling it runs nothing",
            f"{_HANDLER}; remove the yield, or call it from a function that loops over it",
        )
    if _is_method(function):
        raise InvalidOptionError(
            name,
            f"{shown_name} is a method: a worker has no object to call it on",
            f"{_HANDLER}; make it a @staticmethod, or decorate an object's method: app.task(object.method)",
        )


def default_name(function: Callable[..., Any]) -> str:
    """Return the default name of a function's task. Raises `InvalidNameError` for a function without a name."""
    inner: Callable[..., Any] = function
    while isinstance(inner, partial):
        inner = inner.func
    name = getattr(inner, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise InvalidNameError(
            "task", f"{shown(function)} has no name", "name the task: @app.task(name='…')"
        )
    return name


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calls must be awaited; does not see that a lambda returns a coroutine."""
    return inspect.iscoroutinefunction(_called(function))


def wraps_async(function: Callable[..., Any]) -> bool:
    """Whether a plain function wraps a coroutine function: then its calls may or may not need to be awaited."""
    return not is_async(function) and is_async(_innermost(function))


def namespace_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals of a function's module, to resolve its annotations."""
    namespace: dict[str, Any] = getattr(_innermost(function), "__globals__", {})
    return namespace


def replaces(new: Callable[..., Any], old: Callable[..., Any]) -> bool:
    """Whether `new` redefines `old`: a notebook cell or a module that was loaded again.

    Two functions of one name in one source do not replace each other, nor do those that a loop creates: calls of both
    would run the last.
    """
    old, new = _innermost(old), _innermost(new)
    if not (inspect.isfunction(old) and inspect.isfunction(new)):
        return False
    if (old.__module__, old.__qualname__) != (new.__module__, new.__qualname__):
        return False
    if old.__code__ is new.__code__:
        return False
    if old.__code__.co_filename != new.__code__.co_filename:
        return True  # every cell of a notebook has its own file name
    return _definitions(new.__code__.co_filename, new.__qualname__) <= 1


def _called(function: Any) -> Any:
    """Return the function that finally runs when a partial, a bound method or an object is called."""
    for _ in range(100):
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif isinstance(function, staticmethod):
            function = function.__wrapped__
        elif inspect.isroutine(function) or isinstance(function, type):
            break
        else:
            # A mock of a coroutine function passes for one itself.
            call = vars(type(function)).get("__call__")
            if inspect.isfunction(call) and not inspect.iscoroutinefunction(function):
                function = call
            break
    return function


def _innermost(function: Any) -> Any:
    """Return the function inside all decorators that used `functools.wraps`."""
    called = _called(function)
    try:
        return _called(inspect.unwrap(called))
    except ValueError:  # a cycle
        return called


def _is_method(function: object) -> bool:
    """Whether a function is defined in a class and takes `self` or `cls`."""
    if not inspect.isfunction(function):
        return False
    owner, _, _ = function.__qualname__.rpartition(".")
    first = next(iter(signature_of(function, follow_wrapped=False).parameters), "")
    return bool(owner) and not owner.endswith("<locals>") and first in ("self", "cls")


def _definitions(file: str, qualname: str) -> int:
    """Count the functions of this name in a source file; 1 if it cannot be read."""
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1
    return sum(name == qualname for name in _qualnames(tree, ""))


def _qualnames(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            yield from _qualnames(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _qualnames(child, f"{prefix}{child.name}.")
        else:
            yield from _qualnames(child, prefix)
