"""The exception tree, with exit codes.

    WeftError                     exit code 1
    ├── UsageError                2   a command line or an argument is invalid
    │   └── InputError            2   a file or value given by the user is invalid
    ├── OverlapError              1   ``weft.overlap`` was used in a way that would give wrong results
    ├── SessionError              1   ``weft.session`` cannot start or continue (a worker is missing, ...)
    │   └── CheckpointError       1   a checkpoint cannot be written or read
    ├── StoreError                1   the journal cannot be opened, read, or written
    ├── EngineError               1   workers cannot be started or monitored on this machine
    ├── ControllerError           1   the controller refused a request, or its response is invalid
    │   └── NoControllerError     4   no controller is running
    ├── LeaseError                1   a device cannot be shared (no lease server, no MPS, a wrong address, ...)
    └── MissingToolError          3   something is missing on this machine (root, iproute2, an optional package)

Every message says what happened, what was expected, and what to do next.  This module imports nothing, so the command
line can handle an error without importing the module that raises it.
"""


class WeftError(Exception):
    """Base class of all errors that weft raises on purpose."""

    exit_code = 1


class UsageError(WeftError):
    """The request is invalid."""

    exit_code = 2


class InputError(UsageError):
    """A file or a value given by the user is invalid.

    >>> str(InputError("expected a positive number", file="jobs.csv", line=3))
    'jobs.csv:3: expected a positive number'
    """

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        self.file = file
        self.line = line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(where + message)


class OverlapError(WeftError):
    """``weft.overlap`` refuses to continue: results would be wrong, or different on each worker."""


class SessionError(WeftError):
    """``weft.session`` cannot start or continue."""


class CheckpointError(SessionError):
    """A checkpoint could not be written or read.  The last complete one is unchanged."""


class StoreError(WeftError):
    """The journal cannot be opened, read, or written.  What was acknowledged before is unchanged."""


class EngineError(WeftError):
    """Workers cannot be started or monitored on this machine."""


class ControllerError(WeftError):
    """The controller refused a request, or its response is invalid."""


class NoControllerError(ControllerError):
    """No controller is running."""

    exit_code = 4


class LeaseError(WeftError):
    """A device cannot be shared.  Running jobs continue unshared."""


class MissingToolError(WeftError):
    """Something that this command needs is missing on this machine."""

    exit_code = 3
