"""What must survive the controller: the journal of events and snapshots of the state, in one SQLite file.

journal.py   append, read, snapshot, load: what the controller uses
database.py  opening the file: settings, who holds it, whether it is whole, how SQLite's errors read
schema.py    tables, their version, and the way from one version to the next
mark.py      the number of the newest event, in a file of its own
copy.py      the last good state in a file of its own, beside the journal
salvage.py   rows of a damaged file, read from its bytes
journal_repair.py    a new journal from the copy and whatever can still be read of a damaged one
"""

from weft.store.journal import Journal

__all__ = ["Journal"]
