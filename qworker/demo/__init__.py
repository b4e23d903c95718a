"""`qworker demo`: a real job on real input, with a worker killed, and an account of every message at the end."""

from __future__ import annotations

from qworker.demo.command import run_demo

__all__ = ["run_demo"]
