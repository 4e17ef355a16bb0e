"""Where workers run: starts, watches, stops, and cleans up processes on this machine.

Nothing here imports torch except the pool's own process, so that its forks, the workers, start with torch loaded.

Read in this order:

    worker_launch.py  what one worker is: script, environment, cores (plain data)
    pool.py           the process that starts workers, with torch imported (warm) or not (cold)
    script.py         inside the worker: run the user's script as if it had been started alone
    pool_client.py    the supervisor's end of the pool
    rendezvous.py     where the workers find each other
    output.py         many workers' lines joined into one stream
    first_failure.py  which failure was the cause, and which were its consequences
    gang.py           one attempt: all workers of a job, from start to the last exit
    supervisor.py     signals, restarts, and the exit code of ``weft run``
"""
