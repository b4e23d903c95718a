"""`qworker store`: the embedded store, its path and status, start and stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.screen import print_fields, print_json, print_line
from qworker.cli.verbs import Verbs, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.store.embedded import Store, StoreInfo

__all__ = ["command"]


@click.group(cls=Verbs)
def command() -> None:
    """The embedded store: a server of your own, in a directory, for all namespaces.

    It is the default one in your home directory, or that of --url embedded:/directory.
    """


@command.command("path")
@click.pass_obj
def path(session: Session) -> None:
    """Print the directory of the store, whether or not it is there."""
    print_line(str(_store(session).directory))


@command.command("status")
@json_option
@click.pass_obj
def status(session: Session, as_json: bool) -> None:
    """Say whether the store runs. Exit code 3 if it does not."""
    from qworker.cli.failures import FOUND

    store = _store(session)
    info = store.status()
    _print(store, info, as_json)
    if info is None:
        raise click.exceptions.Exit(FOUND)


@command.command("start")
@json_option
@click.pass_obj
def start(session: Session, as_json: bool) -> None:
    """Start the store, unless it runs. It goes on when this command has ended."""
    store = _store(session)
    _print(store, store.ensure(), as_json)


@command.command("stop")
@json_option
@click.pass_obj
def stop(session: Session, as_json: bool) -> None:
    """Stop the store. Its data stay; whoever uses it next starts it again."""
    store = _store(session)
    stopped = store.stop()
    if as_json:
        print_json({"directory": str(store.directory), "stopped": stopped})
    else:
        print_line(
            f"stopped; the data stay in {store.directory}"
            if stopped
            else f"no store runs in {store.directory}"
        )


def _store(session: Session) -> Store:
    from qworker.store.embedded import Store, default_directory

    url = session.connection_settings.options.url
    if url is not None and url.scheme == "embedded" and url.path is not None:
        return Store(url.path)
    return Store(default_directory())


def _print(store: Store, info: StoreInfo | None, as_json: bool) -> None:
    used = _size(store.directory)
    if as_json:
        document: dict[str, Any] = {"directory": str(store.directory), "running": info is not None}
        if info is not None:
            document |= {
                "url": store.url,
                "pid": info.pid,
                "engine": info.engine,
                "version": info.version,
                "started": info.started,
            }
        print_json({**document, "size_bytes": used})
        return
    from qworker.cli.formats import size

    fields = {"directory": str(store.directory), "size": size(used)}
    if info is None:
        fields["status"] = "not running (qworker store start)"
    else:
        fields |= {
            "status": "started" if info.started else "running",
            "server": f"{info.engine} {info.version}, pid {info.pid}",
            "url": store.url,
        }
    print_fields(fields)


def _size(directory: Path) -> int:
    """Sum up the files of the store, in bytes; those that go meanwhile count nothing."""
    total = 0
    for file in directory.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return total
