r"""Signatures of messages: HMAC-SHA256 over the parts that never change while a message lives.

    s=<key id>.<MAC in base64url>        a flag of the header
    MAC over  qs2\n, then for each of subject, namespace, queue, name and flag e: <its bytes> <field>\n,
              then the body as stored

The subject is `message` with the message's id as its name, or `schedule` with the name of the schedule (flag `n`):
daemons, which have no keys, make the messages of schedules. Counters and times in the header change with every
delivery, so they are not signed. Every field follows its length, so that no two messages have the same text: flags are
percent-encoded and may contain a newline, which must not end a field. `qs2` is the version of this text; `q1` had no
lengths and was never released.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from typing import NamedTuple

__all__ = ["Subject", "sign", "verify"]


class Subject(NamedTuple):
    """The message that a signature or a sealed body belongs to. `schedule`: its name, in place of an id."""

    namespace: str
    queue: str
    message_id: str = ""
    schedule: str = ""

    def text(self, codec: str) -> bytes:
        """Write the text before the body. `codec` is the value of the flag e."""
        kind, name = ("schedule", self.schedule) if self.schedule else ("message", self.message_id)
        # The queue without its shard: messages move between shards.
        queue = self.queue.partition("/")[0]
        fields = [text.encode() for text in (kind, self.namespace, queue, name, codec)]
        return b"qs2\n" + b"".join(b"%d %b\n" % (len(field), field) for field in fields)


def sign(key: bytes, subject: Subject, codec: str, body: bytes) -> str:
    """Return the MAC of a stored body, 43 characters. O(size of the body)."""
    mac = hmac.digest(key, subject.text(codec) + body, "sha256")
    return urlsafe_b64encode(mac)[:-1].decode()


def verify(mac: str, key: bytes, subject: Subject, codec: str, body: bytes) -> bool:
    """Verify the MAC of a stored body, in constant time."""
    return mac.isascii() and hmac.compare_digest(mac, sign(key, subject, codec, body))
