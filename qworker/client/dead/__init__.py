"""Dead letters of a queue: filter, read in pages, edit, redrive and drop them."""
