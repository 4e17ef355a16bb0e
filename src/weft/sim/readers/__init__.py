"""Files in, jobs out: one module per format, every complaint with file and line."""
