"""The Spark pipeline: archive, audit and report of the journal, bulk send and redrive. Imports pyspark lazily."""
