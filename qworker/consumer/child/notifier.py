"""Wakes the broker out of its wait."""

from __future__ import annotations

import select
import socket

__all__ = ["Waker"]


class Waker:
    """Wakes a sleeper from any thread; costs nothing while there is none."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._sleeping = False

    def __call__(self) -> None:
        """Wake the sleeper, if there is one."""
        if self._sleeping:
            self.wake()

    def wake(self) -> None:
        """Wake the sleeper, or the next one."""
        self._sleeping = False
        try:
            self._writer.send(b"!")
        except OSError:
            return  # it is being woken already, or is closed

    def going_to_sleep(self) -> None:
        """Make calls wake from now on; check once more for work before `sleep`."""
        self._sleeping = True

    def sleep(self, timeout_s: float, *descriptors: int) -> set[int]:
        """Sleep until a wake, the end of `timeout_s`, or input on a descriptor; returns those with input."""
        poll = select.poll()
        poll.register(self._reader.fileno(), select.POLLIN)
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}
        self._sleeping = False
        if self._reader.fileno() in ready:
            self._forget()
        return ready

    def close(self) -> None:
        """Close the descriptors."""
        self._reader.close()
        self._writer.close()

    def _forget(self) -> None:
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            return
