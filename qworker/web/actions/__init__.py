"""What operators do: the functions that the command line calls. One file per noun, put together in `table`."""
