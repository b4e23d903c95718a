"""`qworker dead`: one file per kind of verb, put together in `group`."""
