"""Counts what Lua executes of a script, which neither the machine nor its load can change.

The script runs in a Lua 5.1 beside the server, the version that servers have, and each `redis.call` goes to the server:
it does what it would do there. Counted are the instructions of its byte code, those that make its functions included,
but not those of Lua's library and of Redis.
"""

from __future__ import annotations

import hashlib
from typing import Any, Self

import msgspec
import redis
from lupa import lua51

from qworker.engine.command import Command
from tests.servers import Server

__all__ = ["Counter"]

_COUNT = b"""
local text, keys, argv, call, pcall, sha1hex, pack, unpack_limit = ...
redis = { call = call, pcall = pcall, sha1hex = sha1hex, acl_check_cmd = function() return true end }
cmsgpack = { pack = pack, unpack_limit = unpack_limit }
function cmsgpack.unpack(text) return (select(2, unpack_limit(text, 1, 0))) end
KEYS, ARGV = keys, argv
local script, count = assert(loadstring(text)), 0
debug.sethook(function() count = count + 1 end, '', 1)
local reply = script()
debug.sethook()
return count, reply
"""


class Counter:
    """Runs commands of scripts on a server, a command of theirs a call, with replies as scripts get them.

    `calls`: how many commands the last script has called.
    """

    def __init__(self, server: Server) -> None:
        self._connection = redis.UnixDomainSocketConnection(path=server.socket, protocol=2)
        self.calls = 0

    def __enter__(self) -> Self:
        self._connection.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.disconnect()

    def run(self, command: Command[Any]) -> tuple[int, Any]:
        """Run a command; returns the instructions that its script took, and its decoded reply."""
        assert command.script is not None
        lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self.calls = 0

        def to_lua(reply: Any) -> Any:
            if reply is None:
                return False
            if isinstance(reply, str):
                return reply.encode()
            return lua.table(*map(to_lua, reply)) if isinstance(reply, list) else reply

        def call(*words: Any) -> Any:
            self.calls += 1
            self._connection.send_command(*words)
            reply = self._connection.read_response()
            return lua.table_from({b"ok": reply}) if words[0] == b"TYPE" else to_lua(reply)

        def pcall(*words: Any) -> Any:
            try:
                return call(*words)
            except redis.ResponseError as error:
                return lua.table_from({b"err": str(error).encode()})

        def unpacked(text: bytes, number: int, at: int) -> Any:
            values = msgspec.msgpack.decode(bytes([0x90 | int(number)]) + text[int(at) :])
            return (-1, *map(to_lua, values))

        # The line that names the flags is not Lua.
        source = b"--" + command.script.source
        args = [word if isinstance(word, bytes) else str(word).encode() for word in command.args]
        keys = [key.encode() for key in command.keys]
        given = (
            source,
            lua.table(*keys),
            lua.table(*args),
            call,
            pcall,
            _sha1hex,
            _packed,
            unpacked,
        )
        count, reply = lua.execute(_COUNT, *given)
        return count, command.decode(_of_lua(reply))


def _sha1hex(text: bytes) -> bytes:
    """As servers give it to scripts."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _packed(*values: Any) -> bytes:
    """Pack values as the servers' cmsgpack does; texts are ASCII."""
    return b"".join(msgspec.msgpack.encode(_packable(value)) for value in values)


def _packable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if lua51.lua_type(value) == "table":
        return [_packable(value[index]) for index in range(1, len(value) + 1)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _of_lua(value: Any) -> Any:
    """Make a reply of what a script returns."""
    if lua51.lua_type(value) != "table":
        return None if value is False else value
    return [_of_lua(value[index]) for index in range(1, len(value) + 1)]
