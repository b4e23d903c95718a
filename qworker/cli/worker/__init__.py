"""`qworker worker`: the commands and their requests to running workers."""
