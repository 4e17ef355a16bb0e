// What every part of the page knows of jobs: their states, their colours, how they are called and linked.

import { element, setAttribute, setText } from "./elements.js";
import { plain } from "./text.js";

const NUM_COLOURS = 12;
const ORDER = { RUNNING: 0, STOPPING: 1, PENDING: 2, COMPLETED: 3, FAILED: 3, CANCELLED: 3 };

export function isOver(job) {
  return ORDER[job.state] === 3;
}

/** Those that run first, then those that wait, in order of submission; then those that are over, the last one first. */
export function inOrder(jobs) {
  return [...jobs].sort(
    (a, b) => ORDER[a.state] - ORDER[b.state] || (isOver(a) ? b.finished_s - a.finished_s : a.number - b.number),
  );
}

/** All jobs of one answer, by id.  Colours go round in order of submission: neighbours in time differ. */
export class Jobs {
  #byId = new Map();

  constructor(rows) {
    this.all = rows.map((row, number) => ({ ...row, number, title: plain(row.name) }));
    for (const job of this.all) this.#byId.set(job.id, job);
  }

  get(id) {
    return this.#byId.get(id);
  }

  title(id) {
    return this.get(id)?.title ?? id;
  }

  colour(id) {
    const job = this.get(id);
    return job ? `colour${job.number % NUM_COLOURS}` : "colour-none";
  }
}

export function addressOf(id) {
  return `#job/${id}`;
}

/** A coloured link to a job, to be kept up to date by `setJobLink`. */
export function jobLink() {
  const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
  return element("a", { class: "job-link" }, swatch, element("bdi"));
}

export function setJobLink(link, id, jobs) {
  setAttribute(link, "href", addressOf(id));
  setAttribute(link.firstChild, "class", `swatch ${jobs.colour(id)}`);
  setText(link.lastChild, jobs.title(id));
  setAttribute(link, "title", `${jobs.title(id)} (${id})`);
}

export function stateBadge() {
  return element("span", { class: "state" });
}

export function setStateBadge(badge, state) {
  setAttribute(badge, "class", `state state-${state.toLowerCase()}`);
  setText(badge, state.charAt(0) + state.slice(1).toLowerCase());
}

/** "2 of 1–4" */
export function workersText({ workers, min_workers: low, max_workers: high }) {
  return `${workers} of ${low === high ? low : `${low}–${high}`}`;
}
