"""A small app for compose.yaml: add your own beside it, or mount another folder at /app."""

import structlog

from qworker import QWorker

app = QWorker("demo")
log = structlog.get_logger()


@app.task(queue="greetings", max_receives=3)
def greet(name: str) -> None:
    """Say hello in the worker's log."""
    log.info("greeted", name=name)
