"""What is done with the journal: archive, compact, audit, report, SQL; from DataFrames to DataFrames or values."""
