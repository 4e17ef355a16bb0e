"""Processes of this machine as an engine.

Read in this order:

    folders.py        which file is where
    process.py        which process is meant, and which are ours
    records.py        the files that controller and keeper tell each other things by
    command.py        what a job's argument list means
    keeper.py         one attempt: claim, workers, outcome; outlives the controller
    zygote.py         the process that forks keepers, with torch imported
    zygote_client.py  the engine's end of it
    devices.py        which devices it gives away
    attempt.py        one attempt as the engine sees it
    nudges.py         how keepers say that there is news
    watches.py        whose end is waited for
    home_lock.py      one engine per home
    local_engine.py         the engine
"""

from weft.engines.local.local_engine import LocalEngine

__all__ = ["LocalEngine"]
