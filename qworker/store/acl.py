"""Least rights on the server: which commands and keys each kind of process needs, as lines of Redis' ACL.

A role is a set of scripts and of raw commands. What a script needs is read from its text, for Redis checks the commands
inside of a script against whoever calls it; so this cannot fall behind the scripts. What follows from that and cannot
be prevented by Redis: a role may also send these commands by themselves, and may call any script that is loaded, as far
as its keys and commands go. docs/security.md says what that comes to.

`EVALSHA` wants to read and write every key that is declared. A producer's right to call scripts therefore stands in a
selector of its own, `(+evalsha ~…)`: outside of it the producer may write messages and not read them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from qworker.errors import InvalidOptionError
from qworker.store.scripts import SCRIPT_NAMES, load_script
from qworker.wire.keys import (
    QueueKeys,
    answer_key,
    control_key,
    leaving_key,
    owners_key,
    paused_tasks_key,
    queues_key,
    reapers_key,
    workers_key,
)

__all__ = ["LOADING", "ROLES", "Role", "Server", "User", "commands_of", "write_users"]

_CALL: Final = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")
_COMMENT: Final = re.compile(r"--[^\n]*")
#: Every queue of the namespace.
_ANY: Final = "*"
#: Who may load scripts: daemon and operator, for all; or everybody who calls them, with whatever else they bring.
LOADING: Final = ("daemon", "callers")
_LOADERS: Final = ("daemon", "operator")
#: What any client says: who it is, to which database it goes, which run of the server answers (a client that settles
#: repeats its last settles to another one), and where the keys are in a cluster.
_CONNECTION: Final = (
    "hello", "auth", "ping", "select", "client|setname", "info|server", "cluster|slots", "asking",
)  # fmt: skip
_SETINFO: Final = "client|setinfo"
#: The version that brought it, the first of Valkey included.
_SETINFO_SINCE: Final = (7, 2)
_WAITAOF: Final = "waitaof"


@dataclass(frozen=True, slots=True)
class Server:
    """What the rules depend on: commands that a server does not know keep it from starting."""

    version: tuple[int, int] = (7, 2)

    @classmethod
    def parse(cls, text: str) -> Server:
        """Read a version such as 7.0.15, or valkey-8.1. Raises `InvalidOptionError`."""
        match = re.fullmatch(r"(?:redis-|valkey-)?(\d{1,3})\.(\d{1,3})(?:\.\d{1,5})?", text)
        if match is None or (int(match[1]), int(match[2])) < (7, 0):
            raise InvalidOptionError(
                "--server-version",
                f"{ascii(text)[:40]} is no version that can be served",
                "write 7.0 or newer, such as 7.0.15",
            )
        return cls((int(match[1]), int(match[2])))

    def knows(self, command: str) -> bool:
        """Whether it has a command."""
        return command not in (_SETINFO, _WAITAOF) or self.version >= _SETINFO_SINCE


Keys = Callable[[QueueKeys], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a kind of process may do: the scripts that it calls, the commands that it sends itself, and on which keys.

    `keys` of a queue it may read and write, `writes` only write, `reads` only read. `shared` are patterns of keys of
    the namespace, as an ACL has them. `announces`: it adds names to the index of queues, and can neither remove nor
    read any. `lists`: it reads the index. `extra` are rights that no list of commands tells. `every_queue`: it is for
    all queues of the namespace.
    """

    about: str
    scripts: Sequence[str] = ()
    raw: Sequence[str] = ()
    keys: Keys = field(default=lambda _: ())
    writes: Keys = field(default=lambda _: ())
    reads: Keys = field(default=lambda _: ())
    shared: Callable[[str], Iterable[str]] = field(default=lambda _: ())
    announces: bool = False
    lists: bool = False
    extra: Sequence[str] = ()
    every_queue: bool = False


def _producer_keys(keys: QueueKeys) -> tuple[str, ...]:
    return (keys.meta, keys.stats, keys.producers, keys.unique, keys.journal)


def _into(keys: QueueKeys) -> tuple[str, ...]:
    return (keys.ready[0], f"{keys.ready[0]}:[1-9]", keys.delayed, keys.wake)


def _consumer_keys(keys: QueueKeys) -> tuple[str, ...]:
    return (
        *_into(keys),
        keys.suspect,
        keys.unacked,
        f"{keys.lease_prefix}*",
        keys.dead,
        keys.meta,
        keys.stats,
        keys.unique,
        keys.cancelled,
        keys.schedules,
        keys.journal,
    )


def _counted(keys: QueueKeys) -> tuple[str, ...]:
    return (
        keys.ready[0],
        f"{keys.ready[0]}:[1-9]",
        keys.suspect,
        keys.delayed,
        keys.unacked,
        keys.dead,
        keys.stats,
        keys.meta,
        keys.journal,
    )


_REGISTERING: Final = ("hset", "hgetall", "hdel", "exists")
_SERVER_FACTS: Final = ("info", "config|get")

ROLES: Final[dict[str, Role]] = {
    "producer": Role(
        about="sends to its queues; reads no message",
        scripts=("send", "adopt", "mark"),
        raw=("wait", _WAITAOF, "hget", "hmget"),
        keys=_producer_keys,
        writes=_into,
        announces=True,
    ),
    "consumer": Role(
        about="receives from its queues and settles, and registers its schedules (qworker run --no-reaper)",
        scripts=(
            "settle_receive", "settle", "extend", "split", "split_all", "claim", "inspect", "poll", "adopt",
            "names",
        ),
        raw=(
            "blpop", "rpush", "lrange", "pexpire", "hmget", "hget", "zscore", "hexists", "zrevrange",
            *_REGISTERING,
        ),
        keys=_consumer_keys,
        announces=True,
        lists=True,
        shared=lambda namespace: (
            f"~{workers_key(namespace)}",
            f"~{leaving_key(namespace)}",
            f"~{owners_key(namespace)}",
            f"%R~{paused_tasks_key(namespace)}",
            f"%R~{control_key(namespace, _ANY)}",
            f"%W~{answer_key(namespace, _ANY)}",
            f"%R~{reapers_key(namespace)}",
        ),
    ),
    "daemon": Role(
        about="reaps every queue of the namespace, fires schedules, reads figures (qworker daemon)",
        scripts=(
            "sweep", "promote", "reap", "trim", "prune", "recount", "shed", "fire", "inspect",
            "adopt", "divide", "mark", "names", "present", "retire",
        ),
        raw=(
            "hincrby", "hlen", "hset", "hget", "hgetall", "hexists", "hdel", "exists", "scan",
            "xrange", "zadd", "zcard", "zrem", "zremrangebyscore", *_SERVER_FACTS,
        ),
        keys=lambda keys: (keys.ready[0].removesuffix("ready") + "*",),
        shared=lambda namespace: (
            f"~{queues_key(namespace)}",
            f"~{reapers_key(namespace)}",
            f"~{leaving_key(namespace)}",
            f"%R~{owners_key(namespace)}",
        ),
        every_queue=True,
    ),
    "operator": Role(
        about="looks at everything in the namespace, moves, edits and deletes it (the command line)",
        scripts=SCRIPT_NAMES,
        raw=(
            "blpop", "rpush", "hset", "hsetnx", "hincrby", "hdel", "hget", "hmget", "hgetall", "hkeys", "hvals",
            "hlen", "hexists", "hscan", "exists", "type", "lrange", "zrange", "zrevrange", "zscan",
            "zrangebyscore", "zrevrangebyscore", "zscore", "zrem", "zcard", "xrange", "xrevrange",
            "scan", "renamenx", "unlink", "pexpire", "wait", _WAITAOF, *_SERVER_FACTS,
        ),
        shared=lambda namespace: (f"~{namespace}:*",),
        every_queue=True,
    ),
    "metrics": Role(
        about="counts messages and reads counters; no message, no script (an exporter, KEDA)",
        raw=("llen", "zcard", "xlen", "hget", "hmget", "hgetall", "hkeys", "exists", "type", "time"),
        reads=_counted,
        shared=lambda namespace: (f"%R~{queues_key(namespace)}",),
    ),
    "admin": Role(
        about="whatever there is to be done in the namespace by hand (redis-cli)",
        scripts=SCRIPT_NAMES,
        shared=lambda namespace: (f"~{namespace}:*",),
        extra=(
            "+@read", "+@write", "+@keyspace", "+@scripting", "+@connection", "+@transaction",
            # Functions belong to the whole server: FUNCTION FLUSH would take those of all.
            "-@dangerous", "-function", *(f"+{each}" for each in _SERVER_FACTS), "+script|load", "+script|exists",
            "+script|flush", "+acl|whoami", "+acl|dryrun", "+acl|log", "+slowlog|get",
        ),
        every_queue=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user to be written: its roles, for these queues (none: all). `password` None: nobody can be it yet."""

    name: str
    roles: Sequence[str]
    queues: Sequence[str] = ()
    password: str | None = None


@cache
def commands_of(script: str) -> frozenset[str]:
    """Read the commands that a script may call, its includes among them, out of its text."""
    return frozenset(
        name.lower()
        for name in _CALL.findall(_COMMENT.sub("", load_script(script).source.decode()))
    )


def write_users(
    users: Sequence[User], namespace: str, *, server: Server, loading: str = LOADING[0]
) -> list[str]:
    """Write a line of an ACL file for each user: all of its rights, whatever it had before.

    `loading` is one of `LOADING`. Raises `InvalidOptionError` for a role that there is not, and for queues of a role
    that is for all of them.
    """
    return [_line(user, namespace, server, loading) for user in users]


def _line(user: User, namespace: str, server: Server, loading: str) -> str:
    roles = [_role(name, user.queues) for name in user.roles]
    queues = [
        QueueKeys(namespace, name)
        # What is sharded has a slot for each shard.
        for queue in (user.queues or (_ANY,))
        for name in ((queue,) if queue == _ANY else (queue, f"{queue}/[0-9]*"))
    ]
    patterns: list[str] = []
    scripted: list[str] = []
    selectors: list[str] = []
    index = queues_key(namespace)
    commands = {*_CONNECTION, _SETINFO}
    extra: list[str] = []
    for name, role in zip(user.roles, roles, strict=True):
        for keys in queues:
            patterns += (f"~{key}" for key in role.keys(keys))
            patterns += (f"%W~{key}" for key in role.writes(keys))
            patterns += (f"%R~{key}" for key in role.reads(keys))
            if role.writes(keys):
                scripted += (f"~{key}" for key in (*role.writes(keys), *role.keys(keys)))
        if role.announces:
            selectors.append(f"(+hset %W~{index})")
        if role.lists:
            patterns.append(f"%R~{index}")
            selectors.append(f"(+evalsha ~{index})")
        shared = [*role.shared(namespace)]
        patterns += shared
        if role.writes(queues[0]):
            scripted += shared
        commands.update(role.raw, *(commands_of(script) for script in role.scripts))
        if role.scripts:
            commands.update(("time", "script|exists"))
            if not role.writes(queues[0]):
                commands.add("evalsha")
            if loading == "callers" or name in _LOADERS:
                commands.add("script|load")
        extra += role.extra
    allowed = sorted(f"+{each}" for each in commands if server.knows(each))
    # Roles that exclude (admin) come first: what another one needs is added to them.
    words = ["user", user.name, "reset", "on", *_password(user.password)]
    words += [*dict.fromkeys(patterns), *extra, *allowed]
    words += dict.fromkeys(selectors)
    if scripted:
        words.append(f"(+evalsha {' '.join(dict.fromkeys(scripted))})")
    return " ".join(words)


def _role(name: str, queues: Sequence[str]) -> Role:
    role = ROLES.get(name)
    if role is None:
        raise InvalidOptionError(
            "--role", f"{ascii(name)[:40]} is none", f"roles are {', '.join(ROLES)}"
        )
    if queues and role.every_queue:
        raise InvalidOptionError(
            "--queue", f"is given for the role {name}", "it is for every queue of the namespace"
        )
    return role


def _password(password: str | None) -> list[str]:
    # Without one nobody can be the user.
    return [] if password is None else [f"#{hashlib.sha256(password.encode()).hexdigest()}"]
