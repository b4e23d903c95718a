"""Options classes, the kinds of their fields, and where their values come from."""
