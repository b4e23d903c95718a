"""Draws docs/images/report-*.png: the top of `qworker spark report` for a made-up day, light and dark.

python -m docs.picture              needs the extras spark and report, and Chromium
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from qworker.pipeline.report import Scope, make_document, render
from qworker.pipeline.session import open_session
from tests.pipeline.forging import Journal, frame

__all__ = ["main"]

_IMAGES: Final = Path(__file__).parent / "images"
_MINUTE_MS, _DAY_MIN = 60_000, 24 * 60
#: Messages a minute at the quietest time, and the median run in ms, per queue.
_QUEUES: Final = {
    "emails": (2.4, 120),
    "orders": (1.8, 90),
    "reports": (0.3, 9000),
    "events": (4.4, 40),
}
#: Minutes of the day in which emails have no workers, and in which one attempt of six fails.
_DOWN: Final = range(13 * 60 + 20, 15 * 60)
_FAILING: Final = range(8 * 60, 9 * 60)
#: CSS pixels of the window, and the pixels of the image for each.
_WINDOW, _SCALE = (1168, 1160), 1.37


def _sent(chance: random.Random, rate: float) -> Iterator[int]:
    """Times in ms at which messages are sent: three times as many in the middle of the day as around midnight."""
    for minute in range(_DAY_MIN):
        busy = 1 + 2 * max(0.0, 1 - abs(minute - 12 * 60) / (6 * 60))
        for _ in range(int(rate * busy + chance.random())):
            yield int((minute + chance.random()) * _MINUTE_MS)


def _journal(queue: str, chance: random.Random) -> Journal:
    """Forge the events of a queue over the day."""
    journal = Journal(queue)
    rate, run_ms = _QUEUES[queue]
    end_ms = _DAY_MIN * _MINUTE_MS
    for number, sent_ms in enumerate(sorted(_sent(chance, rate))):
        steps, ready_ms = [f"sent@{sent_ms}"], sent_ms
        for attempt in range(5):
            minute = ready_ms // _MINUTE_MS
            # Workers that return take the backlog in the order in which it came.
            down = queue == "emails" and minute in _DOWN
            late_ms = (
                (_DOWN.stop - minute) * _MINUTE_MS + 3 * sent_ms % (12 * _MINUTE_MS) if down else 0
            )
            start_ms = ready_ms + late_ms + int(chance.expovariate(1 / 40)) + 1
            done_ms = start_ms + int(chance.lognormvariate(0, 0.6) * run_ms) + 1
            if done_ms >= end_ms:
                break
            steps.append(f"delivered@{start_ms}")
            if chance.random() >= (0.16 if minute in _FAILING else 0.02):
                steps.append(f"acked@{done_ms}")
                break
            if attempt == 1:
                steps.append(f"dead@{done_ms}:max_receives")
                break
            steps.append(f"nacked@{done_ms}")
            ready_ms = done_ms + 30_000 * (attempt + 1)
        journal.write(f"{queue}{number}", " ".join(steps), task=f"handle_{queue}")
    return journal.sort()


def main() -> None:
    """Make the page of the day, and take a picture of its top in both colours."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if browser is None:
        sys.exit("error: no browser: apt install chromium")
    chance = random.Random(2031)  # noqa: S311 - the same day each time
    spark = open_session(app="picture", master="local[2]")
    scope = Scope("shop", "an archive", targets_ms={"emails": 5000.0}, default_target_ms=30_000.0)
    journals = [_journal(queue, chance) for queue in _QUEUES]
    page = render(make_document(frame(spark, *journals), scope))
    spark.stop()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "report.html")
        path.write_text(page, "utf-8")
        for name, scheme in (("dark", 0), ("light", 1)):
            subprocess.run(
                [
                    browser,
                    "--headless",
                    "--no-sandbox",
                    "--hide-scrollbars",
                    "--virtual-time-budget=5000",
                    f"--blink-settings=preferredColorScheme={scheme}",
                    f"--force-device-scale-factor={_SCALE}",
                    f"--window-size={_WINDOW[0]},{_WINDOW[1]}",
                    f"--screenshot={_IMAGES / f'report-{name}.png'}",
                    path.as_uri(),
                ],
                check=True,
                stderr=subprocess.DEVNULL,
            )


if __name__ == "__main__":
    main()
