"""Options classes, the kinds of their fields, and the sources of their values."""
