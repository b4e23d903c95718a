"""Puts the processes together: a worker with its reaper and metrics, and the reaper daemon."""
