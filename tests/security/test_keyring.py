"""Signatures and encryption as they stand in an envelope: what they cover, and what becomes of everything else."""

from __future__ import annotations

import base64
import hmac
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import (
    BadSignatureError,
    InvalidOptionError,
    ProtectionError,
    UndecipherableError,
    UnknownKeyError,
)
from qworker.wire.envelope import Envelope, head, tail
from qworker.wire.key_options import keys_of_environment
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.sealing import OVERHEAD
from qworker.wire.signing import Subject, sign, verify
from tests.tables import each

BODY = b'{"task":"pay","args":[1]}'
# Not drawn: they are in the names of tests, which have to be the same in every process of a run.
OLD, NEW, OTHER = (bytes(range(start, start + 32)) for start in (0, 100, 200))
SIGNING = Keyring(signing={"new": NEW, "old": OLD})
SEALING = Keyring(encryption={"new": NEW, "old": OLD})
BOTH = Keyring(signing={"new": NEW}, encryption={"new": NEW})
RINGS = pytest.mark.parametrize("ring", [SIGNING, SEALING, BOTH], ids=["sign", "seal", "both"])


def stored(
    ring: Keyring, body: bytes = BODY, queue: str = "mail", message_id: str = "id-1"
) -> bytes:
    """A message as Redis holds it after it was sent."""
    flags = {"m": "3"}
    sealed = ring.protect("shop", queue, message_id, body, flags)
    return head(message_id).encode() + b"1700000000000 0 0 0 0" + tail(sealed, flags)


def body_of(item: bytes) -> bytes:
    envelope = Envelope.parse(item)
    assert envelope is not None
    return envelope.body


@RINGS
@given(body=st.binary(max_size=300))
def test_round_trip(ring: Keyring, body: bytes) -> None:
    """Any body comes back as it was, behind the same header."""
    item = stored(ring, body)
    opened = ring.open("shop", "mail", item)
    assert body_of(opened) == body
    assert opened.partition(b"\n")[0] == item.partition(b"\n")[0]


@pytest.mark.bad_input("data found: wrong signature")
@RINGS
def test_every_byte_of_the_body_counts(ring: Keyring) -> None:
    """A body of which one bit is another is refused, wherever that bit is."""
    item = stored(ring)
    start = item.index(b"\n") + 1
    for at in range(start, len(item)):
        changed = item[:at] + bytes([item[at] ^ 1]) + item[at + 1 :]
        with pytest.raises((BadSignatureError, UndecipherableError)):
            ring.open("shop", "mail", changed)


@pytest.mark.bad_input("data found: wrong signature")
@RINGS
def test_every_character_of_the_flags_counts(ring: Keyring) -> None:
    """With a touched signature, cipher or key id no message opens, and nothing is raised but that."""
    item = stored(ring)
    start, end = item.index(b" m=3 ") + 5, item.index(b"\n")
    for at in range(start, end):
        for other in b"Az~ =":
            changed = item[:at] + bytes([other]) + item[at + 1 :]
            if changed == item:
                continue
            try:
                opened = ring.open("shop", "mail", changed)
            except ProtectionError:
                continue
            # Foreign, or not marked as encrypted any more: no body of ours either way.
            envelope = Envelope.parse(opened)
            assert envelope is None or (ring is SEALING and BODY not in opened)


@RINGS
@pytest.mark.parametrize(
    ("namespace", "queue", "message_id"),
    [("shop", "pay", "id-1"), ("other", "mail", "id-1"), ("shop", "mail", "id-2")],
    ids=["queue", "namespace", "id"],
)
def test_a_body_is_of_its_message_and_its_queue(
    ring: Keyring, namespace: str, queue: str, message_id: str
) -> None:
    """Moved to another queue, namespace or id it is refused."""
    item = stored(ring).replace(b"q1 id-1 ", f"q1 {message_id} ".encode())
    with pytest.raises((BadSignatureError, UndecipherableError)):
        ring.open(namespace, queue, item)


@RINGS
def test_shards_are_one_queue(ring: Keyring) -> None:
    """A message that is moved to another shard is still of its queue."""
    assert body_of(ring.open("shop", "mail/3", stored(ring, queue="mail/0"))) == BODY
    assert body_of(ring.open("shop", "mail", stored(ring, queue="mail/0"))) == BODY


@RINGS
def test_what_changes_while_a_message_lives_is_not_covered(ring: Keyring) -> None:
    """Counters, times and flags of deliveries come and go; the signature stays right."""
    item = stored(ring)
    again = item.replace(b" 0 0 0 0 m=3", b" 2 1 0 1 x=1800000000000 m=3")
    again = again.replace(b"\n", b" f=1700000000001 t=1700000000002 d=1\n", 1)
    assert body_of(ring.open("shop", "mail", again)) == BODY


def test_the_first_key_makes_new_messages_and_the_others_are_accepted() -> None:
    """Keys are changed without a stop: accepted everywhere, then first, then taken away."""
    for kind in ("signing", "encryption"):
        before, between, after = (
            Keyring(**{kind: keys})  # type: ignore[arg-type]
            for keys in ({"old": OLD, "new": NEW}, {"new": NEW, "old": OLD}, {"new": NEW})
        )
        by_old, by_new = stored(before), stored(between)
        assert b"old" in by_old.partition(b"\n")[0]
        assert b"new" in by_new.partition(b"\n")[0]
        for ring in (before, between):
            assert body_of(ring.open("shop", "mail", by_old)) == BODY
            assert body_of(ring.open("shop", "mail", by_new)) == BODY
        assert body_of(after.open("shop", "mail", by_new)) == BODY
        with pytest.raises(UnknownKeyError, match="key 'old', which this process lacks"):
            after.open("shop", "mail", by_old)


def test_without_a_signature_nothing_is_taken() -> None:
    """Neither an own message nor plain JSON; both where signatures are accepted only, but no wrong one."""
    unsigned, wrong = stored(NO_KEYS), stored(Keyring(signing={"new": OTHER}))
    ring, lenient = Keyring(signing={"new": NEW}), Keyring(signing={"new": NEW}, required=False)
    for item in (unsigned, BODY, wrong):
        with pytest.raises(BadSignatureError):
            ring.open("shop", "mail", item)
    assert lenient.open("shop", "mail", unsigned) == unsigned
    assert lenient.open("shop", "mail", BODY) == BODY
    with pytest.raises(BadSignatureError):
        lenient.open("shop", "mail", wrong)


def test_without_keys_all_but_encrypted_messages_are_taken() -> None:
    """Who does not sign does not look; what cannot be read is not handed out as if it could."""
    assert not NO_KEYS
    assert NO_KEYS.open("shop", "mail", stored(SIGNING)) == stored(SIGNING)
    assert NO_KEYS.open("shop", "mail", b"\x00foreign") == b"\x00foreign"
    with pytest.raises(UnknownKeyError, match="encrypted with the key 'new'"):
        NO_KEYS.open("shop", "mail", stored(SEALING))
    item, problem = NO_KEYS.try_open("shop", "mail", stored(SEALING))
    assert problem == "is encrypted with the key 'new', which this process lacks"
    assert BODY not in item


def test_a_signature_is_verified_before_anything_is_decrypted() -> None:
    """Unsigned data is not even given to the cipher."""
    item = stored(BOTH)
    assert BODY not in item
    with pytest.raises(BadSignatureError):
        BOTH.open("shop", "mail", item[:-1] + bytes([item[-1] ^ 1]))


def test_equal_bodies_are_not_equal_when_encrypted() -> None:
    """Equal messages cannot be recognised; only their lengths show."""
    items = {body_of(stored(SEALING)) for _ in range(50)}
    assert len(items) == 50
    assert {len(item) for item in items} == {len(BODY) + OVERHEAD}


def test_schedules_are_signed_once_for_all_their_messages() -> None:
    """Daemons hold no keys: the signature is for the schedule, and good for no other message or schedule."""
    signature = SIGNING.sign_schedule("shop", "mail", "nightly", BODY)
    start = b"q1 any 1700000000000 0 0 0 0"
    flags = {"n": "nightly", "s": signature}
    item = start + tail(BODY, flags)
    assert SIGNING.open("shop", "mail", item) == item
    for wrong in ({**flags, "n": "hourly"}, {"s": signature}):
        with pytest.raises(BadSignatureError):
            SIGNING.open("shop", "mail", start + tail(BODY, wrong))
    with pytest.raises(BadSignatureError):
        SIGNING.open("shop", "mail", start + tail(BODY + b" ", flags))
    with pytest.raises(BadSignatureError):
        SIGNING.open("shop", "pay", item)
    assert NO_KEYS.sign_schedule("shop", "mail", "nightly", BODY) == ""


def test_flags_of_a_caller_do_not_replace_the_signature() -> None:
    """Middleware that sets the flags of protection by itself is overruled."""
    flags = {"s": "new.x", "n": "nightly", "e": "none.x"}
    SIGNING.protect("shop", "mail", "id-1", BODY, flags)
    assert flags.keys() == {"s"}


# -- where keys come from --------------------------------------------------------------------------

SECRET = base64.b64encode(NEW).decode()


def test_keys_come_from_the_environment() -> None:
    """Of the environment, and only as text that says which key each is."""
    ring = keys_of_environment(
        {
            "QWORKER_SIGNING_KEYS": f"a:{SECRET},b:{SECRET}",
            "QWORKER_ENCRYPTION_KEYS": f"c:{SECRET}",
            "QWORKER_SIGNATURES": "accepted",
        }
    )
    assert repr(ring) == "Keyring(signing='a,b', encryption='c', required=False)"
    assert keys_of_environment({}) is NO_KEYS


@each("text", ["", "nocolon", "a:%%%", "a:", f"a:{SECRET},a:{SECRET}", f"a b:{SECRET}", "a:AAAA"])
def test_wrong_keys_are_refused_without_being_quoted(text: str) -> None:
    """The place is named and the form, never what stands there."""
    with pytest.raises(InvalidOptionError) as error:
        keys_of_environment({"QWORKER_SIGNING_KEYS": text})
    assert SECRET not in str(error.value)
    assert "%%%" not in str(error.value)


def key_file(path: Path, text: str, mode: int = 0o600) -> dict[str, str]:
    path.write_text(text)
    path.chmod(mode)
    return {"QWORKER_KEYS_FILE": str(path)}


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    """One file for both kinds, in which the first of each is the one of new messages."""
    text = f'[signing]\nb = "{SECRET}"\na = "{SECRET}"\n[encryption]\nc = "{SECRET}"\n'
    ring = keys_of_environment(key_file(tmp_path / "keys.toml", text))
    assert repr(ring) == "Keyring(signing='b,a', encryption='c', required=True)"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    """A key that others may have seen is none. A group may read: services are given secrets so."""
    text = f'[signing]\na = "{SECRET}"\n'
    with pytest.raises(InvalidOptionError, match="chmod 600"):
        keys_of_environment(key_file(tmp_path / "keys.toml", text, mode))
    assert keys_of_environment(key_file(tmp_path / "keys.toml", text, 0o440))


@pytest.mark.parametrize(
    "text", [f"[signing]\na = {SECRET}", f'[singing]\na = "{SECRET}"', "[signing]\na = 1", 'signing = "x"']
)  # fmt: skip
def test_a_wrong_file_is_refused_without_being_quoted(tmp_path: Path, text: str) -> None:
    """The file is named and the form."""
    with pytest.raises(InvalidOptionError) as error:
        keys_of_environment(key_file(tmp_path / "keys.toml", text))
    assert str(tmp_path) in str(error.value)
    assert SECRET not in str(error.value)


def test_a_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    """A pipe would make the start wait; a directory has no keys."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("pipe", "missing", "."):
        with pytest.raises(InvalidOptionError):
            keys_of_environment({"QWORKER_KEYS_FILE": str(tmp_path / name)})


def test_a_keyring_shows_no_key() -> None:
    """Not when it is printed, and it is not pickled at all."""
    for shown in (repr(BOTH), str(BOTH), f"{BOTH}"):
        assert NEW.hex() not in shown
        assert SECRET not in shown
    with pytest.raises(TypeError):
        pickle.dumps(BOTH)


FIELDS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n 0127"), max_size=12)


@given(
    one=st.tuples(FIELDS, FIELDS, FIELDS, FIELDS), other=st.tuples(FIELDS, FIELDS, FIELDS, FIELDS)
)
def test_no_two_messages_have_the_same_signed_text(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str]
) -> None:
    """Namespace, id, codec and body are distinguished whatever stands in them: what is signed tells where each ends."""

    def text(parts: tuple[str, str, str, str]) -> bytes:
        namespace, message_id, codec, body = parts
        return Subject(namespace, "mail", message_id).text(codec) + body.encode()

    assert (text(one) == text(other)) == (one == other)


@pytest.mark.parametrize("field", ["body into codec", "name into codec"])
def test_no_part_of_a_field_passes_for_another(field: str) -> None:
    """A signature does not fit where a newline moves the end of one field into the next one."""
    if field == "body into codec":
        mac = sign(NEW, Subject("shop", "mail", "id-1"), "", b"first\nsecond")
        assert verify(mac, NEW, Subject("shop", "mail", "id-1"), "", b"first\nsecond")
        assert not verify(mac, NEW, Subject("shop", "mail", "id-1"), "\nfirst", b"second")
        assert not verify(mac, NEW, Subject("shop", "mail", "id-1\n"), "first", b"second")
    else:
        mac = sign(NEW, Subject("shop", "mail", schedule="a\nb"), "", b"x")
        assert not verify(mac, NEW, Subject("shop", "mail", schedule="a"), "b\n", b"x")


def test_the_mac_of_the_protocol_page() -> None:
    """The example that other languages try theirs with: made here from the page's own words, and by the product."""
    page = Path(__file__).parents[2].joinpath("docs/protocol.md").read_text("utf-8")
    text = b'qs2\n7 message\n4 shop\n6 emails\n2 m1\n0 \n{"n":1}'
    mac = base64.urlsafe_b64encode(hmac.digest(b"0" * 32, text, "sha256"))[:-1].decode()
    assert mac == "f1U0bm6vq8vpv5SoP9vT5iOF5eWHEN9fN216nGEBFeI"
    assert f"\n{mac}\n" in page
    assert sign(b"0" * 32, Subject("shop", "emails/3", "m1"), "", b'{"n":1}') == mac
