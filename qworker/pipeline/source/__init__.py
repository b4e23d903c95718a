"""Reading from Spark: the session, and the data source `qworker` with its tables journal, queues, messages and dead."""
