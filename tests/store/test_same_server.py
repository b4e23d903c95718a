"""Which URLs lead to the same queues."""

from __future__ import annotations

from pathlib import Path

from qworker.store.embedded.store import Store
from qworker.store.same_server import same_server
from qworker.store.url import ServerURL
from tests.tables import each


def same(one: str, other: str) -> bool:
    """Compare two URLs in both orders."""
    first, second = ServerURL.parse(one), ServerURL.parse(other)
    assert same_server(first, second) == same_server(second, first)
    return same_server(first, second)


@each(
    "one, other",
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://h", "redis://h/"),
        ("redis://h/2", "redis://h?db=2"),
        ("redis://Cache.Example", "redis://cache.example"),
        ("redis://localhost", "redis://127.0.0.1"),
        ("redis://localhost", "redis://[::1]:6379"),
        ("redis://:one@h", "redis://h"),
        ("redis://web:one@h", "redis://worker:two@h"),
        ("redis://h", "rediss://h?insecure=true"),
        ("rediss://h?insecure=true&db=1", "rediss://h?db=1&insecure=true"),
        ("unix:///run/redis.sock", "unix://:secret@/run/redis.sock?db=0"),
        ("unix:///run/redis.sock", "unix:///run/../run/redis.sock"),
        ("redis+cluster://a,b", "redis+cluster://b:6379,c"),
        ("redis+cluster://a,b", "redis://a"),
        ("redis+sentinel://a,b/main", "redis+sentinel://b:26379/main"),
        ("embedded:", "embedded:"),
        ("embedded:/var/store", "embedded:/var/store/"),
    ],
)
def test_spellings_of_one_server_are_the_same(one: str, other: str) -> None:
    """Default port, slash, order, users and TLS do not matter."""
    assert same(one, other)


@each(
    "one, other",
    [
        ("redis://h", "redis://g"),
        ("redis://h", "redis://h:6380"),
        ("redis://h", "redis://h/1"),
        ("redis://h", "unix:///h"),
        ("unix:///run/a", "unix:///run/b"),
        ("unix:///run/a", "unix:///run/a?db=1"),
        ("redis+cluster://a", "redis+cluster://b"),
        ("redis+sentinel://a/main", "redis+sentinel://a/other"),
        ("redis+sentinel://a/main", "redis+sentinel://b/main"),
        ("redis+sentinel://a/main", "redis://a:26379"),
        ("embedded:/a", "embedded:/b"),
    ],
)
def test_another_host_port_database_or_service_is_another_server(one: str, other: str) -> None:
    """They have other queues."""
    assert not same(one, other)


def test_links_lead_to_the_same_socket(tmp_path: Path) -> None:
    """Whether or not a server listens there."""
    (tmp_path / "link").symlink_to(tmp_path / "real")

    assert same(f"unix://{tmp_path}/link", f"unix://{tmp_path}/real")


def test_an_embedded_store_is_its_socket(tmp_path: Path) -> None:
    """A worker connects to the socket in the directory."""
    assert same(f"embedded:{tmp_path}", Store(tmp_path).url)
