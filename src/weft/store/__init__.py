"""What must survive the controller: the journal of events and snapshots of the state, in one SQLite file.

journal.py         append, read, snapshot, load: what the controller uses
database.py        opening the file: settings, locks, integrity, and error messages
schema.py          tables, their version, and migrations
mark.py            the number of the newest event, in a separate file
copy.py            the last good state, in a separate file
salvage.py         rows of a damaged file, read from its bytes
journal_repair.py  a new journal from the copy and whatever can still be read of a damaged one
"""

from weft.store.journal import Journal

__all__ = ["Journal"]
