"""``weft demo``: a queue of small real jobs on a throw-away controller, twice, to see what moving workers gains."""
