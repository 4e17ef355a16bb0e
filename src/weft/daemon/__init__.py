"""The controller: one loop reduces events, writes them, and acts; everything else sends it requests."""
