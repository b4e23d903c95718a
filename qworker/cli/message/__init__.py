"""`qworker message`: one file per kind of verb, put together in `group`."""
