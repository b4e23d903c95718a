"""Moving in: messages that wait in the keys of RSMQ, RQ and Celery become messages of ours.

One module per system reads its keys into values (`waiting`); `mover` copies these and lets go of the originals, the
same way for all; `survey` looks before anything is written.
"""
