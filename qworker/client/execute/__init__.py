"""Run plans and commands: the sync and the async client, replay of settles, backoff from failing servers."""
