"""The command as a whole: help, global options, errors and exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys

import click
import pytest

from qworker.cli.framework.errors import describe
from qworker.cli.main import SECTIONS, cli
from qworker.errors import InvalidOptionError, QueueFullError, UnavailableError
from tests.cli.conftest import QWORKER, clean_environment
from tests.tables import each

VERBS = [name for section in SECTIONS.values() for name in section]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [path]
    context = click.Context(command, info_name="qworker")
    commands = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        commands += leaves(child, (*path, name))
    return commands


def help_of(path: tuple[str, ...]) -> str:
    command: click.Command = cli
    # With the names of --help that a user has: click keeps those of the first help that it writes.
    context = click.Context(cli, info_name="qworker", terminal_width=80, **cli.context_settings)
    for name in path:
        assert isinstance(command, click.Group)
        child = command.get_command(context, name)
        assert child is not None
        command = child
        context = click.Context(command, info_name=name, parent=context, terminal_width=80)
    return command.get_help(context)


# -- help --------------------------------------------------------------------------------------


def test_help_fits_into_80_columns():
    """Examples too, which are printed as they are written."""
    wide = {
        (path, line)
        for path in leaves(cli)
        for line in help_of(path).splitlines()
        if len(line) > 80
    }
    assert wide == set()


def test_help_lists_every_verb_with_a_line(bare):
    """By section, in the order of use."""
    ran = bare("--help")

    assert ran.code == 0
    for name in VERBS:
        assert f"\n  {name} " in ran.out


@each("path", leaves(cli))
@pytest.mark.slow
def test_every_verb_has_a_help_that_names_the_global_options(bare, path):
    """And every option has a text."""
    ran = bare(*path, "--help")

    assert ran.code == 0
    assert ran.out.startswith(f"Usage: qworker {' '.join(path)}")
    assert "Global options (see qworker --help)" in ran.out
    command = cli
    for name in path:
        command = command.get_command(click.Context(command), name)  # type: ignore[assignment]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter


@each("path", leaves(cli))
def test_every_listing_has_json(path):
    """Every command that shows or changes something has a form for programs."""
    without = {("acl",), ("daemon",), ("run",), ("web",), ("completion",), ("store", "path")}
    command = cli
    for name in path:
        command = command.get_command(click.Context(command), name)  # type: ignore[assignment]
    names = {parameter.name for parameter in command.params}

    assert ("as_json" in names) == (path not in without)


@pytest.mark.parametrize(
    "path",
    [
        ("queue", "purge"),
        ("queue", "rm"),
        ("message", "cancel"),
        ("dead", "redrive"),
        ("dead", "drop"),
    ],
    ids=" ".join,
)
def test_every_destructive_verb_has_dry_run_and_yes(path):
    """The same words everywhere."""
    command = cli
    for name in path:
        command = command.get_command(click.Context(command), name)  # type: ignore[assignment]

    assert {"dry_run", "yes"} <= {parameter.name for parameter in command.params}


@pytest.mark.slow
def test_help_imports_no_verb():
    """`qworker --help` answers at once, regardless of the number of verbs."""
    code = (
        "import sys, click\n"
        "from qworker.cli.main import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "ours = {name for name in sys.modules if name.startswith('qworker.cli.')}\n"
        "print(sorted(ours), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.strip() == str(
        [
            "qworker.cli.framework",
            "qworker.cli.framework.commands",
            "qworker.cli.framework.context",
            "qworker.cli.framework.errors",
            "qworker.cli.framework.output",
            "qworker.cli.framework.queues",
            "qworker.cli.framework.quick_imports",
            "qworker.cli.framework.settings",
            "qworker.cli.framework.streams",
            "qworker.cli.framework.suggestions",
            "qworker.cli.framework.terminal",
            "qworker.cli.main",
        ]
    )


def test_version(bare):
    """A number, and nothing is connected for it."""
    ran = bare("--version")

    assert (ran.code, ran.out.split()[0]) == (0, "qworker")


def test_a_group_without_a_verb_shows_its_help(bare):
    """On stderr, as bad input."""
    ran = bare("queue")

    assert ran.code == 2
    assert ran.err.startswith("Usage: qworker queue")


# -- global options ----------------------------------------------------------------------------


def test_global_options_stand_before_or_after_the_verb(bare, shop):
    """Where they come to mind; the last one counts."""
    shop.send("emails")
    options = ["--url", shop.url, "--namespace", shop.namespace]

    before = bare(*options, "queue", "ls")
    after = bare("queue", "ls", *options)
    between = bare("queue", *options, "ls")
    twice = bare("--namespace", "wrong", "queue", "ls", *options)

    for ran in (before, after, between, twice):
        assert "emails" in ran.out


def test_without_url_and_terminal_nothing_is_started(bare):
    """No pod gets its own store by accident: the variable to set is named, and what to try without a server."""
    ran = bare("queue", "ls")

    assert ran.code == 2
    assert ran.err == (
        "error: url: is not set; set QWORKER_URL to the URL of your Redis or Valkey (redis://host:6379/0), or to "
        "embedded: for a server of your own, started in your home directory\n"
    )


def test_redis_url_is_taken_where_an_app_would_take_it(bare, shop):
    """And said, as QWORKER_URL is what we ask for."""
    shop.send("emails")

    ran = bare("queue", "ls", "--namespace", shop.namespace, env={"REDIS_URL": shop.url})

    assert "emails" in ran.out
    assert ran.err == "QWORKER_URL is not set: using REDIS_URL\n"


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["queu"], "no such command 'queu'. Did you mean 'queue'? (see qworker --help)"),
        (["queue", "lss"], "no such command 'lss'. Did you mean 'ls'? (see qworker queue --help)"),
        (["dead", "list"], "Did you mean 'ls'?"),
        (["dead", "xyz"], "no such command 'xyz' (see qworker dead --help)"),
        (["spark", "adit"], "Did you mean 'audit'?"),
        (
            ["queue", "create", "emails", "--maxlen", "5"],
            "no such option '--maxlen': maxlen is an attribute, write maxlen=5",
        ),
        (
            ["queue", "set", "--max-receives=7", "emails"],
            "no such option '--max-receives': max-receives is an attribute, write max-receives=7",
        ),
        (
            ["queue", "set", "emails", "--ttl"],
            "no such option '--ttl': ttl is an attribute, write ttl=VALUE",
        ),
        (["queue", "set", "emails", "--creat"], "no such option '--creat'. Did you mean"),
        (["queue", "ls", "--jsno"], "no such option '--jsno'. Did you mean '--json'?"),
        (["--ulr", "x", "queue", "ls"], "no such option '--ulr'. Did you mean '--url'?"),
        (["daemon", "--durablity", "warn"], "Did you mean one of: '--durability'"),
        (["run", "--concurency", "3", "m"], "Did you mean '--concurrency'?"),
        (["queue", "show"], "missing argument 'QUEUE'"),
        (["run"], "name the module of your app, such as qworker run jobs for jobs.py"),
        (["queue", "peek", "a", "--state", "raedy"], "'raedy' is not one of"),
        (
            ["queue", "peek", "a", "--count", "0"],
            "count: 0 is out of range; a number from 1 to 1000",
        ),
        (["top", "--every", "1ms"], "--every: '1ms' is out of range"),
        (["daemon", "--tick", "abc"], "--tick: 'abc' is not a duration"),
        (["daemon", "--metrics-port", "70000"], "--metrics-port: 70000 is out of range"),
        (
            ["daemon", "--durability", "strong"],
            "--durability: 'strong' is not accepted; it must be",
        ),
        (["run", "m", "--concurrency", "0"], "--concurrency: 0 is out of range"),
        (["run", "m", "--max-rss", "5"], "--max-rss: 5 is out of range"),
        (["run", "m", "--queues", "a,B"], "--queues: 'B' is not a valid name"),
        (["queue", "ls", "--log-level", "loud"], "--log-level: 'loud' is not accepted"),
        (["queue", "ls", "--config", "/nonexistent"], "/nonexistent: cannot be read"),
        (["queue", "ls", "--namespace", "A"], "--namespace: 'A' is not a valid name"),
        (["queue", "ls", "--url", ""], "--url: is empty"),
        (["queue", "ls", "--url", "http://x"], "--url: http:// is not a known scheme"),
        (["queue", "ls", "--url", "redis://h:99999"], "--url: has a wrong port"),
        (["queue", "set", "a", "visibilty=1s"], "visibilty: is unknown; did you mean visibility?"),
        (["queue", "set", "a", "visibility"], "visibility: has no value; write visibility=VALUE"),
        (["queue", "set", "a", ""], "KEY=VALUE: '' names no attribute; write one, such as"),
        (["queue", "set", "a", "=1s"], "KEY=VALUE: '=1s' names no attribute; write one, such as"),
        (["queue", "set", "a", "visibility=0"], "visibility: 0 is out of range"),
        (["queue", "set", "a", "visibility=13h"], "visibility: '13h' is out of range"),
        (["queue", "set", "a", "maxlen=-1"], "maxlen: -1 is out of range"),
        (["queue", "set", "a", "maxsize=1KB"], "maxsize: '1KB' is not a size"),
        (["queue", "set", "a", "maxsize=100"], "maxsize: 100 is out of range"),
        (["queue", "set", "a", "max-receives=1e9"], "max-receives: '1e9' is not an integer"),
        (["queue", "set", "a", "ttl=1s", "ttl=2s"], "ttl: is given twice; write it once"),
        (["dead", "ls", "a", "--older-than", "x"], "--older-than: 'x' is not a duration"),
        (["dead", "ls", "a", "--older-than", "5y"], "such as '250ms', '30s', '10m', '2h' or '7d'"),
        (["dead", "ls", "a", "--limit", "0"], "0 is out of range; give 1 or more"),
        (["queue", "peek", "a", "-n", "x"], "'x' is not a whole number; give -1000 to 1000"),
        (["limit", "groups", "a", "--limit", "1001"], "1001 is out of range; give 1 to 1000"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(run, shop, args, hint):
    """The field, the problem, the limit or the nearest name; nothing is written."""
    shop.send("a")
    before = shop.dump()

    ran = run(*args)

    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert hint in ran.err
    assert shop.dump() == before


@pytest.mark.bad_input("queue name: in every verb of the command line")
@each(
    "name",
    [
        "", "x" * 65, "Mail", "a b", "a:b", "{a}", "a}{b", "*", "a?", "[a]", "a\nb", "a\x1b[0m",
        "m\u0430il", "reaper", "queues", "../x", "%7Ba%7D", "-a",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "verb",
    [
        ["queue", "show"], ["queue", "peek"], ["queue", "pause"], ["queue", "purge", "--yes"],
        ["queue", "rm", "--yes"], ["dead", "ls"], ["dead", "drop", "--all", "--yes"], ["send"],
        ["queue", "set", "--create"], ["message", "show", "x", "--queue"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_that_is_none_reaches_neither_server_nor_terminal(run, shop, verb, name):
    """One rule for all verbs."""
    rest = {"send": ["{}"], "set": ["maxlen=3"]}.get(verb[-1].replace("--create", "set"), [])
    args = [*verb, name, *rest] if verb[-1] == "--queue" else [*verb, "--", name, *rest]

    ran = run(*args)

    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert "is not a valid name" in ran.err or "is reserved" in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.isascii()
    assert "\x1b" not in ran.err
    assert shop.dump() == {}


def test_errors_of_the_tree_have_their_codes_and_advice():
    """Bad input 2, refusals and servers 1, what we did not foresee 1 with how to report it."""
    assert describe(InvalidOptionError("x", "is bad", "be good")) == ("x: is bad; be good", 2)
    assert describe(QueueFullError("q", 5, 5)) == (
        "queue 'q' is full: it stores 5 messages and maxlen is 5; nothing was sent; add workers, or raise "
        "the limit: qworker queue set q maxlen=10",
        1,
    )
    assert describe(UnavailableError("no")) == ("no; run qworker doctor", 1)
    text, code = describe(KeyError("x"))
    assert code == 1
    assert text.startswith("KeyError: 'x'; this is a bug in qworker or its environment")


@pytest.mark.slow
def test_an_error_has_no_traceback_unless_it_is_asked_for(process):
    """QWORKER_DEBUG=1 shows where it comes from; no password in either."""
    url = "redis://:hunter2@localhost:1"

    quiet = process("queue", "ls", QWORKER_URL=url)
    loud = process("queue", "ls", QWORKER_URL=url, QWORKER_DEBUG="1")

    assert (quiet.code, quiet.out) == (1, "")
    assert "Traceback" not in quiet.err
    assert quiet.err.startswith("error: the server was not reached, nothing was sent")
    assert "qworker doctor" in quiet.err
    assert "Traceback" in loud.err
    assert "hunter2" not in quiet.err + loud.err


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_reported_in_time(shop, process):
    """A listener that never speaks: an error within the patience of an operator."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ran = process("queue", "ls", QWORKER_URL=f"redis://127.0.0.1:{port}")

    assert ran.code == 1
    assert ran.err.startswith("error: ")


@pytest.mark.slow
def test_an_app_that_cannot_be_imported_is_one_line(process):
    """`run` names the module."""
    ran = process("run", "no_such_module", "--metrics-port", "0")

    assert ran.code == 2
    assert "no_such_module" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err


# -- secrets -----------------------------------------------------------------------------------


def test_a_password_on_the_command_line_works_and_is_warned_about(bare, impatient):
    """Every user can read the process list."""
    ran = bare("queue", "ls", "--url", "redis://:hunter2@localhost:1")

    assert ran.err.startswith("warning: every user of this host can read the password in --url")
    assert "hunter2" not in ran.err + ran.out


@pytest.mark.bad_input("configuration: password in the URL")
@pytest.mark.parametrize(
    "args",
    [["queue", "ls"], ["doctor"], ["doctor", "--json"], ["config", "show"], ["config", "show", "--json"],
     ["top", "--once"], ["send", "a", "{}"], ["daemon", "--tick", "x"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize(
    "url",
    ["redis://u:hunter2@localhost:1", "redis://u:hunter2@localhost:99999", "hunter2", "redis://hunter2@h",
     "unix://:hunter2@/nonexistent", "redis://:hunter2%@h"],
)  # fmt: skip
def test_a_password_is_shown_nowhere(bare, args, url, impatient):
    """Whatever is wrong with the URL."""
    ran = bare(*args, "--namespace", "x", env={"QWORKER_URL": url})

    assert ran.code in (0, 1, 2, 3)
    assert "hunter2" not in ran.out + ran.err


# -- pipes and signals -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_is_not_an_error(shop):
    """`qworker queue peek q | head -1` ends quietly."""
    shop.send("emails", 1000)
    command = f"'{QWORKER}' queue peek emails --count 1000 --full | head -1; echo codes ${{PIPESTATUS[@]}}"

    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env=clean_environment(QWORKER_URL=shop.url, QWORKER_NAMESPACE=shop.namespace),
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "codes 0 0"
    assert done.stderr == ""


@pytest.mark.slow
def test_an_interrupt_ends_quietly_with_130(shop, terminal):
    """No traceback, no "Aborted!"."""
    shop.send("emails")
    screen = terminal("queue", "show", "emails", "--over", "30s")
    # It has connected as soon as the server knows it, and then sleeps.
    while not any(b"qworker-cli" in clients for clients in shop.ask_each("CLIENT", "LIST")):
        pass
    screen.process.send_signal(signal.SIGINT)

    assert screen.wait() == 130
    assert "Traceback" not in screen.seen
    assert "Abort" not in screen.seen


@pytest.mark.slow
def test_output_into_a_pipe_has_no_escape_codes(shop, process):
    """And colour is not forced by the terminal's name."""
    shop.send("emails", 2)
    shop.bury("boom")
    shop.add_worker()

    for args in (
        ["queue", "ls"],
        ["queue", "show", "emails", "--over", "0"],
        ["queue", "peek", "emails"],
        ["dead", "ls"],
        ["worker", "ls"],
        ["top", "--every", "200ms"],
        ["doctor"],
        ["config", "show"],
    ):
        ran = process(*args)
        assert ran.code in (0, 3), args
        assert "\x1b" not in ran.out + ran.err, args
        assert ran.out, args


def test_a_command_has_its_short_help_without_its_parent():
    """Click keeps the option from the first call: the reference is the same whatever was called before."""
    from qworker.cli.demo import command
    from qworker.cli.limit.group import command as group

    for verb in (command, group, group.commands["ls"]):
        alone = verb.make_context("alone", [], resilient_parsing=True)
        assert alone.help_option_names == ["-h", "--help"]
