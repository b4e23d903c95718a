"""`qworker completion SHELL`: the script with which a shell completes verbs, options and queue names."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from qworker.cli.framework.commands import VerbCommand
from qworker.cli.framework.output import Output, Raw

__all__ = ["command"]

_VARIABLE: Final = "_QWORKER_COMPLETE"
_WHERE: Final = {
    "bash": '# add to ~/.bashrc: eval "$(qworker completion bash)"',
    "zsh": '# add to ~/.zshrc, after compinit: eval "$(qworker completion zsh)"',
    "fish": "# add to ~/.config/fish/config.fish: qworker completion fish | source",
}


@click.command(cls=VerbCommand)
@click.argument("shell", type=click.Choice(list(_WHERE)))
@click.pass_context
def command(context: click.Context, shell: str) -> Output:
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
    # Not `source()`: it starts a bash to check its version, and the shell that asks may be another.
    script = completion.source_template % completion.source_vars()
    return Output(text=[_WHERE[shell], Raw(f"{script}\n")])
