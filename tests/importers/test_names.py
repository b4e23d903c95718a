"""Functions of other systems become tasks."""

from __future__ import annotations

import pytest

from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.importers.source import RefusedMessageError
from qworker.importers.task_names import TaskNames
from tests.tables import each


def test_last_part_of_the_name_is_the_task() -> None:
    """A task is named after its function by default."""
    names = TaskNames()
    assert names.task("shop.tasks.send_email") == "send_email"
    assert names.task("send") == "send"
    assert names.used == {"shop.tasks.send_email": "send_email", "send": "send"}


def test_full_names_are_kept_on_request() -> None:
    """Dots are allowed in names of tasks."""
    assert TaskNames(full=True).task("shop.tasks.add") == "shop.tasks.add"


def test_map_wins() -> None:
    """Also if it maps two functions to one task."""
    names = TaskNames(["a.add=plus", "b.add=plus"], full=True)
    assert [names.task(each) for each in ("a.add", "b.add", "d.add")] == ["plus", "plus", "d.add"]


def test_two_functions_never_become_one_task_by_accident() -> None:
    """The second one is refused, even if the first was mapped."""
    names = TaskNames(["a.minus=plus"])
    names.task("a.add")
    with pytest.raises(RefusedMessageError) as refused:
        names.task("b.add")
    assert (refused.value.reason, refused.value.detail) == (
        "ambiguous_task",
        "b.add and a.add would both become add",
    )
    names.task("a.minus")
    with pytest.raises(RefusedMessageError):
        names.task("c.plus")


@each("function", ["", "a.", "a.<lambda>", "a b", "tasks.größe"])
def test_names_that_no_task_can_have_are_refused(function: str) -> None:
    """They need a map."""
    with pytest.raises(RefusedMessageError) as refused:
        TaskNames().task(function)
    assert refused.value.reason == "task_name"


def test_map_is_checked() -> None:
    """Before anything is read."""
    with pytest.raises(
        InvalidOptionError, match="--task-map: 'x' is not a pair; write FUNCTION=TASK"
    ):
        TaskNames(["x"])
    with pytest.raises(InvalidNameError, match="--task-map: 'no name' is not a valid name"):
        TaskNames(["x=no name"])
