"""What can go wrong, and the exit code it ends with.

    WeftError                     exit code 1
    ├── UsageError                2   the command line or an argument cannot be right
    │   └── InputError            2   a file or value given by the user cannot be used
    ├── OverlapError              1   ``weft.overlap`` was used in a way that would give wrong numbers
    ├── SessionError              1   ``weft.session`` cannot start or go on (a worker is missing, ...)
    │   └── CheckpointError       1   a checkpoint cannot be written or read
    ├── StoreError                1   the journal cannot be opened, read or written
    ├── EngineError               1   workers cannot be started or watched on this machine
    ├── ControllerError           1   the controller refused, or gave an answer that makes no sense
    │   └── NoControllerError     4   no controller answers
    ├── LeaseError                1   a device cannot be shared (no server, no MPS, a wrong address, ...)
    └── MissingToolError          3   the machine lacks something (root, iproute2, an optional package)

Every message says what happened, what was expected and what to do next.  This module imports nothing, so
that the command line can name an error without loading what raised it.
"""


class WeftError(Exception):
    """Base of everything weft raises on purpose."""

    exit_code = 1


class UsageError(WeftError):
    """The caller asked for something that cannot be right."""

    exit_code = 2


class InputError(UsageError):
    """A file or a value given by the user cannot be used.

    >>> str(InputError("expected a positive number", file="jobs.csv", line=3))
    'jobs.csv:3: expected a positive number'
    """

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        self.file = file
        self.line = line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(where + message)


class OverlapError(WeftError):
    """``weft.overlap`` refuses: going on would give wrong numbers, or different ones on each worker."""


class SessionError(WeftError):
    """``weft.session`` cannot start or go on."""


class CheckpointError(SessionError):
    """A checkpoint could not be written or read.  The last complete one is as it was."""


class StoreError(WeftError):
    """The journal cannot be opened, read or written.  What was acknowledged before is as it was."""


class EngineError(WeftError):
    """Workers cannot be started or watched on this machine."""


class ControllerError(WeftError):
    """The controller refused, or gave an answer that makes no sense."""


class NoControllerError(ControllerError):
    """No controller answers."""

    exit_code = 4


class LeaseError(WeftError):
    """A device cannot be shared.  Jobs that run already run on, unshared."""


class MissingToolError(WeftError):
    """The machine lacks something this command needs."""

    exit_code = 3
