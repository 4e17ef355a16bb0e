"""How long a test waits before it calls something a hang.

What tests wait for takes milliseconds on an idle machine and many seconds on a busy one.  The limit only ends a test
that would never end, so one generous number serves all of them; pytest's own ``timeout`` is longer and comes last.
"""

HANG_S = 400.0
