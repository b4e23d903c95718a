"""Writes from Spark: bulk send, redrive and discard, as a batch writer, a stream sink and functions on DataFrames."""
