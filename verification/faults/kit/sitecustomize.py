"""Put on the path of every process of a run: it plants a mutation, notes acks, and crashes where it is told to.

The product knows nothing of this directory; without FAULTS_HISTORY nothing happens here either.
"""

import os

if "FAULTS_HISTORY" in os.environ:
    from verification.faults import mutations

    # Before anything else of the product is imported: it takes `load_script` by name.
    mutations.plant(os.environ.get("FAULTS_MUTATION", ""))

    from verification.faults import crashes, hooks

    hooks.install(os.environ["FAULTS_HISTORY"], os.environ["FAULTS_ROLE"])
    crashes.install(os.environ.get("FAULTS_CRASH", ""))
