"""Certificates that are wrong in each way are refused; tests/store/test_connection_tls.py has the other ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from qworker.errors import UnavailableError
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.ports import free_port


@contextmanager
def serving(certificate: Path) -> Iterator[int]:
    """A server with a certificate; its port."""
    port = free_port()
    settings = ["--tls-port", str(port), "--tls-cert-file", str(certificate)]
    settings += ["--tls-key-file", str(certificate), "--tls-ca-cert-file", str(certificate)]
    with servers.start("redis", *settings, "--tls-auth-clients", "no", "--bind", "127.0.0.1"):
        yield port


@pytest.mark.slow
def test_an_expired_certificate(tmp_path: Path) -> None:
    """Of the right CA for the right host, and over since yesterday."""
    ca, path = trustme.CA(), tmp_path / "server.pem"
    yesterday = datetime.now(UTC) - timedelta(days=1)
    issued = ca.issue_cert("localhost", not_after=yesterday)
    issued.private_key_and_cert_chain_pem.write_to_path(str(path))
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with serving(path) as port, pytest.raises(UnavailableError, match="certificate has expired"):
        ConnectionFactory(f"rediss://localhost:{port}?ssl_ca_certs={tmp_path}/ca.pem").connect()


@pytest.mark.slow
def test_a_certificate_that_vouches_for_itself(tmp_path: Path) -> None:
    """Refused by who trusts the CAs of the system; it is not a CA."""
    key, name = ec.generate_private_key(ec.SECP256R1()), "localhost"
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, path = serialization.Encoding.PEM, tmp_path / "server.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(pem)
    )
    with serving(path) as port, pytest.raises(UnavailableError, match="self-signed certificate"):
        ConnectionFactory(f"rediss://localhost:{port}").connect()


def test_insecure_warns_at_each_start(logs: list[dict[str, object]]) -> None:
    """Verification goes off by that word alone, and the log says so each time."""
    for _ in range(2):
        ConnectionFactory("rediss://localhost?insecure=true")
    ConnectionFactory("rediss://localhost")
    assert [line["event"] for line in logs] == ["tls_verification_off"] * 2
