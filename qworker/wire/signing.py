r"""Signatures of messages: HMAC-SHA256 over what never changes while a message lives.

    s=<key id>.<MAC in base64url>        a flag of the header
    MAC over  qs2\n, then for each of subject, namespace, queue, name and flag e: <its bytes> <field>\n,
              then the body as stored

The subject is `message` with the message's id as its name, or `schedule` with that of the schedule (flag `n`): the
messages of a schedule are made by daemons, which hold no key. Counters and times in the header change with every
delivery, so they are not signed. Each field stands behind its length, so no two messages have the same text: flags
are percent-encoded and may bring a newline, and a field that ended at one could take the next one's place. `qs2` is the
version of this text: without lengths it was `q1`, which no release has signed.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from typing import NamedTuple

__all__ = ["Subject", "fits", "sign"]


class Subject(NamedTuple):
    """What a signature or a sealed body belongs to, and to nothing else. `schedule`: its name, instead of an id."""

    namespace: str
    queue: str
    message_id: str = ""
    schedule: str = ""

    def text(self, codec: str) -> bytes:
        """Write what goes before the body. `codec` is the value of the flag e."""
        kind, name = ("schedule", self.schedule) if self.schedule else ("message", self.message_id)
        # The shards of a queue are one queue: messages move between them.
        queue = self.queue.partition("/")[0]
        fields = [each.encode() for each in (kind, self.namespace, queue, name, codec)]
        return b"qs2\n" + b"".join(b"%d %b\n" % (len(each), each) for each in fields)


def sign(key: bytes, subject: Subject, codec: str, body: bytes) -> str:
    """Make the MAC of a body as it is stored; 43 characters. O(size of the body)."""
    made = hmac.digest(key, subject.text(codec) + body, "sha256")
    return urlsafe_b64encode(made)[:-1].decode()


def fits(mac: str, key: bytes, subject: Subject, codec: str, body: bytes) -> bool:
    """Say whether a MAC is that of the body, in a time that does not tell how much of it is right."""
    made = sign(key, subject, codec, body)
    return mac.isascii() and hmac.compare_digest(mac, made)
