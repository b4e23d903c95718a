"""How the rules of `qworker acl` come about: from the scripts, from the commands that our Python sends, by version."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import qworker
from qworker.cli.main import cli
from qworker.engine.acl import Server, User, commands_of, write_users
from qworker.engine.acl_roles import ROLES
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from qworker.errors import InvalidOptionError
from qworker.store.connections import ConnectionFactory
from tests.tables import each
from tests.trees import nodes


@each("name", SCRIPT_NAMES)
def test_every_command_of_a_script_is_written_out(name: str) -> None:
    """A command that is put together at run time would be missing from the rules."""
    code = re.sub(r"--[^\n]*", "", load_script(name).source.decode())
    calls = len(re.findall(r"redis\.p?call\b", code))
    assert calls == len(re.findall(r"redis\.p?call\(\s*'[A-Z]+'", code))
    assert commands_of(name) <= {match.lower() for match in re.findall(r"'([A-Z]+)'", code)}


#: Said by connections, not by roles; and words of tables and texts that are names of commands as well.
NO_ROLE = {
    "evalsha", "script", "hello", "client", "auth", "select", "asking", "cluster",
    "memory", "function", "get", "set", "object", "command",
    "acl",  # asked as the all-powerful default user only, to tell of it
}  # fmt: skip
#: Not as one of the roles: to its own store, and to the keys of other systems.
_ELSEWHERE = ("store", "demo", "testing", "importers")


def raw_commands(known: set[str]) -> dict[str, set[str]]:
    """The commands that our Python sends itself, with the modules that do: first words of tuples and of calls."""
    root = Path(qworker.__file__).parent
    commands: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] in _ELSEWHERE:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Tuple):
                words = node.elts[:1]
            elif isinstance(node, ast.Call):
                words = node.args[:3]
            else:
                continue
            for word in words:
                text = word.value if isinstance(word, ast.Constant) else None
                if isinstance(text, str) and text.isupper() and text.lower() in known:
                    commands.setdefault(text.lower(), set()).add(str(path.relative_to(root)))
    return commands


@pytest.mark.slow
@pytest.mark.xdist_group("code")
def test_every_raw_command_belongs_to_a_role(store_url: str) -> None:
    """Who makes the code send another command learns here that a role has to be given it."""
    allowed = {each.partition("|")[0] for role in ROLES.values() for each in role.raw}
    allowed |= {"ping", "time"}  # every connection, every caller of scripts
    with ConnectionFactory(store_url).redis() as client:
        known = {item.decode() for item in client.command_list()}
    commands = raw_commands(known)
    assert {"hset", "blpop", "scan", "xrange", "unlink"} <= commands.keys()
    missing = {name: at for name, at in commands.items() if name not in allowed | NO_ROLE}
    assert missing == {}


def test_a_server_gets_only_commands_that_it_knows() -> None:
    """A line that names an unknown command keeps a server from starting."""
    lines = {
        version: "\n".join(
            write_users(
                [User(name=role, roles=[role]) for role in ROLES],
                "ns",
                server=Server.parse(version),
            )
        )
        for version in ("7.0.15", "7.2", "valkey-8.1.1", "redis-8.0.2")
    }
    old = lines.pop("7.0.15")
    assert "client|setinfo" not in old
    assert "waitaof" not in old
    assert all("+client|setinfo" in text and "+waitaof" in text for text in lines.values())
    with pytest.raises(InvalidOptionError, match=r"7\.0 or newer"):
        Server.parse("6.2.1")


def test_queues_of_a_role_for_all_are_refused() -> None:
    """The daemon goes through all queues: fewer would be a silent hole."""
    with pytest.raises(InvalidOptionError, match="every queue"):
        write_users([User(name="d", roles=["daemon"], queues=["mail"])], "ns", server=Server())


def test_without_a_password_no_user_can_log_in() -> None:
    """A line that is used as it stands opens nothing."""
    [line] = write_users([User(name="p", roles=["producer"])], "ns", server=Server())
    assert "nopass" not in line
    assert "#" not in line
    assert ">" not in line


def test_the_example_is_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deploy/redis/users.acl is generated, so it cannot fall behind the code."""
    monkeypatch.chdir(tmp_path)
    arguments = ["acl", "--namespace", "shop", "--server-version", "7.2", "--close-default"]
    ran = CliRunner().invoke(cli, arguments)
    assert ran.exit_code == 0, ran.stderr
    root = Path(qworker.__file__).parents[1]
    example = root / "deploy/redis/users.acl"
    assert example.read_text() == ran.stdout, "run the command of this test"


def test_passwords_go_to_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    """Never to the screen, never over a file or a link that is there already."""
    path = tmp_path / "passwords"
    arguments = ["acl", "--role", "producer+consumer", "--server-version", "7.2"]
    ran = CliRunner().invoke(cli, [*arguments, "--passwords", str(path)])
    name, _, password = path.read_text().strip().replace('"', "").partition(" = ")
    assert (ran.exit_code, name) == (0, "qworker-producer-consumer")
    assert path.stat().st_mode & 0o777 == 0o600
    assert password not in ran.output
    again = CliRunner().invoke(cli, [*arguments, "--passwords", str(path)])
    assert again.exit_code == 2
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert CliRunner().invoke(cli, [*arguments, "--passwords", str(path)]).exit_code == 2
    assert not (tmp_path / "elsewhere").exists()
