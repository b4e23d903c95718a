"""`qworker completion SHELL`: the script that makes a shell complete our verbs, options and queue names."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from qworker.cli.verbs import Verb

__all__ = ["command"]

_VARIABLE: Final = "_QWORKER_COMPLETE"
_WHERE: Final = {
    "bash": '# put into ~/.bashrc: eval "$(qworker completion bash)"',
    "zsh": '# put into ~/.zshrc, after compinit: eval "$(qworker completion zsh)"',
    "fish": "# put into ~/.config/fish/config.fish: qworker completion fish | source",
}


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(list(_WHERE)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    Queue names are completed from the server, if it answers within 0.3 seconds.

    \b
      eval "$(qworker completion bash)"        in ~/.bashrc
      eval "$(qworker completion zsh)"         in ~/.zshrc, after compinit
      qworker completion fish | source         in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    completion = kind(context.find_root().command, {}, "qworker", _VARIABLE)
    click.echo(_WHERE[shell])
    # Not `source()`: for bash it starts one to look at its version, and the shell that asks may be another.
    click.echo(completion.source_template % completion.source_vars())
