"""Waiting for results of messages."""
