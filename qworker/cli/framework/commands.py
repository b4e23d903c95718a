"""The classes of our commands: global options before or after any verb, groups that import their verbs when used.

qworker --url redis://h queue ls
qworker queue ls --url redis://h        the same; of several the last one counts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import click

from qworker.cli.framework.context import Session
from qworker.cli.framework.output import printing
from qworker.cli.framework.quick_imports import uncollected

__all__ = [
    "CommandGroup",
    "LazyCommandGroup",
    "VerbCommand",
    "dry_run_option",
    "json_option",
    "stacked",
    "yes_option",
]

_GLOBAL: Final = {
    "--url": (
        "URL",
        "Server: redis://, rediss://, unix://, embedded:, redis+sentinel:// or redis+cluster://. "
        "[env: QWORKER_URL]",
    ),
    "--namespace": ("NAME", "First part of every key. [env: QWORKER_NAMESPACE]"),
    "--give-up": ("DURATION", "Time limit of each call. [default: 3s; env: QWORKER_GIVE_UP]"),
    "--embedded": ("", "Use the embedded store, starting it if necessary."),
    "--config": (
        "FILE",
        "Configuration file. [default: qworker.toml, else pyproject.toml; env: QWORKER_CONFIG]",
    ),
    "--log-level": ("LEVEL", "Log level: debug, info, warning or error."),
    "--log-format": ("FORMAT", "Log format: auto, text or json."),
}
#: Commands whose module has another name: `import` is a keyword of Python.
_MODULES: Final = {"import": "importing"}


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        context.ensure_object(Session).settings.give(parameter.name or "", value)


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


def _settings(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Make the context settings of a command. It has -h also where it is called without its parent."""
    return {"help_option_names": ["-h", "--help"], **(given or {})}


class VerbCommand(click.Command):
    """A command that also takes the global options, and prints the `Output` that its function returns or yields."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = _settings(kwargs.get("context_settings"))
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options(hidden=True))
        if self.callback is not None:
            self.callback = printing(self.callback)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, and name the global options."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(f"Global options (see qworker --help): {', '.join(_GLOBAL)}.")


class CommandGroup(click.Group):
    """A group of verbs that takes the global options as well."""

    command_class = VerbCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = _settings(kwargs.get("context_settings"))
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options(hidden=not self._is_root))

    @property
    def _is_root(self) -> bool:
        return False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs in the order in which the file defines them: reading before changing."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with the whole first sentence of each."""
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, verb.get_short_help_str(200)) for name, verb in verbs if verb]
            )


class LazyCommandGroup(CommandGroup):
    """A large group, such as the root: a verb's module is imported when the verb is used, not to list it."""

    def __init__(
        self, *args: Any, sections: dict[str, dict[str, str]], prefix: str = "", **kwargs: Any
    ) -> None:
        """Take the verbs by section: verb → its line in the help. A verb is the module `qworker.cli.<prefix><verb>`, or
        `group` in the folder of that name.
        """
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
        module = f"qworker.cli.{self._prefix}{_MODULES.get(cmd_name, cmd_name)}"
        spec = find_spec(module)
        if spec and spec.submodule_search_locations:
            module += ".group"
        with uncollected():
            command: click.Command = import_module(module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; raise `NoSuchCommand`, which suggests verbs that are not imported yet."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section, without importing any."""
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(list(section.items()))


def stacked(*decorators: Callable[..., Any]) -> Callable[..., Any]:
    """Make one decorator of several options or arguments, which the help lists in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json: print the document of the `Output`, not its text."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(
        function
    )


def yes_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --yes: do not ask for confirmation."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(function)


def dry_run_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --dry-run: show what would be done, and do nothing."""
    return click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")(
        function
    )
