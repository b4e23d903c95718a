"""Programs that try to make the queue break its promises; README.md tells how to run them."""
