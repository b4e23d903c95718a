"""The model of a queue that tests/model compares with the real one."""
