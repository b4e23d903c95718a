"""Configuration: which value wins, its source, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from qworker.cli.framework.option_classes import OPTION_CLASSES
from qworker.config.files import ConfigFile
from qworker.config.loading import Setting, check_keys, load
from qworker.consumer.options import RunOptions
from qworker.daemon.options import DaemonOptions, check_tick
from qworker.errors import InvalidError, InvalidNameError, InvalidOptionError
from qworker.store.options import ClientOptions
from qworker.telemetry.options import LogOptions
from tests.tables import each

NO_FILE = ConfigFile()


def file(**values: object) -> ConfigFile:
    return ConfigFile(Path("qworker.toml"), values)


def loaded(options, given=None, environ=None, config=NO_FILE):
    check_keys(config, OPTION_CLASSES)
    return load(options, given=given or {}, environ=environ or {}, file=config)


def refused(options, given=None, environ=None, config=NO_FILE) -> InvalidError:
    with pytest.raises(InvalidError) as caught:
        loaded(options, given, environ, config)
    return caught.value


class TestPrecedence:
    def test_an_option_wins_over_environment_file_and_default(self):
        """An option wins over the environment, which wins over the file, which wins over the default."""
        given, environ = {"tick": "1s"}, {"QWORKER_TICK": "2s"}
        config = file(daemon={"tick": "3s"})
        assert loaded(DaemonOptions, given, environ, config).settings["tick"] == Setting(
            "1s", "--tick"
        )
        assert loaded(DaemonOptions, {}, environ, config).settings["tick"] == Setting(
            "2s", "QWORKER_TICK"
        )
        from_file = loaded(DaemonOptions, {}, {}, config)
        assert from_file.settings["tick"] == Setting("3s", "qworker.toml: daemon.tick")
        assert from_file.options.tick_ms == 3000
        assert loaded(DaemonOptions).settings["tick"] == Setting("1s", "default")

    def test_none_counts_as_not_given(self):
        """A flag that was not given is None, and is ignored."""
        assert loaded(RunOptions, {"procs": None}, {"QWORKER_PROCS": "3"}).options.procs == 3

    def test_every_command_reads_its_own_table(self):
        """Every command reads its own table; one variable serves both."""
        config = file(run={"metrics_port": 1}, daemon={"metrics_port": 2})
        assert loaded(RunOptions, config=config).options.metrics_port == 1
        assert loaded(DaemonOptions, config=config).options.metrics_port == 2
        assert (
            loaded(DaemonOptions, environ={"QWORKER_METRICS_PORT": "3"}).options.metrics_port == 3
        )

    def test_the_top_of_the_file_is_for_client_and_logs(self):
        """The top of the file is for the client and the logs."""
        config = file(namespace="shop", log_level="debug")
        assert loaded(ClientOptions, config=config).options.namespace == "shop"
        assert loaded(LogOptions, config=config).options.log_level == "debug"

    def test_values_are_typed_or_text(self):
        """Given options can be text of the command line or Python values."""
        options = loaded(
            RunOptions, {"procs": "2", "queues": ["a"], "grace": 5, "burst": True}
        ).options
        assert (options.procs, options.queues, options.grace_ms, options.burst) == (
            2,
            ("a",),
            5000,
            True,
        )

    def test_other_variables_are_ignored(self):
        """Other variables are ignored: a Kubernetes service called qworker sets QWORKER_PORT."""
        loaded(RunOptions, environ={"QWORKER_PORT": "tcp://10.0.0.1:80", "QWORKER_TICK": "abc"})


class TestDefaults:
    def test_run(self):
        """Defaults of run."""
        options = RunOptions()
        assert (options.procs, options.concurrency, options.batch, options.visibility_ms) == (
            None,
        ) * 4
        assert (options.queues, dict(options.weights)) == ((), {})
        assert (options.grace_ms, options.watchdog_ms) == (25_000, 60_000)
        assert (options.metrics_host, options.metrics_port, options.reaper) == (
            "127.0.0.1",
            9464,
            True,
        )
        assert (options.max_messages, options.max_rss, options.burst, options.reload) == (
            0,
            0,
            False,
            False,
        )

    def test_daemon(self):
        """Defaults of the daemon."""
        options = DaemonOptions()
        assert (options.tick_ms, options.metrics_host, options.metrics_port) == (
            1000,
            "127.0.0.1",
            9465,
        )
        assert options.durability == "warn"

    def test_client_and_logs(self):
        """Defaults of client and logs."""
        assert ClientOptions() == ClientOptions(url=None, namespace="qworker")
        assert LogOptions() == LogOptions(log_format="auto", log_level="info")


class TestRefusals:
    @each(
        "text",
        [
            pytest.param("abc", id="letters"),
            pytest.param("1e999", id="overflow"),
            pytest.param(" 5 ", id="spaces"),
            pytest.param("٥", id="Arabic digit"),
            pytest.param("", id="empty"),
        ],
    )
    @each(
        "options, name",
        [(DaemonOptions, "TICK"), (RunOptions, "PROCS"), (RunOptions, "MAX_RSS")],
    )
    def test_the_error_of_a_wrong_variable_names_it(self, options, name, text):
        """The error of a wrong variable names it."""
        error = refused(options, environ={f"QWORKER_{name}": text})
        assert error.field == f"QWORKER_{name}"

    @each(
        "options, given",
        [
            pytest.param(RunOptions, {"concurrency": 0}, id="concurrency zero"),
            pytest.param(RunOptions, {"concurrency": 10_000}, id="concurrency ten thousand"),
            pytest.param(RunOptions, {"procs": 0}, id="procs zero"),
            pytest.param(RunOptions, {"visibility": 0}, id="visibility zero"),
            pytest.param(RunOptions, {"visibility": "999ms"}, id="visibility under a second"),
            pytest.param(RunOptions, {"visibility": "13h"}, id="visibility over 12 hours"),
            pytest.param(RunOptions, {"batch": 0}, id="batch zero"),
            pytest.param(RunOptions, {"batch": 1001}, id="batch over a thousand"),
            pytest.param(RunOptions, {"grace": -1}, id="grace negative"),
            pytest.param(RunOptions, {"watchdog": "1s"}, id="watchdog under 5 s"),
            pytest.param(RunOptions, {"max_rss": "1MiB"}, id="rss no process fits in"),
            pytest.param(RunOptions, {"metrics_port": -1}, id="port negative"),
            pytest.param(RunOptions, {"metrics_port": 65_536}, id="port over 65535"),
            pytest.param(RunOptions, {"metrics_host": "a b"}, id="host with a space"),
            pytest.param(RunOptions, {"metrics_host": ""}, id="host empty"),
            pytest.param(RunOptions, {"queues": "Mail"}, id="queue with upper case"),
            pytest.param(RunOptions, {"queues": "a,,b"}, id="queue without a name"),
            pytest.param(RunOptions, {"weights": "a=0"}, id="weight zero"),
            pytest.param(DaemonOptions, {"tick": 0}, id="tick zero"),
            pytest.param(DaemonOptions, {"tick": "9ms"}, id="tick under 10 ms"),
            pytest.param(DaemonOptions, {"durability": "maybe"}, id="durability unknown"),
            pytest.param(LogOptions, {"log_level": "DEBUG"}, id="level in upper case"),
            pytest.param(ClientOptions, {"namespace": "a:b"}, id="namespace with a colon"),
            pytest.param(ClientOptions, {"url": "http://h"}, id="URL of another scheme"),
            pytest.param(ClientOptions, {"url": "redis://h:99999"}, id="URL with a wrong port"),
            pytest.param(ClientOptions, {"url": "redis://h/%zz"}, id="URL with a bad escape"),
            pytest.param(
                ClientOptions, {"url": "rediss://h?ssl_ca_certs=/none.pem"}, id="CA file missing"
            ),
        ],
    )
    def test_the_error_of_a_value_out_of_range_names_the_flag(self, options, given):
        """The error of a value out of range names the flag."""
        (name,) = given
        assert refused(options, given).field.startswith(f"--{name.replace('_', '-')}")

    @each(
        "options, config, field",
        [
            pytest.param(
                RunOptions, file(run={"procs": "2"}), "run.procs", id="text for an integer"
            ),
            pytest.param(
                RunOptions, file(run={"procs": True}), "run.procs", id="boolean for an integer"
            ),
            pytest.param(
                RunOptions, file(run={"burst": 1}), "run.burst", id="integer for a boolean"
            ),
            pytest.param(
                RunOptions, file(run={"grace": [5]}), "run.grace", id="array for a duration"
            ),
            pytest.param(RunOptions, file(run={"queues": "a"}), "run.queues", id="text for names"),
            pytest.param(RunOptions, file(run=5), "run", id="integer for a table"),
            pytest.param(ClientOptions, file(url=5), "url", id="integer for a URL"),
        ],
    )
    def test_the_error_of_a_wrong_type_in_the_file_names_file_and_key(self, options, config, field):
        """The error of a wrong type in the file names file and key."""
        assert refused(options, config=config).field == f"qworker.toml: {field}"

    @each(
        "config, text",
        [
            pytest.param(
                file(daemon={"tik": "1s"}),
                "qworker.toml: daemon.tik: is unknown; did you mean tick?",
                id="near in a table",
            ),
            pytest.param(
                file(namspace="a"),
                "qworker.toml: namspace: is unknown; did you mean namespace?",
                id="near at the top",
            ),
            pytest.param(
                file(deamon={}),
                "qworker.toml: deamon: is unknown; did you mean daemon?",
                id="table",
            ),
            pytest.param(
                file(zzz=1),
                "known are url, namespace, give_up, keys_file, signing_keys, encryption_keys, signatures, "
                "log_format, log_level, run, daemon",
                id="far",
            ),
            pytest.param(
                file(tick="1s"),
                "qworker.toml: tick: is in the wrong table; move it to [daemon]",
                id="table forgotten",
            ),
            pytest.param(
                file(run={"url": "redis://h"}),
                "move it to the top",
                id="key of the top in a table",
            ),
        ],
    )
    @each("options", [ClientOptions, RunOptions])
    def test_an_unknown_key_is_refused(self, options, config, text):
        """An unknown key is refused, whichever options are loaded, with the nearest one or its table."""
        assert text in str(refused(options, config=config))

    def test_weights_are_for_queues_that_the_worker_receives_from(self):
        """Weights are for queues that the worker receives from."""
        assert RunOptions(queues=("a", "b"), weights={"a": 2}).weights == {"a": 2}
        with pytest.raises(InvalidOptionError) as caught:
            RunOptions(queues=("a",), weights={"b": 2})
        assert str(caught.value) == "weights: 'b' is not among the queues; name it in queues too"

    def test_options_made_in_python_are_checked(self):
        """Options made in Python are checked, too."""
        with pytest.raises(InvalidOptionError) as caught:
            RunOptions(concurrency="8")  # type: ignore[arg-type]
        assert (
            str(caught.value)
            == "concurrency: '8' is not an integer; it must be an integer from 1 to 1000"
        )
        with pytest.raises(InvalidNameError):
            ClientOptions(namespace="{a}")


class TestTick:
    def test_a_tick_is_under_half_of_the_visibility(self):
        """A tick is under half of the visibility."""
        check_tick(499, 1000, "mail")
        with pytest.raises(InvalidOptionError) as caught:
            check_tick(500, 1000, "mail")
        assert str(caught.value) == (
            "tick: 500ms is too long for the visibility 1s of queue 'mail'; "
            "choose a tick under 500ms, or a longer visibility"
        )


class TestShowing:
    @pytest.mark.parametrize("source", ["given", "environ", "config"])
    def test_passwords_are_never_shown(self, source):
        """Passwords are never shown, whatever their source."""
        url = "redis://app:S3CR3T@h:6380/2"
        sources = {
            "given": {"given": {"url": url}},
            "environ": {"environ": {"QWORKER_URL": url}},
            "config": {"config": file(url=url)},
        }
        result = loaded(ClientOptions, **sources[source])
        assert result.options.url.password == "S3CR3T"
        assert result.settings["url"].value == "redis://app:***@h:6380/2"
        assert "S3CR3T" not in repr(result)

    @each(
        "url",
        [
            "redis://:S3CR3T",
            "http://u:S3CR3T@h",
            "redis://u:S3/CR3T@h:x",
            "S3CR3T",
            "redis://S3CR3T@h",
        ],
    )
    def test_a_wrong_url_is_not_quoted(self, url):
        """A wrong URL is not quoted: its password can be anywhere."""
        message = str(refused(ClientOptions, environ={"QWORKER_URL": url}))
        assert "S3CR3T" not in message
        assert "CR3T" not in message

    def test_values_are_shown_as_they_are_written(self):
        """Every field has a setting, shown as you write it."""
        result = loaded(
            RunOptions,
            {"max_rss": "500MiB", "weights": "a=3,b=1", "queues": "a,b", "reaper": False},
        )
        shown = {name: setting.value for name, setting in result.settings.items()}
        assert shown == {
            "procs": "",
            "concurrency": "",
            "queues": "a,b",
            "weights": "a=3,b=1",
            "burst": "false",
            "reload": "false",
            "grace": "25s",
            "cancel_grace": "10s",
            "max_messages": "0",
            "max_rss": "500MiB",
            "log_messages": "debug",
            "metrics_host": "127.0.0.1",
            "metrics_port": "9464",
            "metrics_queues": "1000",
            "reaper": "false",
            "visibility": "",
            "batch": "",
            "unknown_wait": "1h",
            "loop": "auto",
            "watchdog": "1m",
        }

    def test_a_long_grace_causes_a_note(self):
        """A grace of 30 s or more causes a note: Kubernetes kills before it ends."""
        assert RunOptions(grace="29s").notes == ()
        assert "terminationGracePeriodSeconds" in RunOptions(grace="30s").notes[0]
