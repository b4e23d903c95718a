"""The zoo of handlers: every shape and misbehaviour that a handler may have, run by real workers.

`table`: what a row says. `handlers`: the rows. `page`: the rows as a table of docs/guides/handlers.md.
`test_zoo`: the workers that run them. A new row is a function in `handlers` and `python -m tests.consumer.zoo.page`.
"""
