"""The pages: each is a function from a request to a page."""
