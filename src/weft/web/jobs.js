// What every part of the dashboard shares about jobs: states, colors, names, links.

import { element, setAttribute, setText } from "./elements.js";
import { plain } from "./text.js";

const NUM_COLORS = 12;
const ORDER = { RUNNING: 0, STOPPING: 1, PENDING: 2, COMPLETED: 3, FAILED: 3, CANCELLED: 3 };

export function isOver(job) {
  return ORDER[job.state] === 3;
}

/** Running jobs first, then waiting ones, in order of submission; then finished ones, latest first. */
export function inOrder(jobs) {
  return [...jobs].sort(
    (a, b) => ORDER[a.state] - ORDER[b.state] || (isOver(a) ? b.finished_s - a.finished_s : a.number - b.number),
  );
}

/** All jobs of one answer, by id.  Colors cycle in order of submission, so neighbors in time differ. */
export class Jobs {
  #byId = new Map();

  constructor(rows) {
    this.all = rows.map((row) => ({ ...row, name: plain(row.name) }));
    for (const job of this.all) this.#byId.set(job.id, job);
  }

  get(id) {
    return this.#byId.get(id);
  }

  name(id) {
    return this.get(id)?.name ?? id;
  }

  /** The number of its color.  Even a purged job has one. */
  hue(id) {
    const job = this.get(id);
    return (job ? job.number : [...id].reduce((sum, letter) => (31 * sum + letter.charCodeAt(0)) % 9973, 0)) % NUM_COLORS;
  }

  color(id) {
    return `color${this.hue(id)}`;
  }
}

/**
 * How long a job has waited and run.  While it has devices, its waiting time does not change, and otherwise its running
 * time does not: so an older row is enough to compute the current times.
 */
export function timesOf(job, now_s) {
  const total_s = Math.max((job.finished_s ?? now_s) - job.submitted_s, 0);
  if (isOver(job)) return { waited_s: job.waited_s, ran_s: job.ran_s };
  return job.devices.length
    ? { waited_s: job.waited_s, ran_s: Math.max(total_s - job.waited_s, 0) }
    : { waited_s: Math.max(total_s - job.ran_s, 0), ran_s: job.ran_s };
}

export function addressOf(id) {
  return `#job/${id}`;
}

/** A colored link to a job, kept up to date by `setJobLink`. */
export function jobLink() {
  const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
  return element("a", { class: "job-link" }, swatch, element("bdi"));
}

export function setJobLink(link, id, jobs) {
  setAttribute(link, "href", addressOf(id));
  setAttribute(link.firstChild, "class", `swatch ${jobs.color(id)}`);
  setText(link.lastChild, jobs.name(id));
  setAttribute(link, "title", `${jobs.name(id)} (${id})`);
}

export function stateBadge() {
  return element("span", { class: "state" });
}

export function setStateBadge(badge, state) {
  setAttribute(badge, "class", `state state-${state.toLowerCase()}`);
  setText(badge, state.charAt(0) + state.slice(1).toLowerCase());
}

/** "2 (1–4)": the current number and the allowed range; "1 of 2" if only one number is allowed. */
export function workersText({ workers, min_workers: low, max_workers: high }) {
  return low === high ? `${workers} of ${low}` : `${workers} (${low}–${high})`;
}
