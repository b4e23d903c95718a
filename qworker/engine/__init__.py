"""Commands as values: the call, how to decode its reply, and how to repeat it if the reply is lost.

The sync and the async client execute the same values. No I/O here, and no imports: the options of the command line are
here as well, and are read before a Redis client is needed.
"""
