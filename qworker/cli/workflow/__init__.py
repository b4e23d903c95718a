"""`qworker workflow`: the verbs in `group`, what they print in `tables`."""
