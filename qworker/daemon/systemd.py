"""Notifies systemd of the state of the process (`Type=notify`): READY=1, WATCHDOG=1, STATUS=…, STOPPING=1.

Each is one datagram to the socket that NOTIFY_SOCKET names; see sd_notify(3). Our own because it is this short: the
`sdnotify` package does the same in as many lines, has had no release since 2017 and leaves the variable to children.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, MutableMapping

__all__ = ["SystemdNotifier"]


class SystemdNotifier:
    """Sends states to systemd; does nothing without systemd. Never raises."""

    def __init__(
        self,
        environ: MutableMapping[str, str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the socket and the watchdog's interval out of the environment, so that no child notifies for us."""
        environ = os.environ if environ is None else environ
        self._address = environ.pop("NOTIFY_SOCKET", "")
        interval = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        watched = interval.isdecimal() and pid in ("", str(os.getpid()))
        #: Seconds within which systemd expects a ping; None without a watchdog.
        self.watchdog_s = int(interval) / 1e6 if watched and int(interval) else None
        self._clock = clock
        self._next_ping = float("-inf")
        self._status = ""

    def ready(self) -> None:
        """Notify that the process has started."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Notify that the process is about to end."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the status line; a repeated text is sent once."""
        if text != self._status:
            self._status = text
            self._send("STATUS=" + " ".join(text.split()))

    def ping(self) -> None:
        """Ping the watchdog, four times per interval at most."""
        if self.watchdog_s is not None and self._clock() >= self._next_ping:
            self._next_ping = self._clock() + self.watchdog_s / 4
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # A leading @ is the zero byte of an abstract socket (Linux).
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
                datagram.settimeout(1.0)
                datagram.sendto(state.encode(), address)
        except OSError:
            return
