// The controller's data, kept up to date: each request asks only for what changed since the last answer.

import { ask } from "./api.js";

const KEPT_DECISIONS = 1000;

export class Board {
  health = null;
  nodes = [];
  decisions = [];
  jobs = [];
  #byId = new Map();
  #version = "";

  async refresh() {
    const answer = await ask(`/v1/changes?since=${this.#version}`);
    if (answer.whole) {
      this.#byId.clear();
      this.decisions = [];
    }
    for (const job of answer.jobs) this.#byId.set(job.id, job);
    if (answer.whole || answer.jobs.length) {
      this.jobs = [...this.#byId.values()].sort((a, b) => a.number - b.number);
    }
    this.health = answer.health ?? this.health;
    this.nodes = answer.nodes ?? this.nodes;
    if (answer.decisions.length) this.decisions = [...this.decisions, ...answer.decisions].slice(-KEPT_DECISIONS);
    this.#version = answer.version;
  }
}
