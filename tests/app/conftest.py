"""Fixtures of the apps' tests."""

from tests.consumer.conftest import app

__all__ = ["app"]
