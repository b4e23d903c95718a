"""Programs that try to make the queue break its promises; README.md says how to run them."""
