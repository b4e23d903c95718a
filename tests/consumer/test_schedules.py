"""Schedules as workers register them: by the name of their app, and again when its code changes."""

from __future__ import annotations

import pytest

from qworker.client.namespace.owners import read_owners
from qworker.consumer.manifest import Manifest
from qworker.daemon.schedule_listing import list_schedules
from qworker.service.registration import Registration
from qworker.store.connections import ConnectionFactory
from qworker.wire.schedule import StoredSchedule
from tests.consumer.driving import until
from tests.consumer.workers import Lab

TASK = "@app.schedule(every('1h'))\ndef {name}() -> None:\n    pass\n"


def schedules(lab: Lab) -> dict[str, str]:
    """Schedule → app."""
    return {
        schedule.name: schedule.app for schedule in list_schedules(lab.sender.client, lab.namespace)
    }


@pytest.mark.slow
def test_a_worker_that_is_started_in_another_way_has_the_same_schedules(lab: Lab) -> None:
    """A schedule that was taken out of the code goes, although the worker was started by another spelling."""
    lab.app(TASK.format(name="first") + TASK.format(name="second"))
    with lab.worker(spec="jobs.py"):
        until(lambda: schedules(lab) == {"first": "jobs", "second": "jobs"})
    lab.app(TASK.format(name="first"))
    with lab.worker(spec="jobs:app"):
        until(lambda: schedules(lab) == {"first": "jobs"})
    assert read_owners(lab.sender.client.execute, lab.namespace).keys() == {"jobs"}


@pytest.mark.slow
def test_schedules_that_are_added_under_reload_are_registered(lab: Lab) -> None:
    """And those that are taken out are removed, without a restart of the worker."""
    lab.app(TASK.format(name="first"))
    with lab.worker("--reload"):
        until(lambda: schedules(lab) == {"first": "jobs"})
        lab.app(TASK.format(name="second"))
        until(lambda: schedules(lab) == {"second": "jobs"})


def test_the_connection_that_registers_schedules_is_not_kept(lab: Lab) -> None:
    """Nor is an older set of schedules registered after a newer one."""
    stored = StoredSchedule(app="jobs", spec="every 1h missed=once", task="t", queue="q", body="{}")
    older, newer = (
        Manifest(namespace=lab.namespace, app="jobs", schedules={name: stored})
        for name in ("first", "second")
    )
    registration = Registration(ConnectionFactory(lab.url, name="registering"), lambda: newer)
    registration.register(older)
    registration.register(newer)
    assert schedules(lab) == {"second": "jobs"}
    listed = lab.sender.client.ask
    until(lambda: b" name=registering " not in listed("CLIENT", "LIST"))


@pytest.mark.slow
def test_schedules_of_a_worker_that_starts_at_a_full_server_are_registered_later(
    own_lab: Lab, logs: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried again until the server takes them, without a restart of the worker."""
    monkeypatch.setattr("qworker.service.registration._FIRST_PAUSE_S", 0.05)
    stored = StoredSchedule(app="jobs", spec="every 1h missed=once", task="t", queue="q", body="{}")
    manifest = Manifest(namespace=own_lab.namespace, app="jobs", schedules={"first": stored})
    registration = Registration(ConnectionFactory(own_lab.url), lambda: manifest)
    server = own_lab.sender.client
    server.ask("CONFIG", "SET", "maxmemory", "1")
    registration.begin(manifest)
    until(lambda: any(line["event"] == "schedules_not_registered" for line in logs))
    assert schedules(own_lab) == {}

    server.ask("CONFIG", "SET", "maxmemory", "0")

    until(lambda: schedules(own_lab) == {"first": "jobs"})
    until(lambda: any(line["event"] == "schedules_registered" for line in logs))
