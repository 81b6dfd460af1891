"""Lock of Orbax, which numbers its operations by a counter of the whole process: one save or load begins at a time.

The first of two at once waits for its own files at the number of the second: for five minutes, and fails.
"""

import threading

ORBAX = threading.Lock()
