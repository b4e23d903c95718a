"""`qworker send`: the command and the sources of bodies."""
