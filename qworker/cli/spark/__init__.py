"""`qworker spark`: one file per verb, put together in `group`."""
