"""The one error a user's mistake raises."""


class InputError(ValueError):
    """A mistake in what the user gave: one line that names the place, the value got and what would be right.

    The command line prints it without a traceback and exits with status 2.
    """
