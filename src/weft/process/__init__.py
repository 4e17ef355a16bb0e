"""Global state of this process: may it compute (``turns``, ``gate``), and where a test kills it (``failpoints``)."""
