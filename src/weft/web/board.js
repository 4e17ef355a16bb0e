// The controller's data, kept up to date by the changes that it streams.

import { listen } from "./api.js";

const KEPT_DECISIONS = 1000;

export class Board {
  health = null;
  nodes = [];
  decisions = [];
  jobs = [];
  /** Whether the last answer contains everything, as from a controller that we have not followed before. */
  isNew = false;
  /** Whether a job gained or lost devices in the last answer. */
  movedJobs = false;
  #byId = new Map();
  #version = "";

  /** Calls `onOpen` once the controller responds, and `onChange` after each change.  See `listen` for when it ends. */
  async follow(signal, onOpen, onChange) {
    // After an interruption, only what was missed.
    for await (const answer of listen(`/v1/stream?since=${this.#version}`, signal, onOpen)) {
      this.#take(answer);
      await onChange();
    }
  }

  #take(answer) {
    if (answer.whole) {
      this.#byId.clear();
      this.decisions = [];
    }
    this.isNew = answer.whole;
    this.movedJobs = answer.whole || answer.jobs.some((job) => this.#hasMoved(job));
    for (const job of answer.jobs) this.#byId.set(job.id, job);
    if (answer.whole || answer.jobs.length) {
      this.jobs = [...this.#byId.values()].sort((a, b) => a.number - b.number);
    }
    this.health = answer.health ?? this.health;
    this.nodes = answer.nodes ?? this.nodes;
    if (answer.decisions.length) this.decisions = [...this.decisions, ...answer.decisions].slice(-KEPT_DECISIONS);
    this.#version = answer.version;
  }

  #hasMoved(job) {
    const before = this.#byId.get(job.id);
    if (!before) return job.attempt > 0;
    return before.attempt !== job.attempt || before.state !== job.state || before.devices.join() !== job.devices.join();
  }
}
