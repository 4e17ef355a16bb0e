// Which job had which device when.  Pure: takes observations, returns spans.
//
// While the dashboard refreshes once a second, what it sees is the truth.  For the time before it was opened, or when it
// did not refresh (hidden tab, controller down), the controller's own decisions and the ends of jobs fill in.

const KEPT_S = 6 * 3600;
// With observations closer together than this, nothing can have been missed.
const GAP_S = 5;

export class History {
  #spans = new Map(); // device -> [{from_s, to_s, jobs}], the last one open (to_s null)
  #seen_s = -Infinity;
  begins_s = null;

  /** `nodes`, `jobs`, `decisions` as the controller returns them. */
  note(time_s, nodes, jobs, decisions) {
    if (time_s - this.#seen_s > GAP_S) this.#fill(time_s, nodes, jobs, decisions);
    for (const node of nodes) {
      for (const { device, jobs: holders } of node.devices) this.#change(device, time_s, holders);
    }
    this.begins_s ??= time_s;
    this.#seen_s = time_s;
    this.#forget(time_s - KEPT_S);
  }

  spans(device) {
    return this.#spans.get(device) ?? [];
  }

  #fill(time_s, nodes, jobs, decisions) {
    const devices = nodes.flatMap((node) => node.devices.map(({ device }) => device));
    const missed = (at_s) => at_s !== null && at_s > this.#seen_s && at_s < time_s;
    const ends = jobs.filter((job) => missed(job.finished_s)).map((job) => ({ at_s: job.finished_s, ended: job.id }));
    const made = decisions.filter((one) => missed(one.time_s)).map((one) => ({ at_s: one.time_s, decision: one }));
    if (made.length && this.begins_s === null) this.begins_s = made[0].at_s;
    const over = new Set();
    for (const { at_s, ended, decision } of [...ends, ...made].sort((a, b) => a.at_s - b.at_s)) {
      if (ended) over.add(ended);
      const holders = decision ? holdersOf(decision) : null;
      for (const device of devices) {
        const before = holders ? holders.get(device) ?? [] : this.#holders(device);
        this.#change(device, at_s, before.filter((id) => !over.has(id)));
      }
    }
  }

  #holders(device) {
    return this.#spans.get(device)?.at(-1)?.jobs ?? [];
  }

  #change(device, time_s, holders) {
    const jobs = [...holders].sort();
    const spans = this.#spans.get(device) ?? [];
    const last = spans.at(-1);
    if (last && same(last.jobs, jobs)) return;
    if (last) last.to_s = time_s;
    spans.push({ from_s: time_s, to_s: null, jobs });
    this.#spans.set(device, spans);
  }

  #forget(before_s) {
    for (const [device, spans] of this.#spans) {
      if (spans[0].to_s !== null && spans[0].to_s < before_s) {
        this.#spans.set(device, spans.filter((span) => span.to_s === null || span.to_s >= before_s));
      }
    }
  }
}

function holdersOf(decision) {
  const holders = new Map();
  for (const [id, devices] of Object.entries(decision.devices)) {
    for (const device of devices) holders.set(device, [...(holders.get(device) ?? []), id]);
  }
  return holders;
}

function same(a, b) {
  return a.length === b.length && a.every((id, index) => id === b[index]);
}
