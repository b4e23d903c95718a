"""TLS to all servers that a URL leads to: Sentinels, the master that they name, the nodes of a Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from qworker import QWorker
from qworker.errors import UnavailableError
from qworker.store.connections import ConnectionFactory
from tests.ports import free_ports
from tests.servers import binary_of, missing
from tests.store.connecting import aconnect
from tests.topologies.servers import Node, until

#: What is wrong with a certificate, and what OpenSSL says about it.
WRONG = {
    "other.pem": "self.signed certificate|unable to get local issuer",
    "host.pem": "mismatch|doesn't match",
    "expired.pem": "expired",
}


class TLS:
    """A node of a Cluster and a master behind one Sentinel, which speak TLS only as `localhost` or 127.0.0.1."""

    def __init__(self, directory: Path) -> None:
        self.directory, ca = directory, trustme.CA()
        ca.cert_pem.write_to_path(directory / "ca.pem")
        yesterday = datetime.now(UTC) - timedelta(days=1)
        issued = {
            "right": ca.issue_cert("localhost", "127.0.0.1"),
            "other": trustme.CA().issue_cert("localhost", "127.0.0.1"),
            "host": ca.issue_cert("elsewhere.example"),
            "expired": ca.issue_cert("localhost", "127.0.0.1", not_after=yesterday),
        }
        for name, certificate in issued.items():
            certificate.private_key_and_cert_chain_pem.write_to_path(directory / f"{name}.pem")
        plain, bus, node, plain_master, master, watcher = free_ports(6)
        options = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--tls-cluster", "yes")
        self.node = self._start(plain, "--tls-port", str(node), *options)
        self.master = self._start(plain_master, "--tls-port", str(master))
        self.node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: b"cluster_state:ok" in self.node.ask("CLUSTER", "INFO"))
        self.sentinel = self._watch(watcher, master)
        options = f"?ssl_ca_certs={directory / 'ca.pem'}"
        self.urls = {
            "cluster": f"rediss+cluster://localhost:{node}{options}",
            "sentinel": f"rediss+sentinel://localhost:{watcher}/main{options}",
        }

    def present(self, certificate: str) -> None:
        """Let the servers (not the Sentinel) show another certificate from now on."""
        path = str(self.directory / certificate)
        for node in (self.node, self.master):
            node.ask("CONFIG", "SET", "tls-cert-file", path, "tls-key-file", path)

    def close(self) -> None:
        for node in (self.node, self.master, self.sentinel):
            node.close()

    def _certificates(self, dashes: str = "--") -> list[str]:
        right, ca = self.directory / "right.pem", self.directory / "ca.pem"
        files = {"cert-file": right, "key-file": right, "ca-cert-file": ca}
        words = [
            word for name, file in files.items() for word in (f"{dashes}tls-{name}", str(file))
        ]
        return [*words, f"{dashes}tls-auth-clients", "no"]

    def _start(self, plain: int, *options: str) -> Node:
        directory = self.directory / str(plain)
        directory.mkdir()
        place = ("--port", str(plain), "--bind", "127.0.0.1", "--dir", str(directory))
        node = Node([binary_of("redis"), *place, *self._certificates(), *options], plain, directory)
        node.start()
        until(lambda: node.redis().ping() or "TLS" in node.log, what="a server with TLS")
        return node

    def _watch(self, port: int, master: int) -> Node:
        directory = self.directory / str(port)
        directory.mkdir()
        words = self._certificates(dashes="")
        lines = [" ".join(pair) for pair in zip(words[::2], words[1::2], strict=True)]
        file = directory / "sentinel.conf"
        file.write_text(
            "\n".join(
                [
                    f"port 0\ntls-port {port}\ntls-replication yes\nbind 127.0.0.1\ndir {directory}",
                    *lines,
                    f"sentinel monitor main 127.0.0.1 {master} 1\n",
                ]
            )
        )
        node = Node([binary_of("redis"), str(file), "--sentinel"], port, directory)
        node.start()
        until(lambda: "+monitor" in node.log, what="a Sentinel with TLS")
        return node


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLS]:
    try:
        made = TLS(tmp_path_factory.mktemp("tls"))
    except AssertionError as error:
        missing(f"the redis server on this machine is built without TLS ({error})")
    yield made
    made.close()


@pytest.fixture(params=["cluster", "sentinel"])
def url(tls: TLS, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL that is right in every way."""
    yield tls.urls[request.param]
    tls.present("right.pem")


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    [
        "cluster",
        pytest.param("sentinel", marks=pytest.mark.nightly("test_everything_is_encrypted")),
    ],
    indirect=True,
)
def test_everything_is_encrypted(url: str, namespace: str) -> None:
    """Messages are sent and received, sync and async."""
    app = QWorker(namespace, url=url)
    app.queue("q").send({"n": 1})
    (message,) = app.queue("q").receive(1)
    app.queue("q").ack(message)
    app.close()

    async def look() -> int:
        other = QWorker(namespace, url=url)
        stored = (await other.aqueue("q").inspect()).stored
        await other.aclose()
        await asyncio.sleep(0.1)  # TLS says goodbye in a later turn of the loop
        return stored

    assert asyncio.run(look()) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "certificate"),
    [
        pytest.param(
            kind,
            certificate,
            marks=()
            if (kind, certificate) in (("cluster", "other.pem"), ("sentinel", "host.pem"))
            else pytest.mark.nightly("test_a_wrong_certificate_is_refused"),
        )
        for kind in ("cluster", "sentinel")
        for certificate in WRONG
    ],
    indirect=["url"],
)
def test_a_wrong_certificate_is_refused(tls: TLS, url: str, certificate: str) -> None:
    """Of an unknown CA, for another host, or expired: nothing is said to such a server, unless that is asked for."""
    tls.present(certificate)
    match = f"TLS certificate is not accepted.*({WRONG[certificate]})"
    with pytest.raises(UnavailableError, match=match):
        ConnectionFactory(url).connect()
    with pytest.raises(UnavailableError, match=match):
        asyncio.run(aconnect(ConnectionFactory(url)))
    ConnectionFactory(f"{url}&insecure=true").connect().disconnect()


@pytest.mark.slow
def test_the_certificate_of_a_sentinel_is_verified(tls: TLS) -> None:
    """A Sentinel could name any server as the master."""
    url = tls.urls["sentinel"].replace("/ca.pem", "/other.pem")
    with pytest.raises(UnavailableError, match=r"no Sentinel names the master.*TLS certificate"):
        ConnectionFactory(url).connect()
