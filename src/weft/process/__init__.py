"""State of this process that any layer may reach: whether it may compute (``turns``, ``gate``), and where a test
kills it (``failpoints``).  The only mutable globals of the code base live here; ``core/`` is values."""
