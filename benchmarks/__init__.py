"""The shaped-network testbed and the measured tables; run by ``weft bench``, not part of the wheel."""
