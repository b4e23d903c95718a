"""Arguments, URLs, variables and files with typing errors: one line that names the place, never a traceback."""

# ruff: noqa: PT017  an answer or a refusal: both are checked
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import strategies as st

from qworker.cli.main import cli
from qworker.config.fields import kinds_of, variable_of
from qworker.config.files import read_file
from qworker.config.loading import check_keys, load
from qworker.consumer.options import RunOptions
from qworker.daemon.options import DaemonOptions
from qworker.engine.options import QueueAttributes, SendOptions
from qworker.errors import InvalidError
from qworker.store.options import ClientOptions
from qworker.store.url import ServerURL
from qworker.telemetry.options import LogOptions
from tests.fuzz.exploring import explore

CLASSES = (ClientOptions, LogOptions, RunOptions, DaemonOptions)
SECRET = "s3cr3t"
_WORDS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "0",
            "-1",
            "5",
            "1e999",
            "nan",
            "inf",
            "٥",
            "1s",
            "-1s",
            "10ms",
            "9" * 30 + "d",
            "1KiB",
        ]
    ),
    st.sampled_from(
        [
            "true",
            "a,b",
            "a=1,b=2",
            "{a}",
            "mаil",
            "a\nb",
            "\x1b[31m",
            "../x",
            "%zz",
            "*",
            "\ud800",
            "x" * 300,
        ]
    ),
    st.text(max_size=8),
)
_VERBS = st.sampled_from(
    [
        *(
            "queue ls",
            "queue show",
            "queue set",
            "queue peek",
            "queue pause",
            "queue purge",
            "queue rm",
            "queue stat",
        ),
        *(
            "queue create",
            "queue scan",
            "message show",
            "message cancel",
            "message delete",
            "message hold",
            "dead ls",
        ),
        *(
            "dead show",
            "dead drop",
            "dead redrive",
            "dead edit",
            "worker ls",
            "schedule ls",
            "fsck",
            "doctor",
        ),
        *(
            "config show",
            "queue",
            "dead",
            "nothing",
            "import rsmq",
            "acl",
            "store path",
        ),
    ]
)
_FLAGS = st.sampled_from(
    [
        *(
            "--json",
            "--count",
            "--yes",
            "--dry-run",
            "--repair",
            "--url",
            "--namespace",
            "--config",
            "--reason",
            "--rate",
        ),
        *(
            "--older-than",
            "--limit",
            "--delay",
            "--ttl",
            "--priority",
            "--unique",
            "--state",
            "--sort",
            "--queue",
            "--all",
        ),
        *(
            "--visibility",
            "--max-receives",
            "--newest",
            "--every",
            "--xyz",
            "--priority=",
            "-n",
            "-x",
            "--",
        ),
    ]
)
_ARGUMENTS = st.lists(
    st.one_of(_WORDS, _FLAGS, st.sampled_from(["emails", "maxlen=5", "maxlen=x", "=", "--json"])),
    max_size=5,
)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """An environment whose server is not there, in its own directory; giving up takes no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qworker.cli.framework.context._PATIENCE_S", 0.01)
    monkeypatch.setattr("qworker.cli.doctor._PATIENCE_S", 0.01)
    wiped: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith(("QWORKER_", "REDIS_"))
    }
    return {**wiped, "QWORKER_URL": f"unix://{tmp_path}/nobody"}


@pytest.mark.slow
def test_arguments_are_accepted_or_refused_in_one_line(nowhere: dict[str, str | None]) -> None:
    """Whatever stands behind a verb: exit code 2 and one line, or as far as the server that is not there."""

    def call(verb: str, arguments: list[str]) -> None:
        words = [*verb.split(), *(word for word in arguments if "\0" not in word)]
        done = CliRunner().invoke(cli, words, env=nowhere, input="")
        assert "is a bug of qworker" not in done.stderr, done.stderr
        assert done.exit_code in (0, 1, 2, 3, 4), (words, done.output)
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        if done.exit_code == 2 and "Usage: " not in done.stderr:
            assert len(said) == 1, (words, done.output)
        assert all(line.isprintable() for line in said), said

    explore(call, _VERBS, _ARGUMENTS, examples=25)


_HOSTS = st.sampled_from(
    [
        "h",
        "localhost",
        "127.0.0.1",
        "[::1]",
        "[::",
        "h:1",
        "h:0",
        "h:99999",
        "h:x",
        "",
        "h,i",
        "a:1,b:2",
        " ",
    ]
)
_URLS = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                "redis",
                "rediss",
                "unix",
                "redis+sentinel",
                "redis+cluster",
                "embedded",
                "http",
                "REDIS",
                "",
            ]
        ),
        st.sampled_from(["://", ":", ":/", "", ":///"]),
        st.sampled_from(
            [
                "",
                f":{SECRET}@",
                f"user:{SECRET}@",
                "@",
                f"a:b:{SECRET}@",
                f"%zz:{SECRET}@",
                f":%ff{SECRET}@",
            ]
        ),
        _HOSTS,
        st.sampled_from(["", "/", "/0", "/x", "/-1", "/99", "/a/b", "/%zz", "/mymaster/0"]),
        st.sampled_from(
            [
                "",
                "?",
                "?db=1",
                "?dbb=1",
                "?ssl_ca_certs=/none",
                "?db=x&db=y",
                "?timeout=nan",
                "#x",
                "?%zz",
            ]
        ),
    ).map("".join),
    _WORDS,
)


@pytest.mark.slow
def test_a_url_is_accepted_or_refused_and_its_password_never_shown() -> None:
    """In the text of an accepted one and in the error of a refused one."""

    def parse(text: str) -> None:
        try:
            shown = str(ServerURL.parse(text))
        except InvalidError as error:
            shown = str(error)
            assert shown.isprintable()
        # What follows `embedded:` is a path.
        assert SECRET not in shown or text.startswith("embedded:")

    explore(parse, _URLS, examples=200)


_NAMES = st.one_of(
    st.sampled_from([name for options in CLASSES for name in kinds_of(options)]),
    st.sampled_from(["tik", "", "a b", "ü"]),
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.sampled_from(
            [
                '"5s"',
                '""',
                "5",
                "-1",
                "1.5",
                "nan",
                "inf",
                "true",
                "2026-01-01",
                "0x10",
                "'''a'''",
                "9" * 30,
            ]
        ),
        _WORDS.map(lambda word: '"' + word.replace("\\", "").replace('"', "") + '"'),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: "[" + ", ".join(each) + "]"),
        st.tuples(_NAMES, inner).map(lambda pair: f'{{ "{pair[0]}" = {pair[1]} }}'),
    ),
    max_leaves=4,
)
_LINES = st.one_of(
    st.tuples(_NAMES, _VALUES).map(lambda pair: f"{pair[0] or 'x'} = {pair[1]}"),
    st.sampled_from(
        [
            "[run]",
            "[daemon]",
            "[log]",
            "[[run]]",
            "[run.x]",
            "run = 5",
            "# note",
            "[",
            "a.b = 1",
            "=",
            "\ufeff",
        ]
    ),
)
_FILES = st.one_of(
    st.lists(_LINES, max_size=5).map(
        lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")
    ),
    st.binary(max_size=30),
)


@pytest.mark.slow
def test_a_file_is_accepted_or_refused_in_one_line(tmp_path: Path) -> None:
    """The place in the file is named."""
    path = tmp_path / "qworker.toml"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            file = read_file(tmp_path)
            check_keys(file, CLASSES)
            for options in CLASSES:
                load(options, given={}, environ={}, file=file)
        except InvalidError as error:
            assert "qworker.toml" in str(error)
            assert str(error).isprintable()

    explore(read, _FILES, examples=200)


@pytest.mark.slow
def test_an_option_is_accepted_or_refused_in_one_line(tmp_path: Path) -> None:
    """As a flag, as a variable, and as a value of the library."""
    file = read_file(tmp_path)

    def take(options: type[Any], word: str, value: Any) -> None:
        for name in kinds_of(options):
            variable = variable_of(options, name)
            for given, environ in (({name: word}, {}), ({}, {variable: word}), ({name: value}, {})):
                try:
                    load(options, given=given, environ=environ, file=file)
                except InvalidError as error:
                    assert name in str(error).lower().replace("-", "_")
                    assert str(error).isprintable()

    values = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.binary(max_size=3),
        st.lists(st.text(), max_size=2),
    )
    explore(
        take,
        st.sampled_from([*CLASSES, QueueAttributes, SendOptions]),
        _WORDS,
        values,
        examples=200,
    )
