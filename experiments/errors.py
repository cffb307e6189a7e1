"""Whose fault an error is: the user's (UserError, exit code 2), the machine's (``environment_failure``, 75), or the run's own (1)."""

from __future__ import annotations

import errno
import os
import re

EXIT_OWN_ERROR = 1
EXIT_USER_ERROR = 2
EXIT_BUSY = 69  # EX_UNAVAILABLE: another process has the run in hand
EXIT_ENVIRONMENT = 75  # EX_TEMPFAIL of sysexits.h: the same command may succeed later

# A full disk or quota, a file server that went away, a disk turned read-only, no memory from the system.
ENVIRONMENT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOMEM)
# safetensors and torch raise errors of their own with the system's number in the text.
ERRNO_IN_TEXT = re.compile(r"\b(?:os error|code:|Error code) (\d+)")


class UserError(ValueError):
    """A mistake that the user can correct. The message says what is wrong, why, and what to do instead."""


class RunBusy(UserError):
    """Another live process holds the run. Who launched both may simply wait for it."""


class RecordUnwritable(OSError):
    """A run's status file could not be written: nothing that the run did."""


def environment_failure(error: BaseException, path: object) -> str | None:
    """What failed around a run ("no space left on device: <path>"), or None when the error is the run's own.

    Causes are searched too: a library's error often wraps the system's. ``path`` is named where the error names no file.
    """
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            return None
        if engine_failed(seen):
            return str(seen)
        number = _errno(seen)
        if number in ENVIRONMENT_ERRNOS or isinstance(seen, RecordUnwritable):
            return f"{os.strerror(number or errno.EIO).lower()}: {getattr(seen, 'filename', None) or path}"
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def engine_failed(error: BaseException) -> bool:
    """Whether it is graft.policies.base.EngineFailure, by name: this module knows the standard library only."""
    return type(error).__name__ == "EngineFailure"


def _errno(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if type(error).__name__ == "SafetensorError" or isinstance(error, RuntimeError | OSError):
        found = ERRNO_IN_TEXT.search(str(error))
        return int(found[1]) if found else None
    return None
