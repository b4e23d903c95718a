"""Environments of peers: made once, in a cache folder, with pinned versions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.peers.catalog import Peer
from benchmarks.rounds import ContenderError

__all__ = ["ROOT", "cache_folder", "installed", "python_of"]

#: Where `benchmarks` is imported from.
ROOT = Path(__file__).parents[2]
_PIP = ("-m", "pip", "--disable-pip-version-check")


@cache
def python_of(peer: Peer, say: Callable[[str], None]) -> Path:
    """Name the Python of a peer's environment, made first where there is none. Raises `ContenderError`."""
    pins = f"{sys.version} {' '.join(peer.requires)}"
    place = cache_folder() / f"{peer.name}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"
    python = place / "bin" / "python"
    done = place / "installed"
    if not done.exists():
        say(f"installing {', '.join(peer.requires)} into {place}")
        _run(sys.executable, "-m", "venv", "--clear", str(place))
        _run(str(python), *_PIP, "-q", "install", *peer.requires)
        done.touch()
    return python


def installed(peer: Peer, say: Callable[[str], None]) -> dict[str, object]:
    """Say what a peer is: the versions in its environment, its settings and its guarantee."""
    python = python_of(peer, say)
    frozen = _run(str(python), *_PIP, "freeze")
    settings = _run(str(python), "-m", "benchmarks.peers.driver", peer.name, "about")
    return {
        "versions": frozen.split(),
        "settings": settings.strip(),
        "guarantee": peer.guarantee,
    }


def _run(*words: str) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContenderError(f"{' '.join(words)} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def cache_folder() -> Path:
    """Name the folder of what is installed for peers."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "qworker-benchmarks"
