"""Opens connections for asyncio as the async client does."""

from __future__ import annotations

from typing import Any

from qworker.store.connections import ConnectionFactory


async def aconnect(factory: ConnectionFactory) -> Any:
    """Open a connection to the server for calls without a key."""
    return (await factory.aopen(await factory.alocate())).connection
