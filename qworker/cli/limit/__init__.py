"""`qworker limit`: the verbs in `group`, their tables in `tables`."""
