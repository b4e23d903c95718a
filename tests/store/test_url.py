"""Server URLs: accepted ones, errors for others, and that passwords are never shown."""

from __future__ import annotations

import copy
import pickle
import traceback
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import InvalidOptionError
from qworker.store.url import ServerURL
from tests.tables import each

SECRET = "S3CR3T"


@each(
    "text, expected",
    [
        ("redis://", {"host": "localhost", "port": 6379, "db": 0}),
        ("redis://h", {"scheme": "redis", "host": "h", "port": 6379}),
        ("redis://h:1/15", {"host": "h", "port": 1, "db": 15}),
        ("redis://h/?db=3", {"db": 3}),
        ("redis://H.example:65535/0", {"host": "h.example", "port": 65535}),
        ("redis://[::1]:7000/2", {"host": "::1", "port": 7000, "db": 2, "address": "[::1]:7000"}),
        ("redis://:pw@h", {"username": None, "password": "pw"}),
        ("redis://u:pw@h", {"username": "u", "password": "pw"}),
        ("redis://u:@h", {"username": "u", "password": ""}),
        ("redis://:@h", {"username": None, "password": None}),
        ("redis://a%40b:p%3A%2F%25@h", {"username": "a@b", "password": "p:/%"}),
        ("rediss://h", {"scheme": "rediss", "ssl_check_hostname": True, "insecure": False}),
        ("rediss://h?ssl_check_hostname=false", {"ssl_check_hostname": False}),
        ("rediss://h?insecure=true", {"insecure": True}),
        ("unix:///run/r.sock", {"scheme": "unix", "path": "/run/r.sock", "db": 0}),
        ("unix:///run/a%20b?db=2", {"path": "/run/a b", "db": 2}),
        ("unix://u:pw@/run/s", {"username": "u", "password": "pw", "path": "/run/s"}),
        (
            "redis+sentinel://u:pw@h:1,[::1]:2,i/main?db=3&sentinel_username=s&sentinel_password=t",
            {
                "scheme": "redis+sentinel",
                "nodes": (("h", 1), ("::1", 2), ("i", 26379)),
                "service": "main",
                "db": 3,
                "username": "u",
                "password": "pw",
                "sentinel_username": "s",
                "sentinel_password": "t",
                "tls": False,
                "address": "h:1,[::1]:2,i:26379",
            },
        ),
        ("rediss+sentinel://h/m%20n", {"service": "m n", "tls": True, "has_sentinels": True}),
        (
            "redis+cluster://:pw@h:1,i,h:1",
            {"nodes": (("h", 1), ("i", 6379)), "password": "pw", "clustered": True},
        ),
        ("rediss+cluster://h/0?insecure=true", {"tls": True, "insecure": True, "db": 0}),
        ("embedded:", {"scheme": "embedded", "path": None}),
        ("embedded:/var/lib/q", {"path": "/var/lib/q"}),
        ("embedded:data", {"path": "data"}),
        ("embedded:/a%20b", {"path": "/a b"}),
    ],
)
def test_accepts(text, expected):
    """Every documented form is parsed."""
    url = ServerURL.parse(text)
    assert {name: getattr(url, name) for name in expected} == expected


@each(
    "text, message",
    [
        ("", "url: is empty; write redis://"),
        (None, "url: is NoneType, not str"),
        (b"redis://h", "url: is bytes, not str"),
        (
            "http://h",
            "url: http:// is not a known scheme; write redis://, rediss://, redis+sentinel://, redis+clu",
        ),
        ("localhost", "url: has no scheme"),
        ("localhost:6379", "url: has no scheme"),
        ("REDIS://h", "url: has no scheme"),
        ("redis:h", "url: has no '//' after redis:"),
        ("redis://h:99999", "url: has a wrong port; a port is a number from 1 to 65535"),
        ("redis://h:0", "url: has a wrong port"),
        ("redis://h:x", "url: has a wrong port"),
        ("redis://h:-1", "url: has a wrong port"),
        ("redis://h:٥", "url: has a wrong port"),
        ("redis://h:6379%", "url: has a '%' that does not start an escape"),
        (
            "redis://u:p%zz@h",
            "url: has a '%' that does not start an escape; write a plain '%' as %25",
        ),
        ("redis://u:%ff@h", "url: has an escape that is not UTF-8"),
        ("redis://u:%00@h", "url: has a NUL"),
        ("redis://h /0", "url: has a space or control character"),
        ("redis://h\n", "url: has a space or control character"),
        ("redis://u:\ud800@h", "url: has bytes that are not UTF-8"),
        ("unix:///tmp/\udcff", "url: has bytes that are not UTF-8"),
        ("embedded:/tmp/\udcff", "url: has bytes that are not UTF-8"),
        ("redis://[::1", "url: cannot be parsed"),
        ("redis://u@h", "url: has a user without a password; write user:password@"),
        ("redis://h/-1", "url: has a wrong database"),
        ("redis://h/x", "url: has a wrong database"),
        ("redis://h/0/1", "url: has a wrong database"),
        ("redis://h/100000", "url: has a wrong database"),
        ("redis://h?db=", "url: has a wrong database"),
        ("redis://h/1?db=2", "url: names the database twice"),
        ("redis://h/0#x", "url: has a '#'; write a plain '#' as %23"),
        ("redis://h?db=1&db=2", "url: has the option db twice"),
        ("redis://h?x", "url: has a wrong query"),
        ("redis://h?protocol=3", "url: has an unknown option; the options are db, ssl_ca_certs"),
        ("rediss://h?ssl_ca_cert=/x", "url: has an unknown option; did you mean ssl_ca_certs?"),
        ("rediss://h?ssl_cert_reqs=none", "insecure=true turns that off"),
        ("redis://h?password=x", "url: has the option password; write user:password@"),
        ("redis://h?insecure=true", "url: has the option insecure without TLS"),
        ("rediss://h?insecure=maybe", "url: insecure is neither true nor false"),
        ("rediss://h?ssl_ca_certs=/no/ca.pem", "url: ssl_ca_certs: no file '/no/ca.pem'"),
        ("rediss://h?ssl_ca_certs=/etc", "url: ssl_ca_certs: no file '/etc'"),
        (f"rediss://h?ssl_ca_certs={__file__}", "url: ssl_ca_certs holds no certificate"),
        (f"rediss://h?ssl_certfile={__file__}", "hold no certificate with its key"),
        (f"rediss://h?ssl_keyfile={__file__}", "url: has ssl_keyfile without ssl_certfile"),
        ("unix://", "url: names no socket"),
        ("unix:///", "url: names no socket"),
        ("unix://run/s", "url: names a host with unix://; write unix:///absolute/path"),
        ("unix:///s?ssl_ca_certs=/x", "url: has the option ssl_ca_certs without TLS"),
        ("embedded://host/dir", "url: embedded: names a directory, not a host"),
        ("redis+sentinel://h", "url: names no service; write the Sentinels' name of the master"),
        ("redis+sentinel://h/", "url: names no service"),
        ("redis+sentinel://h/main/0", "url: names more than the service; write the Sent"),
        ("redis+sentinel://h,/main", "url: names an empty host; write host:port,host:port"),
        ("redis+sentinel:///main", "url: names an empty host"),
        ("redis+sentinel://h:1,i:x/main", "url: has a wrong port"),
        ("redis+sentinel://[::1/main", "url: cannot be parsed"),
        ("redis+sentinel://h/main?ssl_ca_certs=/x", "url: has the option ssl_ca_certs without TLS"),
        ("redis+cluster://h/1", "url: names a database; a Cluster has only database 0"),
        ("redis+cluster://h?db=1", "url: names a database; a Cluster has only database 0"),
        ("redis+cluster://", "url: names an empty host"),
        ("redis+cluster://h?sentinel_password=x", "the option sentinel_password without Sentinels"),
        ("redis+master://h", "url: redis+master:// is not a known scheme"),
    ],
)
def test_refuses(text, message):
    """The error for any other text names the wrong part and says what to write."""
    with pytest.raises(InvalidOptionError) as caught:
        ServerURL.parse(text)
    assert caught.value.field == "url"
    assert message in str(caught.value)


@pytest.mark.bad_input("configuration: password in the URL")
@each(
    "template",
    [
        "redis://:{}",
        "redis://:{}@h:99999",
        "redis://u:{}",
        "redis://u:{}/x@h",
        "redis://u:{}#x@h",
        "redis://u:{}?x@h",
        "redis://u:x?{}@h",
        "redis://u:{}%@h",
        "redis://u:{}%zz@h",
        "redis://u:a@{}@h:x",
        "redis://{}@h",
        "redis://u:[{}@h",
        "redis:{}@h",
        "u:{}@h:6379",
        "{}://h",
        "{}",
        "http://u:{}@h",
        "redis+sentinel://u:{}@h",
        "redis+sentinel://u:{}/x@h,i/main",
        "redis+sentinel://u:p@h,{}@i:x/main",
        "redis+sentinel://h/{}/x",
        "redis+sentinel://h?sentinel_password={}",
        "redis+cluster://h?sentinel_password={}",
        "redis+cluster://:{}@h/1",
        "redis+cluster://:{}",
        "unix://{}",
        "unix://u:{}@run/s",
        "embedded://u:{}@h",
        "redis://h?password={}",
        "redis://h?{}=1",
        "redis://h/{}",
        "redis://h?db={}",
    ],
)
def test_an_invalid_url_never_shows_its_password(template):
    """Neither the error of a wrong URL nor its traceback shows a password, wherever it is."""
    with pytest.raises(InvalidOptionError) as caught:
        ServerURL.parse(template.format(SECRET))
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20))
@pytest.mark.slow
def test_no_text_around_a_password_shows_it(noise):
    """Whatever text surrounds it, a URL is parsed and shows ***, or is refused without being quoted."""
    for text in (
        f"redis://{noise}:{SECRET}@h",
        f"redis://u:{SECRET}@{noise}",
        f"{noise}{SECRET}@h",
    ):
        url, refusal = None, ""
        try:
            url = ServerURL.parse(text)
        except InvalidOptionError as error:
            refusal = str(error)
        assert SECRET not in refusal
        if url is not None and SECRET in (url.password or ""):
            assert SECRET not in str(url)


@pytest.mark.bad_input("configuration: password in the URL")
@each(
    "text, shown",
    [
        (f"redis://:{SECRET}@h", "redis://:***@h:6379/0"),
        (f"redis://u:{SECRET}@h:1/2", "redis://u:***@h:1/2"),
        (f"unix://u:{SECRET}@/run/s?db=3", "unix://u:***@/run/s?db=3"),
        ("rediss://h?insecure=true", "rediss://h:6379/0?insecure=true"),
        ("rediss://h?ssl_check_hostname=0", "rediss://h:6379/0?ssl_check_hostname=false"),
        (
            f"redis+sentinel://u:{SECRET}@h:1,[::1]/m%20n?sentinel_password={SECRET}",
            "redis+sentinel://u:***@h:1,[::1]:26379/m%20n?sentinel_password=***",
        ),
        (
            f"rediss+sentinel://h/m?db=2&sentinel_username=s%26&sentinel_password={SECRET}",
            "rediss+sentinel://h:26379/m?db=2&sentinel_username=s%26&sentinel_password=***",
        ),
        (
            f"rediss+cluster://:{SECRET}@h,i:1?insecure=1",
            "rediss+cluster://:***@h:6379,i:1?insecure=true",
        ),
        ("embedded:/a%20b", "embedded:/a%20b"),
    ],
)
def test_shows_the_password_as_stars(text, shown):
    """`str` and `repr` show the whole URL except its password."""
    url = ServerURL.parse(text)
    assert str(url) == shown
    assert repr(url) == f"ServerURL({shown!r})"
    assert SECRET not in f"{url}{url!r}{[url]}{url.address}"


@each(
    "text",
    [
        "redis://u:s%2F%40%3F%25@h:1/2",
        "unix://:a%20b@/run/s",
        "redis+sentinel://u:one@h/m?sentinel_username=s&sentinel_password=%26two",
        "rediss+cluster://u:one@h,i:1",
        "redis://h",
    ],
)
def test_a_revealed_url_is_parsed_to_the_same(text):
    """Another process gets the URL in its environment."""
    url = ServerURL.parse(text)
    assert ServerURL.parse(url.revealed()) == url


def test_is_a_value():
    """A URL is frozen, compares by value, and survives copying and pickling."""
    url = ServerURL.parse("redis://u:p@h/1")
    assert url == copy.copy(url) == pickle.loads(pickle.dumps(url)) == ServerURL.parse(url)
    with pytest.raises(AttributeError):
        url.host = "x"


def test_names_the_given_field():
    """The error names the source of the URL."""
    with pytest.raises(InvalidOptionError, match=r"^--url: is empty"):
        ServerURL.parse("", "--url")


def test_accepts_certificates(tmp_path, monkeypatch):
    """TLS files are checked when the URL is parsed, and kept as absolute paths."""
    ca, leaf = trustme.CA(), trustme.CA().issue_cert("h")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "c.pem")
    monkeypatch.chdir(tmp_path)
    url = ServerURL.parse("rediss://h?ssl_ca_certs=ca.pem&ssl_certfile=c.pem")
    assert Path(url.ssl_ca_certs) == tmp_path / "ca.pem"
    assert Path(url.ssl_certfile) == tmp_path / "c.pem"
