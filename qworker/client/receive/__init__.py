"""Receive messages from one queue or several, reap without a daemon, and take over messages of lost receivers."""
