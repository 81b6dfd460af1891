"""A temporary directory that does not outlive its process for long, even where that is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path


class OwnDirectory:
    """A temporary directory of this process, locked as long as it lives. What dead processes have left of the same
    ``prefix`` on this machine is removed first: nobody holds a lock on that.

    Attributes:
        path: of the directory.
    """

    def __init__(self, prefix: str) -> None:
        """Makes the directory in the folder for temporary files.

        Raises:
            OSError: it cannot be made.
        """
        prefix = f"{prefix}{socket.gethostname()}-"  # a lock on a directory of a shared disk is this machine's alone
        _remove_left(prefix)
        while True:
            self._made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            self.path = Path(self._made.name)
            with contextlib.suppress(FileNotFoundError):  # another process took it for left, before it was locked
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                with contextlib.suppress(OSError):  # a disk without locks: then nobody takes it for left either
                    fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._lock)

    def close(self) -> None:
        """Removes the directory and all that is in it. May be called again."""
        self._made.cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_left(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it lives, or is another user's
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
