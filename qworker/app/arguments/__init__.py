"""Arguments of tasks: bound, validated and converted by the function's annotations."""
