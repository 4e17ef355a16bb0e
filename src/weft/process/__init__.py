"""Global state of this process: may it compute (``turns``, ``gate``), and where a test kills it (``failpoints``).

Also ``native_threads``, which outlive the training script, and ``folder_sync``, for all packages that rename files.
"""
