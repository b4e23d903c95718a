"""Peers, each in its own environment: what we are compared with, at their best documented settings."""
