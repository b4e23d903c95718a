"""The full screen of `qworker top`, on Textual: an extra, imported by nothing else."""
