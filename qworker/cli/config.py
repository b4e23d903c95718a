"""`qworker config`: show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from qworker.cli.framework.commands import CommandGroup, json_option
from qworker.cli.framework.output import Line, Output, Table
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.config.fields import Options
    from qworker.config.kinds import Kind
    from qworker.config.loading import Setting

__all__ = ["command"]

_ZEROS: Final = ("0", "0s", "0B")
_COLUMNS: Final = (Column("OPTION"), Column("VALUE", wide=True), Column("FROM", wide=True))


@click.group(cls=CommandGroup)
def command() -> None:
    """Show the configuration."""


@command.command("show")
@json_option
@click.pass_obj
def show(session: Session) -> Output:
    """Show every option: its value and its source. Passwords are shown as ***.

    A flag overrides QWORKER_<OPTION> in the environment, which overrides qworker.toml or [tool.qworker] of
    pyproject.toml in the current directory, which overrides the default.
    """
    from qworker.cli.framework.option_classes import OPTION_CLASSES
    from qworker.config.fields import kinds_of

    rows = [
        _Row(
            f"{options.section}.{name}" if options.section else name,
            setting,
            kinds_of(options)[name],
        )
        for options in OPTION_CLASSES
        for name, setting in _settings(session, options).items()
    ]
    settings = [
        {"option": row.option, "value": row.setting.value, "source": row.setting.source}
        for row in rows
    ]
    file = session.settings.file.name
    table = Table(_COLUMNS, [row.cells() for row in rows])
    where = f"file: {file or 'none (no qworker.toml in this directory)'}"
    return Output({"file": file or None, "settings": settings}, [table, Line(), where])


def _settings(session: Session, options: type[Options]) -> Mapping[str, Setting]:
    from qworker.store.options import ClientOptions

    loaded = session.settings.client if options is ClientOptions else session.settings.load(options)
    return loaded.settings


class _Row(NamedTuple):
    option: str
    setting: Setting
    kind: Kind

    def cells(self) -> list[Cell | str]:
        """Write it as a row of the table, with the meaning of 0 or of no value."""
        value, source = self.setting.value, self.setting.source
        meaning = self.kind.none if not value else self.kind.zero if value in _ZEROS else ""
        shown = f"{value} ({meaning})".strip() if meaning else value
        return [self.option, shown, Cell(source, "dim" if source == "default" else "")]
