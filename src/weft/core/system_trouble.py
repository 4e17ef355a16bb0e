"""Messages for operating system errors."""

from __future__ import annotations

import errno
import os

_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some disk space and try again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a location that you have access to"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "close some files or connections, or raise `ulimit -n`"),
}


def in_words(error: OSError) -> str:
    """What happened, and what to do about it.

    >>> in_words(OSError(errno.ENOSPC, "No space left on device", "/home/ana/.weft/token"))
    'No space left on device (/home/ana/.weft/token): free some disk space and try again'
    """
    where = "" if error.filename is None else f" ({os.fsdecode(error.filename)})"
    advice = _ADVICE.get(error.errno or 0, "run `weft doctor` to look for problems on this machine")
    return f"{error.strerror or error}{where}: {advice}"
