"""Logs, and the HTTP listener for metrics and health."""
