"""The reaper daemon: moves due and timed-out messages back, fires schedules, shows the queues to Prometheus.

`reaper` is one bounded pass, `loop` waits between passes, `service` is the process around them (and, as a thread,
the reaper that `qworker run` carries).
"""
