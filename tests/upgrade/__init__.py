"""Two versions of envelope and scripts side by side, as in every rolling upgrade."""
