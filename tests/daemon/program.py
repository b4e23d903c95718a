"""A daemon as a process: `python -m tests.daemon.program URL NAMESPACE PORT DURABILITY TICK METRICS_QUEUES`."""

from __future__ import annotations

import sys

from qworker.daemon.options import DaemonOptions
from qworker.service.daemon import Daemon
from qworker.telemetry.logs import configure_logs

if __name__ == "__main__":
    configure_logs("json", "info")
    url, namespace, port, durability, tick, queues = sys.argv[1:]
    options = DaemonOptions(
        metrics_port=int(port), durability=durability, tick=tick, metrics_queues=int(queues)
    )
    sys.exit(Daemon(url, namespace, options).run())
