"""Pytest fixtures for users."""
