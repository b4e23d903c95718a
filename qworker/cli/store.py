"""`qworker store`: the embedded store, its path and status, start and stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import CommandGroup, json_option
from qworker.cli.framework.output import Fields, Output

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.store.embedded.store import Store, StoreInfo

__all__ = ["command"]


@click.group(cls=CommandGroup)
def command() -> None:
    """Show, start and stop the embedded store: a server of your own that keeps all namespaces in one directory.

    The directory is below your home, unless --url embedded:/directory names another.
    """


@command.command("path")
@click.pass_obj
def path(session: Session) -> Output:
    """Print the directory of the store, whether or not it exists."""
    return Output(text=str(_store(session).directory))


@command.command("status")
@json_option
@click.pass_obj
def status(session: Session) -> Iterator[Output]:
    """Show whether the store is running. Exit code 3 if it is not."""
    from qworker.cli.framework.errors import FOUND

    store = _store(session)
    info = store.status()
    yield _output(store, info)
    if info is None:
        raise click.exceptions.Exit(FOUND)


@command.command("start")
@json_option
@click.pass_obj
def start(session: Session) -> Output:
    """Start the store if it is not running. It keeps running when this command exits."""
    store = _store(session)
    return _output(store, store.ensure())


@command.command("stop")
@json_option
@click.pass_obj
def stop(session: Session) -> Output:
    """Stop the store. Its data stays; the next command that uses it starts it again."""
    store = _store(session)
    stopped = store.stop()
    return Output(
        {"directory": str(store.directory), "stopped": stopped},
        f"stopped; its data stays in {store.directory}"
        if stopped
        else f"no store is running in {store.directory}",
    )


def _store(session: Session) -> Store:
    from qworker.store.embedded.store import Store, default_directory

    url = session.settings.client.options.url
    if url is not None and url.scheme == "embedded" and url.path is not None:
        return Store(url.path)
    return Store(default_directory())


def _output(store: Store, info: StoreInfo | None) -> Output:
    from qworker.formats import size

    directory, used = str(store.directory), _size(store.directory)
    document: dict[str, Any] = {"directory": directory, "running": info is not None}
    fields = {"directory": directory, "size": size(used)}
    if info is None:
        fields["status"] = "not running (qworker store start)"
    else:
        document |= {
            "url": store.url,
            "pid": info.pid,
            "engine": info.engine,
            "version": info.version,
            "started": info.started,
        }
        fields |= {
            "status": "started" if info.started else "running",
            "server": f"{info.engine} {info.version}, pid {info.pid}",
            "url": store.url,
        }
    return Output({**document, "size_bytes": used}, Fields(fields))


def _size(directory: Path) -> int:
    """Sum up the files of the store, in bytes; a file that is deleted during the call counts 0."""
    total = 0
    for file in directory.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return total
