"""Environment variables of a worker.

``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR``, and ``MASTER_PORT`` are torchrun's and
have the same meaning.  All variables below are optional; a script that you start yourself needs none of them.
"""

from __future__ import annotations

from typing import Final

# The folder that holds one folder per checkpoint; the same for all workers of a job.
CHECKPOINT_DIR: Final = "WEFT_CHECKPOINT_DIR"
# 1: that folder is a different one on every host, and the engine copies checkpoints between hosts.
CHECKPOINT_RELAY: Final = "WEFT_CHECKPOINT_RELAY"
# Seconds between periodic checkpoints; 0 for none.
CHECKPOINT_EVERY_S: Final = "WEFT_CHECKPOINT_EVERY_S"
# Path of the unix datagram socket to which reports are sent, and from which stop requests arrive.
CHANNEL: Final = "WEFT_CHANNEL"
# A file whose existence asks the job to stop after a checkpoint.
STOP_FILE: Final = "WEFT_STOP_FILE"
# The job's id and the number of this attempt; repeated in every report, so that late ones can be recognized.
JOB_ID: Final = "WEFT_JOB_ID"
ATTEMPT: Final = "WEFT_ATTEMPT"
# Seconds a worker waits for the others at start, and in a collective.
START_TIMEOUT_S: Final = "WEFT_START_TIMEOUT_S"
COLLECTIVE_TIMEOUT_S: Final = "WEFT_COLLECTIVE_TIMEOUT_S"
# Seconds without a finished step after which a worker counts as hung; 0 (the default): never.
STALL_S: Final = "WEFT_STALL_S"
# The range of global batch sizes that the job's owner allows (MIN:MAX), and the one chosen for this attempt; without
# the second, the script's own batch size is used, moved into the range.
BATCH_RANGE: Final = "WEFT_BATCH_RANGE"
BATCH_SIZE: Final = "WEFT_BATCH_SIZE"
# Path of the lease server's unix socket on this host, and the device the worker shares there; with commas between
# them, one for each worker of this host.
LEASE: Final = "WEFT_LEASE"
LEASE_DEVICE: Final = "WEFT_LEASE_DEVICE"
# How the job shares there: fair (the default), primary, filler, or lockstep; and its weight relative to other jobs.
LEASE_ROLE: Final = "WEFT_LEASE_ROLE"
LEASE_WEIGHT: Final = "WEFT_LEASE_WEIGHT"
# For jobs on several hosts: host:port where the lease server of rank 0's host publishes the order of turns, and the
# key it requires (needed beyond the loopback address).  The same for all workers of all jobs that share.
LEASE_LEAD: Final = "WEFT_LEASE_LEAD"
LEASE_KEY: Final = "WEFT_LEASE_KEY"

# Stopped on request after a checkpoint: start again to resume.  (EX_TEMPFAIL of sysexits.)
STOPPED_EXIT_CODE: Final = 75
# Stopped on request without a checkpoint (nothing was passed to ``run.resume``): as if killed by SIGTERM.
STOPPED_UNSAVED_EXIT_CODE: Final = 143
# Hung, according to the watchdog or the supervisor: like timeout(1).
HUNG_EXIT_CODE: Final = 124
