"""`qworker import`: the command, its run and its report."""
