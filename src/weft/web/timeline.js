// Which job ran where and when, as the controller's journal has it.  Pure except for `refresh`.

import { ask } from "./api.js";

// Requested when the dashboard opens; more when someone looks further back.
const FIRST_S = 6 * 3600;
// What happened just before the last answer may have been missing from it.
const AGAIN_S = 5;

export class Timeline {
  #bars = new Map();
  #rows = new Map();
  #known_from_s = null;
  #known_to_s = null;
  #num_changes = 0;

  /** Counts changes, so that callers can tell whether to update. */
  get version() {
    return this.#num_changes;
  }

  /** The time before this has not been loaded. */
  get begins_s() {
    return this.#known_from_s;
  }

  get first_s() {
    let first_s = Infinity;
    for (const bar of this.#bars.values()) first_s = Math.min(first_s, bar.start_s);
    return first_s === Infinity ? null : first_s;
  }

  /** Something happened that `refresh` should ask about. */
  isStale = true;

  /** What happened since the last answer. */
  async refresh(now_s) {
    const open = [...this.#bars.values()].filter((bar) => bar.end_s === null);
    const since_s = (this.#known_to_s ?? now_s - FIRST_S) - AGAIN_S;
    const answer = await ask(`/v1/timeline?since_s=${since_s}`);
    // A bar that was open and is not in the answer is gone, and so is its job.
    for (const bar of open) this.#bars.delete(keyOf(bar));
    this.add(answer.bars);
    this.#known_from_s ??= answer.since_s;
    this.#known_to_s = answer.until_s;
    this.isStale = false;
  }

  /** Whether a job has devices but no bar yet: its workers were still starting at the last request. */
  lacks(jobs) {
    const open = new Set([...this.#bars.values()].filter((bar) => bar.end_s === null).map((bar) => bar.job));
    return jobs.some((job) => job.devices.length > 0 && !open.has(job.id));
  }

  /** What happened from `from_s` on, if it is not known yet. */
  async extend(from_s) {
    if (this.#known_from_s === null || from_s >= this.#known_from_s) return false;
    const until_s = this.#known_from_s;
    this.#known_from_s = from_s;
    const answer = await ask(`/v1/timeline?since_s=${from_s}&until_s=${until_s}`);
    this.#known_from_s = Math.max(answer.since_s, from_s);
    this.add(answer.bars);
    return true;
  }

  /** The past may have changed (a purge), such as after a restart of the controller: everything is loaded again. */
  clear() {
    this.#bars.clear();
    this.#known_from_s = this.#known_to_s = null;
    this.#num_changes++;
  }

  add(bars) {
    for (const bar of bars) this.#bars.set(keyOf(bar), bar);
    this.#num_changes++;
    this.#rows = byDevice([...this.#bars.values()]);
  }

  /** [device, spans] of every device that was ever used. */
  rows() {
    return this.#rows;
  }

  /** What happened on a device, in order: [{ from_s, to_s, bar, lane, num, from }]. */
  spans(device) {
    return this.#rows.get(device) ?? [];
  }
}

function keyOf(bar) {
  return `${bar.job} ${bar.attempt} ${bar.start_s}`;
}

/** Spans of every device.  If two jobs share it, each has its own lane. */
export function byDevice(bars) {
  const changes = changesOf(bars);
  const held = new Map();
  for (const bar of bars) {
    for (const device of bar.devices) {
      if (!held.has(device)) held.set(device, []);
      held.get(device).push(bar);
    }
  }
  const rows = new Map();
  for (const [device, own] of held) {
    own.sort((a, b) => a.start_s - b.start_s);
    rows.set(device, spansOf(own, changes));
  }
  return rows;
}

/** What each bar changed for its job: how many workers the attempt before it had; null for the first. */
function changesOf(bars) {
  const ofJob = new Map();
  for (const bar of bars) {
    if (!ofJob.has(bar.job)) ofJob.set(bar.job, []);
    ofJob.get(bar.job).push(bar);
  }
  const changes = new Map();
  for (const own of ofJob.values()) {
    own.sort((a, b) => a.start_s - b.start_s);
    own.forEach((bar, index) => changes.set(bar, index ? own[index - 1].workers : null));
  }
  return changes;
}

function spansOf(bars, changes) {
  const spans = [];
  const last = new Map();
  let running = [];
  let at_s = null;
  const times = [...new Set(bars.flatMap((bar) => [bar.start_s, endOf(bar)]))].sort((a, b) => a - b);
  let next = 0;
  for (const time_s of times) {
    running.forEach((bar, lane) => {
      const before = last.get(bar);
      if (before && before.lane === lane && before.num === running.length) before.to_s = time_s;
      else {
        // How many workers its job had before, at the start of the bar only.
        const from = before ? null : changes.get(bar);
        const span = { from_s: at_s, to_s: time_s, bar, lane, num: running.length, from };
        last.set(bar, span);
        spans.push(span);
      }
    });
    running = running.filter((bar) => endOf(bar) > time_s);
    for (; next < bars.length && bars[next].start_s <= time_s; next++) running.push(bars[next]);
    at_s = time_s;
  }
  return spans;
}

/** Even an attempt that failed immediately is shown. */
function endOf(bar) {
  return bar.end_s === null ? Infinity : Math.max(bar.end_s, bar.start_s + 0.001);
}
