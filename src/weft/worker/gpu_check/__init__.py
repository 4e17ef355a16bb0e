"""The program behind ``weft doctor --gpu``: does ``weft.overlap`` keep its promises on these GPUs?

    __main__.py     starts the workers of each stage, collects their results, and writes the report
    worker.py       one worker: joins the process group and runs one stage; rank 0 prints a JSON line per result
    exactness.py    stages "exact" and "plans": the same numbers as DDP
    step_speed.py   stage "speed": memory, exposed communication, and step time compared with DDP and FSDP2
    models.py       the models

If a stage hangs or fails, its workers are killed and the next stage starts.
"""
