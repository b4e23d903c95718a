"""Jobs over the journal: archive, compact and audit; from DataFrames to DataFrames or values."""
