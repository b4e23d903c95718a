"""What the page for those who come from elsewhere names as ours is there: methods, keywords, options, commands."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any

import pytest

import qworker
from qworker import QueueAttributes, QWorker, SendOptions
from qworker.app.handle import Handle
from qworker.app.options import TaskOptions
from qworker.app.task import Task
from qworker.client.dead.filter import DeadFilter
from qworker.client.message import Message
from qworker.client.queue import AsyncQueue, Queue
from qworker.config.fields import kinds_of
from qworker.engine.inspect import Inspection
from qworker.testing import drain
from tests.docs.blocks import ROOT
from tests.tables import each

PAGE = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
#: What names of the page stand for. Of a queue, both have what is named.
INSTANCES: Mapping[str, type] = {
    "app": QWorker,
    "queue": Queue,
    "task": Task,
    "handle": Handle,
    "message": Message,
}
_SEND = set(kinds_of(SendOptions))
_ATTRIBUTES = set(kinds_of(QueueAttributes))
_FILTERS = {*(DeadFilter.__dataclass_fields__), "everything"}
#: Keywords behind a `**`, by method.
MORE: Mapping[str, set[str]] = {
    "set_limit": {"concurrency", "rate", "burst", "weight", "max_waiting"},
    "send": _SEND,
    "send_many": _SEND,
    "options": _SEND,
    "create": _ATTRIBUTES,
    "change": _ATTRIBUTES,
    "QueueAttributes": _ATTRIBUTES,
    "dead": _FILTERS,
    "redrive": _FILTERS,
    "task": set(kinds_of(TaskOptions)),
}


def rows() -> list[tuple[str, str, str]]:
    """The three cells of every row of every table."""
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and "---" not in line and cells[1] != "Here":
            assert len(cells) in (2, 3), line
            found.append((cells[0], cells[1], cells[2].strip("| ") if len(cells) == 3 else ""))
    return found


def ours() -> list[str]:
    """The code in our column, and code of the text that is a call of ours."""
    spans = {span for _, here, _ in rows() for span in re.findall(r"`([^`]+)`", here)}
    outside = "\n".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    spans |= set(re.findall(r"`((?:queue|app|task|message)\.[^`]+)`", outside))
    return sorted(span for span in spans if not span.startswith(("qworker ", "--")))


@each("span", ours())
def test_what_is_named_as_ours_is_ours(span):
    text = span.removeprefix("@").removeprefix("await ")
    if span in ("priority=9", "qworker.testing", "async def"):
        return
    meaning(ast.parse(text, mode="eval").body)


def meaning(node: ast.expr) -> Any:
    """What an expression of the page is: a class, also for its instances, or a function. Fails where nothing is."""
    if isinstance(node, ast.Name):
        if node.id in INSTANCES:
            return INSTANCES[node.id]
        if node.id == "drain":
            return drain
        assert hasattr(qworker, node.id), f"qworker has no {node.id}"
        return getattr(qworker, node.id)
    if isinstance(node, ast.Attribute):
        owner = meaning(node.value)
        assert owner is not None, ast.unparse(node)
        for each in (owner, AsyncQueue) if owner is Queue else (owner,):
            known = hasattr(each, node.attr) or node.attr in typing.get_type_hints(each)
            assert known, f"{each.__name__} has no {node.attr}"
        return getattr(owner, node.attr, None)
    if isinstance(node, ast.Call):
        return called(node)
    assert isinstance(node, ast.Constant | ast.UnaryOp | ast.List | ast.Dict), ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            called(child)
    return None


def called(node: ast.Call) -> Any:
    """Check a call against the signature; what it returns, where that is a class of ours."""
    function = meaning(node.func)
    assert callable(function), ast.unparse(node)
    for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
        meaning(argument)
    parameters = inspect.signature(function).parameters
    more = MORE.get(getattr(function, "__name__", ""), set())
    for keyword in node.keywords:
        named = keyword.arg in parameters
        assert named or keyword.arg in more, f"{ast.unparse(node)}: no {keyword.arg}="
    if inspect.isclass(function):
        return function
    returned = inspect.signature(function).return_annotation
    known = {"Queue": Queue, "Sender[P, R]": Task, "Inspection": Inspection}
    return known.get(str(returned).strip("'\""))


def test_every_system_has_a_table():
    """All nine, each with at least ten rows (RedisMQ has eight calls)."""
    systems = [
        *("RSMQ", "RedisMQ", "Disque", "Amazon SQS"),
        *("Celery", "RQ", "Dramatiq", "Sidekiq", "BullMQ"),
    ]
    assert re.findall(r"^## (.+)$", PAGE, re.M)[1:] == systems
    for system in systems:
        part = PAGE.partition(f"\n## {system}\n")[2].partition("\n## ")[0]
        assert len(re.findall(r"^\| (?!---)", part, re.M)) > (8 if system == "RedisMQ" else 10)


def test_there_is_much_to_check():
    assert len(ours()) > 80


@pytest.mark.parametrize(
    "wrong", ["queue.sned('x')", "queue.send('x', dealy=1)", "app.queue('x').popp()", "Burry('x')"]
)
def test_a_mistake_would_be_found(wrong):
    with pytest.raises(AssertionError):
        meaning(ast.parse(wrong, mode="eval").body)
