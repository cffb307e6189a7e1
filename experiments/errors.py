"""The one exception that stands for a user's mistake: its message is printed alone and the process exits with code 2."""

from __future__ import annotations

EXIT_USER_ERROR = 2


class UserError(ValueError):
    """A mistake that the user can correct. The message says what is wrong, why, and what to do instead."""
