"""`python -m qworker.consumer.child`: a child.

The garbage collector visits all objects several times while modules are imported, a tenth of the time, and finds
next to nothing: it begins with what comes after them, the app of the user.
"""

import gc

if __name__ == "__main__":
    gc.disable()
    from qworker.consumer.child.main import main

    gc.freeze()
    gc.enable()
    main()
