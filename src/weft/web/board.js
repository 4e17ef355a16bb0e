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
    const heard = await ask(`/v1/changes?since=${this.#version}`);
    if (heard.whole) {
      this.#byId.clear();
      this.decisions = [];
    }
    for (const job of heard.jobs) this.#byId.set(job.id, job);
    if (heard.whole || heard.jobs.length) {
      this.jobs = [...this.#byId.values()].sort((a, b) => a.number - b.number);
    }
    this.health = heard.health ?? this.health;
    this.nodes = heard.nodes ?? this.nodes;
    if (heard.decisions.length) this.decisions = [...this.decisions, ...heard.decisions].slice(-KEPT_DECISIONS);
    this.#version = heard.version;
  }
}
