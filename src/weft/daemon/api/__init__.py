"""The controller over HTTP: ``guard`` lets in, ``schemas`` read, ``routes`` ask, ``rows`` answer, ``page`` shows."""
