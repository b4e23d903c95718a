"""Reading from Spark: the tables journal, queues, messages and dead of the data source `qworker`."""
