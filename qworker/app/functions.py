"""What a handler is: whether calling it runs it, whether the call has to be awaited, and what it is called.

A generator function, plain or async, runs nothing when it is called, so it cannot be a task. A coroutine function is
one by what is called at the end, not by what a decorator says that it wraps: `@wraps` around `asyncio.run` makes a
plain function of a coroutine function. What cannot be known before the call (a lambda that returns a coroutine) is
seen by the worker when it looks at what the call has returned.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from qworker.config.kinds import shown
from qworker.errors import InvalidNameError, InvalidOptionError

__all__ = ["check_function", "default_name", "is_async", "namespace_of", "replaces", "wraps_async"]

_HANDLER: Final = "a task is a function that does its work when it is called, plain or async"


def check_function(function: object, name: str = "task") -> None:
    """Raise `InvalidOptionError` for what is not a function, or does nothing when it is called."""
    if not callable(function):
        raise InvalidOptionError(
            name,
            f"{shown(function)} is not a function",
            "write @app.task above a function; options are given by name: @app.task(name='…')",
        )
    if isinstance(function, type):
        raise InvalidOptionError(
            name, f"{function.__qualname__} is a class: a call of it makes an object", _HANDLER
        )
    called = _called(function)
    shown_name = getattr(called, "__qualname__", None) or shown(called)
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        kind = "an async generator" if inspect.isasyncgenfunction(called) else "a generator"
        raise InvalidOptionError(
            name,
            f"{shown_name} is {kind} function: it has a yield, so a call of it runs nothing",
            f"{_HANDLER}; take the yield out, or call it from a function that loops over it",
        )
    if _is_method(function):
        raise InvalidOptionError(
            name,
            f"{shown_name} is a method: a worker has nothing to give to its first parameter",
            f"{_HANDLER}; make it a @staticmethod, or decorate an object's method: app.task(object.method)",
        )


def default_name(function: Callable[..., Any]) -> str:
    """The name of the task that a function is by default. Raises `InvalidNameError` where it has none."""
    found = function
    while isinstance(found, partial):
        found = found.func
    name = getattr(found, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise InvalidNameError(
            "task", f"{shown(function)} has no name", "give it one: @app.task(name='…')"
        )
    return name


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call has to be awaited, by the function that is called; a lambda's coroutine is not seen here."""
    return inspect.iscoroutinefunction(_called(function))


def wraps_async(function: Callable[..., Any]) -> bool:
    """Whether a plain function says that it wraps a coroutine function: its calls may have to be awaited or not."""
    return not is_async(function) and is_async(_innermost(function))


def namespace_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The globals of a function's module, in which its annotations have their meaning."""
    found: dict[str, Any] = getattr(_innermost(function), "__globals__", {})
    return found


def replaces(new: Callable[..., Any], old: Callable[..., Any]) -> bool:
    """Whether a function is an older one defined anew: a notebook's cell run again, or a module loaded again.

    Two functions of one name in one source, and one that a loop makes task after task, are not: a call would then run
    whichever came last.
    """
    then, now = _innermost(old), _innermost(new)
    if not (inspect.isfunction(then) and inspect.isfunction(now)):
        return False
    if (then.__module__, then.__qualname__) != (now.__module__, now.__qualname__):
        return False
    if then.__code__ is now.__code__:
        return False
    if then.__code__.co_filename != now.__code__.co_filename:
        return True  # each cell of a notebook is a file of its own
    return _definitions(now.__code__.co_filename, now.__qualname__) <= 1


def _called(function: Any) -> Any:
    """The function that runs at last when a partial, a bound method or an object is called."""
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
            # A mock of a coroutine function says so itself.
            call = vars(type(function)).get("__call__")
            if inspect.isfunction(call) and not inspect.iscoroutinefunction(function):
                function = call
            break
    return function


def _innermost(function: Any) -> Any:
    """The function inside of all decorators that say what they wrap."""
    called = _called(function)
    try:
        return _called(inspect.unwrap(called))
    except ValueError:  # it wraps itself
        return called


def _is_method(function: object) -> bool:
    """Whether a function stands in the body of a class and takes an object first."""
    if not inspect.isfunction(function):
        return False
    owner, _, _ = function.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(function, follow_wrapped=False).parameters), "")
    return bool(owner) and not owner.endswith("<locals>") and first in ("self", "cls")


def _definitions(file: str, qualname: str) -> int:
    """How many functions of this name the source of a module has; 1 where it cannot be read."""
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
