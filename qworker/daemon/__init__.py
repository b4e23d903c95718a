"""The reaper daemon: moves due and timed-out messages back, fires schedules, exports the queues to Prometheus.

`reaper` makes one bounded pass, `loop` waits between passes, and `thread` runs the loop inside `qworker run` as well as
in `qworker daemon`.
"""
