"""``weft repair``: rebuild a damaged journal from what is still readable."""

from __future__ import annotations

from weft.cli import render
from weft.cli.verb import Json
from weft.daemon.home import Home, HomeTakenError, default_home
from weft.errors import StoreError


def repair(as_json: Json = False) -> None:
    """Rebuild the journal in WEFT_HOME from its last copy and every event that is still readable.

    Run it while no controller is running. The damaged files are kept; an intact journal is left unchanged.
    """
    home = Home(default_home())
    pid = home.holder()
    if pid is not None:
        raise HomeTakenError(f"a controller (process {pid}) is using {home.root}: run `weft down`, then `weft repair`")
    # Imported here: `--help` needs neither SQLite nor the engine.
    from weft.core.cluster import MAX_DEVICES, Cluster
    from weft.daemon.history import History
    from weft.daemon.recovery import loss_in_words, replayed, unknown_attempts
    from weft.engines.local.folders import Folders
    from weft.store import Journal
    from weft.store.journal_repair import repair as repair_journal

    any_size = Cluster((MAX_DEVICES,))  # for a journal without a snapshot: every device it mentions must exist
    attempts = Folders(home.root).ordered()
    try:
        with Journal(home.journal_file, create=False) as journal:
            damage = loss_in_words(journal, replayed(journal, any_size, History()), attempts)
    except StoreError as error:
        damage = str(error)
    done = repair_journal(home.journal_file) if damage else None
    unknown: list[tuple[str, int]] = []
    if done is not None:
        with Journal(home.journal_file, create=False) as journal:
            unknown = unknown_attempts(replayed(journal, any_size, History()), attempts)
    if as_json:
        render.print_json(
            {
                "repaired": done is not None,
                "damage": damage,
                "kept_as": str(done.kept_as) if done and done.kept_as else None,
                "state_after_event": done.snapshot_seq if done else None,
                "events": done.num_events if done else None,
                "missing_events": list(done.missing) if done else [],
                "unknown_attempts": [{"job": job_id, "attempt": attempt} for job_id, attempt in unknown],
            }
        )
        return
    render.print_text(f"{home.journal_file} is intact: nothing to repair" if done is None else str(done))
    for job_id, attempt in unknown:
        render.note(
            f"attempt {attempt} of job {job_id} may still be running, but no event about it is readable: "
            "`weft up --accept-loss` stops it"
        )
