"""TLS: the server's certificate and host name are verified, and switching that off takes an explicit word."""

from __future__ import annotations

import asyncio
import socket

import pytest
import redis
import trustme

from qworker.errors import InvalidOptionError, StoreError, UnavailableError
from qworker.store.connection import ConnectionFactory
from tests import servers


def ping(url):
    """PING over a sync and an asyncio connection, both new."""
    factory = ConnectionFactory(url, connect_timeout_s=30)
    connection = factory.connect()
    connection.send_packed_command(connection.pack_command("PING"))
    assert connection.read_response() == b"PONG"
    connection.disconnect()

    async def aping():
        aconnection = await factory.aconnect()
        await aconnection.send_packed_command(aconnection.pack_command("PING"))
        assert await aconnection.read_response() == b"PONG"
        await aconnection.disconnect()

    asyncio.run(aping())


def refused(url, match):
    """Connecting fails, sync and asyncio."""
    with pytest.raises(UnavailableError, match=match):
        ConnectionFactory(url).connect()
    with pytest.raises(UnavailableError, match=match):
        asyncio.run(ConnectionFactory(url).aconnect())


class TLSServer:
    """A server with a certificate for `localhost`, one CA that signed it and one that did not."""

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


@pytest.fixture(scope="module", params=["optional", "yes"])
def tls(request, tmp_path_factory):
    """A Redis (the wheel's Valkey has no TLS) that takes client certificates, or insists on them."""
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
    """The URL that is right in every way."""
    url = f"rediss://localhost:{tls.port}?ssl_ca_certs={tls.files['ca']}"
    return url if tls.clients == "optional" else f"{url}&ssl_certfile={tls.files['client']}"


def test_the_right_certificate(url):
    """A server whose certificate a named CA signed, for the name in the URL, is taken."""
    ping(url)


def test_another_ca(tls, url):
    """A certificate of a CA that is not named is not taken."""
    match = "TLS certificate was not accepted; check ssl_ca_certs and the host name"
    refused(url.replace("/ca.pem", "/other.pem"), match)
    refused(f"rediss://localhost:{tls.port}", match)


def test_another_host(tls, url):
    """A certificate for another name than the URL's is not taken, unless the check of names is off."""
    address = url.replace("localhost", "127.0.0.1")
    refused(address, "TLS certificate was not accepted.*127.0.0.1")
    ping(f"{address}&ssl_check_hostname=false")


def test_insecure(url):
    """insecure=true takes any certificate."""
    ping(url.replace("/ca.pem", "/other.pem") + "&insecure=true")


def test_no_client_certificate(tls):
    """Without a client certificate a server that insists on one refuses, and another does not mind."""
    url = f"rediss://localhost:{tls.port}?ssl_ca_certs={tls.files['ca']}"
    if tls.clients == "yes":
        refused(url, "not reached, nothing was sent")
    else:
        ping(url)


def test_the_wrong_protocol(tls, store_url):
    """redis:// to a TLS port does not connect, and says nothing of a call in doubt."""
    refused(f"redis://localhost:{tls.port}", "not reached, nothing was sent")


def test_tls_options_do_not_pass_without_tls(tls):
    """A URL that names certificates without encrypting is refused, where redis-py takes it or fails oddly."""
    url = f"redis://localhost:{tls.port}?ssl_ca_certs={tls.files['ca']}"
    with pytest.raises(InvalidOptionError, match="without TLS; it belongs to rediss://"):
        ConnectionFactory(url)
    with pytest.raises(TypeError), redis.Redis.from_url(url) as client:
        client.ping()


def test_old_protocols_are_off(url):
    """TLS 1.2 is the least that a connection takes part in."""
    connection = ConnectionFactory(url).connect()
    assert connection._sock.version() in ("TLSv1.2", "TLSv1.3")
    connection.disconnect()
