"""Pictures of the dashboard for the guide: `python -m tests.web.pictures`, three minutes; needs Chromium.

A shop at work (`tests.web.exhibit`) is looked at while it is busy. With the font Inter (Debian: fonts-inter) they look
as in the guide.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.monitor import one_pass
from qworker.store.connections import ConnectionFactory
from qworker.web import RIGHTS, Access, asgi
from qworker.wire.codec import encode_call
from tests import servers
from tests.cli.conftest import Shop
from tests.ports import free_port
from tests.web.conftest import serving
from tests.web.exhibit import exhibit

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
#: Picture → the page of the exhibit, and its height.
PICTURES: Final = {
    "dashboard": ("overview", 1000),
    "dashboard-dead": ("emails-dead", 880),
    "dashboard-message": ("message", 700),
    "dashboard-worker": ("worker", 1330),
    "dashboard-run": ("parallel", 900),
}
_BUSY_S: Final = 110.0


def main() -> None:
    """Take the pictures, the first one light and dark."""
    from playwright.sync_api import sync_playwright

    busy_s = float(sys.argv[1]) if len(sys.argv) > 1 else _BUSY_S
    # An hour is longer than anybody waits for a picture.
    one_pass._TOTAL_APART_S, one_pass._QUEUE_APART_S = 2.0, 2.0
    port = free_port()
    settings = ("--appendonly", "yes", "--maxmemory", "1gb", "--maxmemory-policy", "noeviction")
    with (
        servers.start("valkey", "--port", str(port), *settings) as server,
        Client(ConnectionFactory(server.url), give_up_s=20) as client,
        tempfile.TemporaryDirectory(prefix="shop-") as folder,
    ):
        url = f"redis://127.0.0.1:{port}"
        shop = Shop(client, "shop", url)
        dashboard = asgi(QWorker("shop", url=url), authorize=lambda _: Access("ada", RIGHTS))
        with (
            exhibit(shop, Path(folder), ordinary=True) as paths,
            serving(dashboard) as web,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            ended = threading.Event()
            sender = threading.Thread(target=_send, args=(shop, ended))
            sender.start()
            for scheme in ("light", "dark"):
                context = browser.new_context(color_scheme=scheme, device_scale_factor=1.5)
                page = context.new_page()
                if scheme == "light":
                    # A viewer, so that the sampler does not rest.
                    page.goto(f"http://127.0.0.1:{web}/")
                    time.sleep(busy_s)
                for name, (of, height) in PICTURES.items():
                    if scheme == "dark" and name != "dashboard":
                        continue
                    page.set_viewport_size({"width": 1280, "height": height})
                    page.goto(f"http://127.0.0.1:{web}{paths[of]}")
                    page.wait_for_timeout(500)
                    page.screenshot(path=IMAGES / f"{name}-{scheme}.png")
                context.close()
            ended.set()
            sender.join()
            browser.close()
        dashboard.close()


def _send(shop: Shop, ended: threading.Event) -> None:
    """Send as a shop does in the course of a day, faster."""
    begun = time.monotonic()
    while not ended.wait(0.5):
        wave = 1 + math.sin((time.monotonic() - begun) / 9) + 0.4 * math.sin(time.monotonic() * 1.7)
        for name, task, most in (
            ("emails", "send_email", 60),
            ("reports", "report", 25),
        ):
            number = max(1, round(most * wave / 4))
            body = ["ada@example.org", "welcome"] if name == "emails" else []
            shop.queue(name).send_many([encode_call(task, body, {})] * number)


if __name__ == "__main__":
    main()
