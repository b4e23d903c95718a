"""The verbs of a queue: written once, run by the sync and by the async queue."""

from __future__ import annotations

import inspect

import pytest

from qworker.client.plan import Plan
from qworker.client.queue import AsyncQueue, Queue, QueueVerbs, Verb
from qworker.client.queue_ref import QueueRef
from tests.tables import each

VERBS = {name: verb for name, verb in vars(QueueVerbs).items() if isinstance(verb, Verb)}


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_verb_is_a_method_with_the_words_of_its_plan(kind: type) -> None:
    """`help` shows name, parameters, text and result as of an ordinary method."""
    receive = kind.receive
    assert receive.__name__ == "receive"
    assert receive.__doc__.startswith("Receive up to `count`")
    signature = inspect.signature(receive)
    assert list(signature.parameters)[:3] == ["self", "count", "wait"]
    assert signature.return_annotation == "list[Message]"
    for name in VERBS:
        assert inspect.iscoroutinefunction(vars(kind)[name]) == (kind is AsyncQueue), name


@each("name, verb", VERBS.items())
def test_every_verb_has_a_text_and_returns_what_its_plan_does(
    name: str, verb: Verb[..., object]
) -> None:
    """Both queues document all they can do."""
    assert verb.plan.__name__ == name
    assert verb.plan.__doc__
    assert "Plan" not in str(verb.signature.return_annotation)


def test_a_subclass_keeps_its_own_verbs(store_url: str, namespace: str) -> None:
    """A verb that a subclass overrides stays overridden, and can call the original."""
    from qworker.client.execute.sync import Client
    from qworker.store.connections import ConnectionFactory

    class Shouting(Queue):
        def send(self, body: object, *args: object, **given: object) -> str:
            return super().send(f"{body}!", *args, **given)

    with Client(ConnectionFactory(store_url)) as client:
        queue = Shouting(client, namespace, "words")
        queue.send("hello")
        assert [message.json() for message in queue.receive()] == ["hello!"]
        assert repr(queue) == "Shouting('words')"


def test_plans_do_nothing_before_they_are_run() -> None:
    """A plan is a value: making one sends nothing to a server."""
    from qworker.client.inspect.peek import peek
    from qworker.wire.ids import IdSource

    plan: Plan[object] = peek(QueueRef("shop", "q", IdSource()))
    assert inspect.getgeneratorstate(plan) == inspect.GEN_CREATED
    assert next(plan).words() == ("HGET", "shop:{q}:meta", "shards")
