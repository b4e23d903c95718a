"""Logs, and the listener for metrics and health."""
