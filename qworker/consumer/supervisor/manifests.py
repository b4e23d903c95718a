"""The manifests that children send: the first one starts the regular checks, later ones may change schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from qworker.consumer.supervisor.app_url import warn_of_app_url
from qworker.consumer.supervisor.operators.regular_checks import ChecksItself, RegularChecks
from qworker.errors import AppLoadError

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.consumer.manifest import Manifest
    from qworker.consumer.options import RunOptions
    from qworker.consumer.supervisor.hooks import Hooks
    from qworker.consumer.supervisor.processes.process import ChildProcess

__all__ = ["Manifests"]

_log = structlog.get_logger(__name__)


class ReadsManifests(ChecksItself, Protocol):
    """A supervisor, as its manifests use it."""

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, or to leave."""


class Manifests:
    """The newest manifest of the app, and the checks that begin with the first one."""

    def __init__(
        self, worker: ReadsManifests, client: Client, options: RunOptions, hooks: Hooks
    ) -> None:
        self._worker = worker
        self._client = client
        self._options = options
        self._hooks = hooks
        self.newest: Manifest | None = None
        self.checks: RegularChecks | None = None

    def read(self, child: ChildProcess) -> None:
        """Take a child's manifest, if it has come: nothing can be settled without it.

        Raises `AppLoadError` if the first child cannot import the app.
        """
        manifest = child.read_manifest()
        if manifest is None:
            return
        if manifest.error:
            if self.newest is None:
                raise AppLoadError(manifest.error)
            _log.error("child_start_failed", error=manifest.error)
            return
        before, self.newest = self.newest, manifest
        if before is None and not self._worker.stopping:
            self.checks = RegularChecks(self._worker, self._client, manifest, self._options)
            self._hooks.on_manifest(manifest)
        elif before is not None and self.checks is not None:
            schedules_changed = manifest.schedules != before.schedules
            self.checks.update(manifest, schedules_changed=schedules_changed)
            if schedules_changed:
                self._hooks.on_schedules(manifest)
        if before is None or manifest.url != before.url:
            warn_of_app_url(manifest.url, self._client.factory.url)

    def run_checks(self) -> None:
        """Make the regular checks, once the app is known. Raises `ServerError`."""
        if self.checks is not None:
            self.checks.run()
