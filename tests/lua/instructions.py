"""Counts what Lua executes of a script, which neither the machine nor its load can change.

The script runs in a Lua 5.1 beside the server, the version that servers have, and each `redis.call` goes to the server:
it does what it would do there. Counted are the instructions of its byte code, those that make its functions included,
but not those of Lua's library and of Redis.
"""

from __future__ import annotations

from typing import Any, Self

import redis
from lupa import lua51

from qworker.engine.command import Command
from tests.servers import Server

__all__ = ["Counter"]

_COUNT = b"""
local text, keys, argv, call, pcall = ...
redis = { call = call, pcall = pcall }
KEYS, ARGV = keys, argv
local script, count = assert(loadstring(text)), 0
debug.sethook(function() count = count + 1 end, '', 1)
local reply = script()
debug.sethook()
return count, reply
"""


class Counter:
    """Runs commands of scripts on a server, a command of theirs a call, with replies as scripts get them."""

    def __init__(self, server: Server) -> None:
        self._connection = redis.UnixDomainSocketConnection(path=server.socket, protocol=2)

    def __enter__(self) -> Self:
        self._connection.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.disconnect()

    def run(self, command: Command[Any]) -> tuple[int, Any]:
        """Run a command; returns the instructions that its script took, and its decoded reply."""
        assert command.script is not None
        lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)

        def to_lua(reply: Any) -> Any:
            if reply is None:
                return False
            return lua.table(*map(to_lua, reply)) if isinstance(reply, list) else reply

        def call(*words: Any) -> Any:
            self._connection.send_command(*words)
            reply = self._connection.read_response()
            return lua.table_from({b"ok": reply}) if words[0] == b"TYPE" else to_lua(reply)

        def pcall(*words: Any) -> Any:
            try:
                return call(*words)
            except redis.ResponseError as error:
                return lua.table_from({b"err": str(error).encode()})

        # The line that names the flags is not Lua.
        source = b"--" + command.script.source
        args = [word if isinstance(word, bytes) else str(word).encode() for word in command.args]
        keys = [key.encode() for key in command.keys]
        count, reply = lua.execute(_COUNT, source, lua.table(*keys), lua.table(*args), call, pcall)
        return count, command.decode(_of_lua(reply))


def _of_lua(value: Any) -> Any:
    """Make a reply of what a script returns."""
    if lua51.lua_type(value) != "table":
        return None if value is False else value
    return [_of_lua(value[index]) for index in range(1, len(value) + 1)]
