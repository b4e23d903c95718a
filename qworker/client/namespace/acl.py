"""Users of the server with the rights of a role, for `qworker acl`.

The code is in the engine, next to the scripts from whose text it reads the rights.
"""

from __future__ import annotations

from qworker.engine.acl import LOADING, Server, User, write_users
from qworker.engine.acl_roles import ROLES

__all__ = ["LOADING", "ROLES", "Server", "User", "write_users"]
