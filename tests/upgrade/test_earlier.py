"""From earlier versions to this one under load, with `QWORKER_EARLIER=555c478` or several commits of the history.

Processes of the earlier version are taken out of git; they work beside those of this one, and stop one by one.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumer.driving import until
from tests.consumer.workers import ROOT, Lab
from tests.upgrade.test_rolling import APP, PRODUCER, Mixed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_COMMITS = os.environ.get("QWORKER_EARLIER", "").replace(",", " ").split()


def take_out(commit: str, directory: Path) -> Path:
    """Write the package of a commit into a directory, which is to stand first in PYTHONPATH."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "qworker"], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed.stdout, check=True)
    return directory


@pytest.fixture
def mixed(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mixed]:
    """A lab with the app, where an earlier version (`old`) and this one (`new`) can be started."""
    lab.app(APP)
    (lab.directory / "producer.py").write_text(PRODUCER)
    directory = tmp_path / "earlier"
    directory.mkdir()
    mixed = Mixed(lab, ROOT)
    mixed.paths["old"] = str(take_out(request.param, directory))
    yield mixed
    mixed.close()


if _COMMITS:  # without, there is nothing to test, and nothing to skip

    @pytest.mark.parametrize("mixed", _COMMITS, indirect=True)
    def test_an_upgrade_from_an_earlier_version_loses_nothing(mixed: Mixed) -> None:
        """Either version handles what the other sends; each message is handled once, and each counter is right."""
        old = [mixed.producer("old"), mixed.daemon("old"), mixed.worker("old")]
        until(lambda: mixed.by("old"))
        new = [mixed.producer("new"), mixed.daemon("new"), mixed.worker("new")]
        both = {("old", "old"), ("old", "new"), ("new", "old"), ("new", "new")}
        until(lambda: both == {(who, key[:3]) for who in ("old", "new") for key in mixed.by(who)})
        for process in old:
            before = len(mixed.handled())
            mixed.stop(process)
            until(lambda before=before: len(mixed.handled()) > before + 200)
        mixed.stop(new[0])
        queue = mixed.lab.queue()
        until(lambda: queue.inspect().stored == 0)

        assert mixed.handled() == Counter(mixed.sent())
        seen = queue.inspect()
        assert (seen.ready, seen.delayed, seen.leases, seen.dead) == (0, 0, 0, 0)
        told = {name: seen.stats.get(name, 0) for name in ("sent", "acked", "stored", "unacked")}
        assert told == {
            "sent": len(mixed.sent()), "acked": len(mixed.sent()), "stored": 0, "unacked": 0,
        }  # fmt: skip
        for process in new[1:]:
            mixed.stop(process)
