"""Where workers run: processes of this machine, started, watched, stopped and swept up.

Nothing here imports torch except the pool's own process, which does it so that the workers need not.

Read in this order:

    worker_launch.py      what one worker is: script, environment, cores (plain data)
    pool.py        the process that starts workers: bare, or with torch already imported
    script.py      inside the worker: run the user's script as if it had been started alone
    pool_client.py the supervisor's end of the pool
    rendezvous.py  where workers meet, open before they are started
    ports.py       the same for cold workers: a port that nobody else can take
    output.py      many workers' lines joined into one stream
    first_failure.py    which failure was the cause and which were its consequences
    gang.py        one attempt: all workers of a job, from start to the last exit
    supervisor.py  signals, restarts, exit code: what ``weft run`` does
"""
