"""``weft demo``: run a queue of small real jobs with and without moving workers between them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weft.cli.verb import Json
from weft.core.plural import plural

if TYPE_CHECKING:
    from weft.demo.contest import Played

ELASTIC, FIXED = "balanced", "fifo"
MAX_DEVICES = 4


def demo(as_json: Json = False) -> None:
    """Run a queue of seven small training jobs twice on a temporary controller. Takes a minute and needs no GPU.

    First weft moves workers between the running jobs. Then the same queue runs first in, first out, with one worker
    per job.
    """
    from weft.cli import render
    from weft.cli.demo_screen import screen
    from weft.demo.contest import play, temporary_controller
    from weft.demo.queue import QUEUE

    num_devices = min(len(os.sched_getaffinity(0)), MAX_DEVICES)
    played: dict[str, Played] = {}
    for policy, words in ((ELASTIC, "workers move between jobs"), (FIXED, "first in, first out, one worker per job")):
        most = num_devices if policy == ELASTIC else 1
        render.note(f"{words}: {len(QUEUE)} jobs on {plural(num_devices, 'device')}")
        with temporary_controller(policy, num_devices=num_devices) as client, screen(words, num_devices) as look:
            played[policy] = play(client, QUEUE, min_workers=1, max_workers=most, on_look=look)
    _print(played[ELASTIC], played[FIXED], as_json=as_json)


def _print(elastic: Played, fixed: Played, *, as_json: bool) -> None:
    from weft.cli import render

    rows = [
        {
            "job": mine.name,
            "arrived_s": mine.arrived_s,
            "elastic_s": mine.took_s,
            "fixed_s": theirs.took_s,
            "restarts": mine.restarts,
        }
        for mine, theirs in zip(elastic.completions, fixed.completions, strict=True)
    ]
    ratio = elastic.mean_s / fixed.mean_s
    if as_json:
        means = {"elastic_mean_s": elastic.mean_s, "fixed_mean_s": fixed.mean_s, "ratio": ratio}
        render.print_json({"rows": rows, **means})
        return
    columns = (
        render.Column("job", "job"),
        render.Column("arrived_s", "arrived s", render.number(1)),
        render.Column("elastic_s", "weft s", render.number(1)),
        render.Column("fixed_s", "fixed, fifo s", render.number(1)),
        render.Column("restarts", "moves", render.number(0)),
    )
    render.print_table(rows, columns, title="completion time")
    render.print_text(
        f"mean completion time: {elastic.mean_s:.1f} s with weft, {fixed.mean_s:.1f} s first in, first out with one "
        f"worker per job ({fixed.mean_s / elastic.mean_s:.2f}x)"
    )
    print("next: `weft up`, then `weft submit --workers 1:2 -- python train.py`")
