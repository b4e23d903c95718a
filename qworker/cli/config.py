"""`qworker config`: show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from qworker.cli.screen import Cell, Column, print_json, print_line, print_table
from qworker.cli.verbs import Verbs, json_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.config.fields import Options
    from qworker.config.kinds import Kind
    from qworker.config.loading import Setting

__all__ = ["command"]

_ZEROS: Final = ("0", "0s", "0B")
_COLUMNS: Final = (Column("OPTION"), Column("VALUE", wide=True), Column("FROM", wide=True))


@click.group(cls=Verbs)
def command() -> None:
    """Show the configuration."""


@command.command("show")
@json_option
@click.pass_obj
def show(session: Session, as_json: bool) -> None:
    """Show every option: its value, and where that comes from. Passwords are shown as ***.

    A flag counts over QWORKER_<OPTION> in the environment, that over qworker.toml or [tool.qworker] of
    pyproject.toml in the current directory, and that over the default.
    """
    from qworker.cli.options import OPTION_CLASSES
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
    if as_json:
        settings = [
            {"option": row.option, "value": row.setting.value, "source": row.setting.source}
            for row in rows
        ]
        print_json({"file": session.file.name or None, "settings": settings})
        return
    print_table(_COLUMNS, [row.cells() for row in rows])
    print_line()
    print_line(f"file: {session.file.name or 'none (qworker.toml is looked for here)'}")


def _settings(session: Session, options: type[Options]) -> Mapping[str, Setting]:
    from qworker.store.options import ClientOptions

    loaded = session.connection_settings if options is ClientOptions else session.load(options)
    return loaded.settings


class _Row(NamedTuple):
    option: str
    setting: Setting
    kind: Kind

    def cells(self) -> list[Cell | str]:
        """Write it for people: what 0 and nothing mean stands beside them."""
        value, source = self.setting.value, self.setting.source
        meaning = self.kind.none if not value else self.kind.zero if value in _ZEROS else ""
        shown = f"{value} ({meaning})".strip() if meaning else value
        return [self.option, shown, Cell(source, "dim" if source == "default" else "")]
