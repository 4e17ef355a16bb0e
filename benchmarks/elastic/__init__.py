"""The measurements behind ``weft bench elastic``: each study takes data and returns rows."""
