"""The document of a worker, on a server that refuses it."""

from __future__ import annotations

import pytest

from qworker.client.execute.sync import Client
from qworker.consumer.supervisor.operators.presence import Presence
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import leaving_key
from tests import servers


@pytest.mark.bad_input("server: out of memory")
@pytest.mark.parametrize("engine", ["valkey", "redis"])
def test_a_full_server_refuses_the_document_and_still_answers(
    engine: str, logs: list[dict[str, object]]
) -> None:
    """The refusal is logged once, and a request to leave that was stored before is seen."""
    with (
        servers.start(engine, "--maxmemory-policy", "noeviction") as server,
        Client(ConnectionFactory(server.url)) as client,
    ):
        presence = Presence(client, "ns", "app", owns=True)
        assert presence.write([], ["q"], 1, 0) is False
        server.redis().hset(leaving_key("ns"), presence.name, "1")
        server.redis().config_set("maxmemory", 1)
        assert presence.write([], ["q"], 1, 0) is True
        assert presence.write([], ["q"], 1, 0) is True
        server.redis().config_set("maxmemory", 0)
    (line,) = [line for line in logs if line["event"] == "presence_unwritten"]
    assert "maxmemory" in str(line["problem"])
