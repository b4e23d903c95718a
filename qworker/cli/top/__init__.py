"""`qworker top`: the command, its screen and its contents."""
