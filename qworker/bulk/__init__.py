"""Bulk send: each row is stored once, however often an attempt or a run is repeated. No Spark here."""
