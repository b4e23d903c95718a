"""What the guide to production says about backups and effects: a restored server, and a message that runs twice."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from qworker import QWorker, current
from qworker.cli.main import cli
from qworker.engine.raw import raw
from qworker.testing import drain
from tests import servers
from tests.docs.blocks import blocks


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["valkey", "redis"])
def test_a_backup_is_an_older_state_that_the_steps_of_the_guide_restore(
    tmp_path: Path, engine: str
) -> None:
    """What has ended since is back, unacked and delayed messages too; what was sent since is gone."""
    with servers.start(engine, "--save", "", guarded=False) as server:
        app = QWorker("shop", url=server.url)
        queue = app.queue("emails")
        queue.send("first")
        [first] = queue.receive(1)
        queue.send("second")
        queue.send("third", delay="1h")
        server.redis().save()
        shutil.copy(Path(server.redis().config_get("dir")["dir"], "dump.rdb"), tmp_path)
        queue.ack(first)
        queue.send("later")
        queue.purge()
        app.close()

    restored = ("--dir", str(tmp_path), "--save", "")
    with servers.start(engine, *restored, "--appendonly", "no", guarded=False) as server:
        [steps] = blocks("docs/guides/planning.md", "sh")
        for line in steps.splitlines():
            environ = {"QWORKER_URL": server.url, "QWORKER_NAMESPACE": "shop"}
            done = CliRunner().invoke(cli, line.split()[1:], env=environ)
            assert done.exit_code == 0, done.output
        app = QWorker("shop", url=server.url)
        queue = app.queue("emails")
        assert queue.receive(9) == []
        seen = queue.inspect()
        assert (seen.ready, seen.delayed, seen.unacked) == (1, 1, 1)
        server.redis().config_set("appendonly", "yes")
        queue.resume()
        assert [message.body for message in queue.receive(9, reap=True)] == [b'"second"']
        app.close()


@pytest.mark.parametrize("engine", ["valkey", "redis"])
def test_a_server_with_an_append_only_file_ignores_the_snapshot(
    tmp_path: Path, engine: str
) -> None:
    """So a restore begins without it."""
    with servers.start(engine, "--save", "", guarded=False) as server:
        server.redis().set("key", "value")
        server.redis().save()
        shutil.copy(Path(server.redis().config_get("dir")["dir"], "dump.rdb"), tmp_path)
    for appendonly, keys in (("no", 1), ("yes", 0)):
        arguments = ("--dir", str(tmp_path), "--save", "", "--appendonly", appendonly)
        with servers.start(engine, *arguments, guarded=False) as server:
            assert server.redis().dbsize() == keys


def test_an_effect_counts_once_if_its_message_is_handled_twice(
    qworker_bind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block of the guide, with two copies of one message and a second message."""
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as database:
        database.execute("CREATE TABLE handled (id TEXT PRIMARY KEY)")
        database.execute("CREATE TABLE accounts (name TEXT, cents INTEGER)")
        database.execute("INSERT INTO accounts VALUES ('ada', 0)")
    [block] = [block for block in blocks("docs/guides/consumer.md", "python") if "sqlite3" in block]
    app = QWorker("shop")
    module = {"app": app, "sqlite3": sqlite3, "current": current}
    exec(block, module)
    bound = qworker_bind(app)
    for _ in range(2):
        module["book"].send("ada", 5)
    key = bound.queue("ledger").keys.ready[0]
    copy = bound.client.execute(raw("LINDEX", key, 0))
    bound.client.execute(raw("RPUSH", key, copy))

    assert drain(bound).handled == 3

    [cents] = sqlite3.connect("shop.db").execute("SELECT cents FROM accounts").fetchone()
    assert cents == 10
