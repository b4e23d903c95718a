"""A server on which calls are tried: put a queue there, make one call, take away what it left.

Three commands a trial, many trials in one pipeline. The server is ours alone, so all its keys are the queue's: what is
taken away is every key there is, the unexpected ones too.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import hiredis

from qworker.client.execute.sync import Client
from qworker.engine.command import Command
from qworker.engine.scripts import load_script
from qworker.errors import LeaseLostError, RefusedError
from qworker.fsck.check import check_queue, survey
from qworker.fsck.unread import Unread
from qworker.store.connections import ConnectionFactory
from tests import servers
from verification.interleavings.calls import command_of
from verification.interleavings.fixed import KEYS, Call
from verification.interleavings.tables import BASE, Written, normal

__all__ = ["BURNED", "Bench", "Outcome", "Refused", "Trial", "open_bench"]

_PUT: Final = """
local ADD = { list = 'RPUSH', hash = 'HSET', string = 'SET' }
for _, row in ipairs(cmsgpack.unpack(ARGV[1])) do
  local key, kind, content = ARGV[2] .. row[1], row[2], row[3]
  if kind == 'zset' then
    for i = 1, #content, 2 do redis.call('ZADD', key, content[i + 1], content[i]) end
  elseif kind == 'stream' then
    redis.call('XADD', key, '1-1', 'no', 'letter')
    redis.call('XDEL', key, '1-1')
    for i = 2, #content do redis.call('XADD', key, content[i][1], unpack(content[i][2])) end
    redis.call('XSETID', key, content[1])
  else
    for i, word in ipairs(content) do content[i] = type(word) == 'table' and cmsgpack.pack(word) or word end
    redis.call(ADD[kind], key, unpack(content))
  end
end
"""
_TAKE: Final = """
local rows, PACKED = {}, { batch = true, ['@then'] = true, ['@run'] = true, ['@rest'] = true }
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, nil
  if kind == 'list' then content = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'hash' then
    content = redis.call('HGETALL', key)
    for i = 1, #content, 2 do
      if PACKED[content[i]] and content[i + 1] ~= '' then content[i + 1] = cmsgpack.unpack(content[i + 1]) end
    end
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'stream' then
    content = { '' }
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do content[#content + 1] = entry end
  else content = { redis.call('GET', key) } end
  rows[#rows + 1] = { key, kind, content }
  redis.call('DEL', key)
end
return cmsgpack.pack(rows)
"""
#: What a script says when the write that was chosen fails.
BURNED: Final = "the fuse burned"
#: Put in front of a script: its n-th write fails, as with a right withdrawn or a key of an unchecked type.
_FUSE: Final = """
local fuse, server = %d, redis
local WRITES = { LPUSH = 1, RPUSH = 1, LPOP = 1, LTRIM = 1, LREM = 1, HSET = 1, HSETNX = 1, HDEL = 1, HINCRBY = 1,
  ZADD = 1, ZREM = 1, ZREMRANGEBYRANK = 1, XADD = 1, XDEL = 1, XTRIM = 1, DEL = 1, PEXPIRE = 1 }
local function burns(command)
  fuse = fuse - (WRITES[command] or 0)
  return fuse == 0 and WRITES[command] ~= nil
end
local redis = setmetatable({
  call = function(command, ...)
    if burns(command) then error('the fuse burned at ' .. command .. ' ' .. (...)) end
    return server.call(command, ...)
  end,
  pcall = function(command, ...)
    if burns(command) then return { err = 'ERR the fuse burned' } end
    return server.pcall(command, ...)
  end,
}, { __index = server })
"""
#: Trials that are written before their replies are read.
_AT_ONCE: Final = 400


class Refused(NamedTuple):
    """A call that a script refused; `error` names the product's error."""

    error: str


class Trial(NamedTuple):
    """A call on a queue. With `fuse` n its n-th write fails."""

    table: bytes
    call: Call
    fuse: int = 0


class Outcome(NamedTuple):
    """The result of a call, `Refused`, or the text of an error that it raised; and what it wrote."""

    result: Any
    written: Written


class Bench:
    """One connection to one server; `scripts` are script name → text, where they differ from the product's."""

    def __init__(self, url: str, scripts: Mapping[str, bytes] | None = None) -> None:
        self._scripts = dict(scripts or {})
        self._client = Client(ConnectionFactory(url))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(url.removeprefix("unix://"))
        self._reader = hiredis.Reader(protocolError=OSError)
        self._shas: dict[tuple[str, int], str] = {}
        self._calls: dict[tuple[Call, int], tuple[bytes, Callable[[Any], Any]]] = {}
        self._put = self._load(_PUT.encode())
        self._take = _packed(("EVALSHA", self._load(_TAKE.encode()), 0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._socket.close()

    def run(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        """Make each call on its queue."""
        for first in range(0, len(trials), _AT_ONCE):
            some = trials[first : first + _AT_ONCE]
            request, decoders = [], []
            for trial in some:
                words, decode = self._packed_call(trial.call, trial.fuse)
                request += [
                    _packed(("EVALSHA", self._put, 0, trial.table, BASE)),
                    words,
                    self._take,
                ]
                decoders.append(decode)
            self._socket.sendall(b"".join(request))
            for trial, decode in zip(some, decoders, strict=True):
                put, reply, taken = self._read(), self._read(), self._read()
                assert not isinstance(put, hiredis.ReplyError), put
                assert not isinstance(taken, hiredis.ReplyError), taken
                yield Outcome(_result(reply, decode), normal(taken, trial.table))

    def checked(self, table: bytes, *, repair: bool) -> tuple[bytes, list[str]]:
        """Look at a queue by `qworker fsck`, after a repair by it if asked for; the queue, and what was found."""
        self._ask("EVALSHA", self._put, 0, table, BASE)
        if repair:
            self._fsck(repair=True)
        findings = self._fsck(repair=False)
        self._socket.sendall(self._take)
        return normal(self._read(), table).table, findings

    def _fsck(self, *, repair: bool) -> list[str]:
        unread = Unread(self._client, "i")
        leases = survey(self._client, "i", unread, ["q"]).leases.get("q", [])
        return [str(damage) for damage in check_queue(self._client, KEYS, leases, repair=repair)]

    def _packed_call(self, call: Call, fuse: int) -> tuple[bytes, Callable[[Any], Any]]:
        known = self._calls.get((call, fuse))
        if known is None:
            command: Command[Any] = command_of(call)
            assert command.script is not None
            _, _, *words = command.words()
            packed = _packed(("EVALSHA", self._sha(command.script.name, fuse), *words))
            known = self._calls[call, fuse] = (packed, command.decode)
        return known

    def _sha(self, name: str, fuse: int) -> str:
        if (name, fuse) not in self._shas:
            source = self._scripts.get(name, load_script(name).source)
            if fuse:
                first, _, rest = source.partition(b"\n")
                source = first + (_FUSE % fuse).encode() + rest
            self._shas[name, fuse] = self._load(source)
        return self._shas[name, fuse]

    def _load(self, source: bytes) -> str:
        self._ask("SCRIPT", "LOAD", source)
        return hashlib.sha1(source, usedforsecurity=False).hexdigest()

    def _ask(self, *words: bytes | str | int) -> Any:
        self._socket.sendall(_packed(words))
        reply = self._read()
        assert not isinstance(reply, hiredis.ReplyError), reply
        return reply

    def _read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(1 << 16)
            assert data, "the server has closed the connection"
            self._reader.feed(data)
        return reply


def _result(reply: Any, decode: Callable[[Any], Any]) -> Any:
    if isinstance(reply, hiredis.ReplyError):
        return str(reply)
    try:
        return decode(reply)
    except (RefusedError, LeaseLostError) as error:
        return Refused(type(error).__name__)


def _packed(words: Sequence[bytes | str | int]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


@contextmanager
def open_bench(
    engine: str = "valkey", scripts: Mapping[str, bytes] | None = None
) -> Iterator[Bench]:
    """Start a server that keeps nothing on disk, and connect to it."""
    with servers.start(engine, "--appendonly", "no", "--save", "", guarded=False) as server:
        bench = Bench(server.url, scripts)
        try:
            yield bench
        finally:
            bench.close()
