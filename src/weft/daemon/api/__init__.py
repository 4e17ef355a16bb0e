"""The REST API: ``guard`` admits, ``schemas`` parse, ``routes`` ask, ``rows`` answer, ``dashboard`` serves."""
