"""The Spark pipeline over the journal: history, audit, reports, bulk send and redrive. Imports pyspark only inside."""
