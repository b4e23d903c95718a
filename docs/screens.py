"""Draws docs/images/top-*.png: the full screen of `qworker top` on a made-up evening.

python -m docs.screens              needs the extra top, and Chromium
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.cli.top.scene import DARK, Scene, picture

__all__ = ["main"]

_IMAGES: Final = Path(__file__).parent / "images"
#: Size in characters → the keys that are pressed before, and the width in pixels.
_SHOTS: Final = {
    (80, 24): (("down", "down", "down"), 1000),
    (200, 50): (("down", "down", "down"), 1600),
}


def main() -> None:
    """Take each picture, and convert it with the system's browser."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if browser is None:
        sys.exit("error: no browser: apt install chromium")
    for size, (keys, wide) in _SHOTS.items():
        drawn = asyncio.run(picture(Scene(), size, keys, DARK))
        # No font from elsewhere: that of the system.
        drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
        drawn = drawn.replace("Fira Code", "DejaVu Sans Mono")
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
        assert box is not None
        width, height = float(box[1]), float(box[2])
        name = f"top-{size[0]}x{size[1]}.png"
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "screen.html")
            path.write_text(f'<body style="margin:0">{drawn}', "utf-8")
            subprocess.run(
                [
                    browser,
                    "--headless",
                    "--no-sandbox",
                    "--hide-scrollbars",
                    "--default-background-color=00000000",
                    f"--force-device-scale-factor={wide / width}",
                    f"--window-size={int(width)},{int(height)}",
                    f"--screenshot={_IMAGES / name}",
                    path.as_uri(),
                ],
                check=True,
                stderr=subprocess.DEVNULL,
            )


if __name__ == "__main__":
    main()
