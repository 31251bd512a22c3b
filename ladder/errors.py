"""The errors a user can meet; each carries the exit code the command line ends with.

Exit codes: 0 done (a forecast that misses is a result); 2 bad usage or input; 3 verification failed;
4 done, but the result may not be used as it stands.
"""


class ForetellError(Exception):
    """Base of all errors shown to a user as one paragraph: what is wrong, where, what to do."""

    exit_code = 2


class InputError(ForetellError):
    """Bad usage or bad input: a file, a value or a combination that cannot be used."""

    exit_code = 2


class VerificationError(ForetellError):
    """A digest, a hash chain or an order in time does not hold."""

    exit_code = 3


class UnusableError(ForetellError):
    """The work ended, but its result may not be used as it stands (not converged, diverged)."""

    exit_code = 4


class StorageError(UnusableError):
    """What was made could not be written (a full disk); what was written before is whole."""


class BusyError(ForetellError):
    """Another process is at work on the same thing."""
