"""Layer 2: two jobs on one device, one computing while the other waits for the network.

Read in this order: ``phases`` (what a turn and a gap are), ``arbiter`` (who is next; pure), ``order`` (the same order
on all hosts; pure), ``page`` and ``messages`` (what client and server share), ``server``, ``client``, ``launch``,
``pairing`` (who should share at all; pure).
"""
