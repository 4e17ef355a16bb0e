"""Global state of this process: may it compute (``turns``, ``gate``), and where a test kills it (``failpoints``).

Also ``folder_sync``, for all packages that rename files.
"""
