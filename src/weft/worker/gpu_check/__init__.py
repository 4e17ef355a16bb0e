"""The program behind ``weft doctor --gpu``: does ``weft.overlap`` keep its promises on these GPUs?

    __main__.py     starts the workers of one stage after the other, collects what they found, writes the report
    worker.py       one worker: joins the process group, runs one stage, rank 0 prints a JSON line per finding
    exactness.py    stages "exact" and "plans": the same numbers as DDP
    step_speed.py        stage "speed": memory, exposed communication, steps a second against DDP and FSDP2
    models.py       the models

A stage that hangs or fails takes nothing with it: its workers are killed and the next stage starts.
"""
