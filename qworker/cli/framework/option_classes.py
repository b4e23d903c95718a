"""Every options class that the configuration file may set, in the order of `qworker config show`."""

from __future__ import annotations

from typing import Final

from qworker.config.fields import Options
from qworker.consumer.options import RunOptions
from qworker.daemon.options import DaemonOptions
from qworker.store.options import ClientOptions
from qworker.telemetry.options import LogOptions
from qworker.web.options import WebOptions
from qworker.wire.key_options import KeyOptions

__all__ = ["OPTION_CLASSES"]

OPTION_CLASSES: Final[tuple[type[Options], ...]] = (
    ClientOptions,
    KeyOptions,
    LogOptions,
    RunOptions,
    DaemonOptions,
    WebOptions,
)
