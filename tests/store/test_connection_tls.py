"""TLS: the server's certificate and host name are verified unless the URL says otherwise."""

from __future__ import annotations

import asyncio
import socket

import pytest
import redis
import trustme

from qworker.errors import InvalidOptionError, StoreError, UnavailableError
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.store.connecting import aconnect


def ping(url):
    """Ping over a new sync and a new asyncio connection."""
    factory = ConnectionFactory(url, connect_timeout_s=30)
    connection = factory.connect()
    connection.send_packed_command(connection.pack_command("PING"))
    assert connection.read_response() == b"PONG"
    connection.disconnect()

    async def aping():
        aconnection = await aconnect(factory)
        await aconnection.send_packed_command(aconnection.pack_command("PING"))
        assert await aconnection.read_response() == b"PONG"
        await aconnection.disconnect()

    asyncio.run(aping())


def refused(url, match):
    """Check that connecting fails, sync and asyncio."""
    with pytest.raises(UnavailableError, match=match):
        ConnectionFactory(url).connect()
    with pytest.raises(UnavailableError, match=match):
        asyncio.run(aconnect(ConnectionFactory(url)))


class TLSServer:
    """Certificates of a server for `localhost`, of the CA that signed it and of one that did not."""

    def __init__(self, directory):
        self.ca = trustme.CA()
        self.files = {"ca": directory / "ca.pem", "other": directory / "other.pem"}
        self.ca.cert_pem.write_to_path(self.files["ca"])
        trustme.CA().cert_pem.write_to_path(self.files["other"])
        self.certificate("server", "localhost", directory)
        self.certificate("client", "qworker", directory)

    def certificate(self, name, host, directory):
        certificate = self.ca.issue_cert(host)
        self.files[name] = directory / f"{name}.pem"
        certificate.private_key_and_cert_chain_pem.write_to_path(self.files[name])

    def arguments(self, port, clients):
        return (
            *("--tls-port", str(port), "--bind", "127.0.0.1"),
            *("--tls-cert-file", str(self.files["server"])),
            *("--tls-key-file", str(self.files["server"])),
            *("--tls-ca-cert-file", str(self.files["ca"]), "--tls-auth-clients", clients),
        )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("optional", marks=pytest.mark.nightly("test_the_right_certificate")),
        "yes",
    ],
)
def tls(request, tmp_path_factory):
    """A Redis (the wheel's Valkey has no TLS) that accepts or requires client certificates."""
    tls = TLSServer(tmp_path_factory.mktemp("tls"))
    tls.clients = request.param
    for attempt in range(5):
        with socket.create_server(("127.0.0.1", 0)) as free:
            tls.port = free.getsockname()[1]
        try:
            with servers.start("redis", *tls.arguments(tls.port, tls.clients)):
                yield tls
            return
        except StoreError as error:
            if "Bad directive" in str(error) or "Missing implement" in str(error):
                servers.missing("the redis server on this machine is built without TLS")
            if "Address already in use" not in str(error) or attempt == 4:
                raise


@pytest.fixture
def url(tls):
    """The correct URL."""
    url = f"rediss://localhost:{tls.port}?ssl_ca_certs={tls.files['ca']}"
    return url if tls.clients == "optional" else f"{url}&ssl_certfile={tls.files['client']}"


@pytest.mark.slow
def test_the_right_certificate(url):
    """A certificate that a named CA signed for the host in the URL is accepted."""
    ping(url)


@pytest.mark.slow
def test_another_ca(tls, url):
    """A certificate of another CA is not accepted."""
    match = "TLS certificate is not accepted; check ssl_ca_certs and the host name"
    refused(url.replace("/ca.pem", "/other.pem"), match)
    refused(f"rediss://localhost:{tls.port}", match)


@pytest.mark.slow
def test_another_host(tls, url):
    """A certificate for another host is not accepted unless the check of host names is off."""
    address = url.replace("localhost", "127.0.0.1")
    refused(address, "TLS certificate is not accepted.*127.0.0.1")
    ping(f"{address}&ssl_check_hostname=false")


@pytest.mark.slow
def test_insecure(url):
    """insecure=true accepts any certificate."""
    ping(url.replace("/ca.pem", "/other.pem") + "&insecure=true")


@pytest.mark.slow
def test_no_client_certificate(tls):
    """A server that requires client certificates refuses a client without one; another does not."""
    url = f"rediss://localhost:{tls.port}?ssl_ca_certs={tls.files['ca']}"
    if tls.clients == "yes":
        refused(url, "not reached, nothing was sent")
    else:
        ping(url)


def test_the_wrong_protocol(tls, store_url):
    """redis:// to a TLS port does not connect, and no call is in doubt."""
    refused(f"redis://localhost:{tls.port}", "not reached, nothing was sent")


def test_tls_options_without_tls_are_refused(tls):
    """A URL with certificates and without TLS is refused; redis-py fails with a TypeError."""
    url = f"redis://localhost:{tls.port}?ssl_ca_certs={tls.files['ca']}"
    with pytest.raises(InvalidOptionError, match="without TLS; use it with rediss://"):
        ConnectionFactory(url)
    with pytest.raises(TypeError), redis.Redis.from_url(url) as client:
        client.ping()


def test_old_protocols_are_off(url):
    """TLS 1.2 is the oldest version in use."""
    connection = ConnectionFactory(url).connect()
    assert connection._sock.version() in ("TLSv1.2", "TLSv1.3")
    connection.disconnect()
