"""Fixtures of the checks' tests."""

from tests.consumer.conftest import app

__all__ = ["app"]
