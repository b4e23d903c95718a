"""Peers, each in an environment of its own: what we are compared with, at their best documented settings."""
