"""What handlers can do to their process: fork it, patch it, leave threads and processes behind."""
