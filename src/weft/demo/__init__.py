"""``weft demo``: a queue of small real jobs on a temporary controller, run twice to show what moving workers gains."""
