"""The classes of our commands: global options before or after any verb, groups that load their verbs late.

    @click.group(cls=Verbs)          qworker --url redis://h queue ls
    @queue.command(cls=Verb)         qworker queue ls --url redis://h        the same

The operator types the option where it comes to mind; the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final, NoReturn

import click

from qworker.cli.session import Session

__all__ = ["LateVerbs", "Verb", "Verbs", "dry_run_option", "json_option", "yes_option"]

_GLOBAL: Final = {
    "--url": ("URL", "Server: redis://, rediss://, unix:// or embedded:. [env: QWORKER_URL]"),
    "--namespace": ("NAME", "First part of every key. [env: QWORKER_NAMESPACE]"),
    "--give-up": ("DURATION", "Try a call for so long. [default: 3s; env: QWORKER_GIVE_UP]"),
    "--embedded": ("", "Use the embedded store; it is started if need be."),
    "--config": ("FILE", "Read this file, not qworker.toml or pyproject.toml."),
    "--log-level": ("LEVEL", "debug, info, warning or error."),
    "--log-format": ("FORMAT", "auto, text or json."),
}


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        context.ensure_object(Session).give(parameter.name or "", value)


def _global_options(*, hidden: bool) -> list[click.Parameter]:
    return [
        click.Option(
            [flag],
            metavar=metavar or None,
            is_flag=not metavar,
            default=None if metavar else False,
            help=text,
            hidden=hidden,
            expose_value=False,
            callback=_remember,
        )
        for flag, (metavar, text) in _GLOBAL.items()
    ]


class Verb(click.Command):
    """A command that takes the global options as well; its help names them in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options(hidden=True))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, and where the global options are explained."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Global options (see qworker --help): {', '.join(_GLOBAL)}.")


class Verbs(click.Group):
    """A group of verbs, with the global options and a guess for a verb that it does not have."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options(hidden=not self._is_root))

    @property
    def _is_root(self) -> bool:
        return False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs in the order in which the file defines them: looking before changing."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with the whole first sentence of each."""
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, verb.get_short_help_str(200)) for name, verb in verbs if verb]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; raise `UsageError` with the nearest one where there is none."""
        name = args[0]
        if (
            not ctx.resilient_parsing
            and not name.startswith("-")
            and not self.get_command(ctx, name)
        ):
            self._refuse(ctx, name)
        return super().resolve_command(ctx, args)

    def _refuse(self, ctx: click.Context, name: str) -> NoReturn:
        known = self.list_commands(ctx)
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise click.UsageError(f"{ctx.command_path}: {ascii(name)[:80]} is no verb; {hint}", ctx)


class LateVerbs(Verbs):
    """A large group, the root first of all: a verb's module is imported when the verb is used, not to list it."""

    def __init__(
        self, *args: Any, sections: dict[str, dict[str, str]], prefix: str = "", **kwargs: Any
    ) -> None:
        """Take the verbs by section: verb → its line in the help; its module is `qworker.cli.<prefix><verb>`."""
        self._sections = sections
        self._prefix = prefix
        super().__init__(*args, **kwargs)

    @property
    def _is_root(self) -> bool:
        return not self._prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs in the order of the help."""
        return [name for section in self._sections.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb."""
        if cmd_name not in self.list_commands(ctx):
            return None
        # No module can be named like a word of Python: `import` is in `import_`.
        module = f"qworker.cli.{self._prefix}{cmd_name}" + "_" * iskeyword(cmd_name)
        command: click.Command = import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section, without importing any."""
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(list(section.items()))


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(
        function
    )


def yes_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --yes: do not ask."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(function)


def dry_run_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --dry-run: say what would be done, and do nothing."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")(
        function
    )
