"""Imports messages that wait in the keys of RSMQ, RQ and Celery.

One module per system reads its keys into the values of `source`; `mover` copies them and removes the originals, in the
same way for all systems; `survey` counts them before anything is written.
"""
