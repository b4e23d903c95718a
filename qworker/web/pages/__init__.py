"""The pages: each is a function from a look to a page."""
