"""The local engine: runs jobs as processes on this machine.

Read in this order:

    folders.py        which file is where, and the lock: one engine per home
    process.py        identifies processes: a pid alone is not enough
    records.py        the files through which controller and keeper communicate
    command.py        what a job's argument list means
    keeper.py         one attempt: claim, workers, outcome; outlives the controller
    zygote.py         the process that forks keepers, with torch imported
    zygote_client.py  the engine's end of it
    attempt.py        one attempt as the engine sees it
    wakeups.py        what the engine waits for: news from keepers, the end of a process
    local_engine.py   the engine
"""

from weft.engines.local.local_engine import LocalEngine

__all__ = ["LocalEngine"]
