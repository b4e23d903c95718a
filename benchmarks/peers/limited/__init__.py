"""Peers whose limiters `limits` measures, with their own drivers: their jobs have to keep a rate."""
