"""The code in our Markdown, as tests run it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["ROOT", "blocks"]

ROOT = Path(__file__).parent.parent.parent


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
