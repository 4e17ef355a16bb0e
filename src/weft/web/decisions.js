// The last decisions, the newest first: what changed for whom, and why.

import { ask } from "./api.js";
import { element, setItems, setText } from "./elements.js";
import { moment } from "./figures.js";
import { jobLink, setJobLink } from "./jobs.js";
import { plain } from "./text.js";

const SHOWN = 40;
const KEPT = 1000;
// Made since the last look, if that was not long ago.
const RECENT = 50;
const LONG_S = 20;

/** Those the page has heard of; the controller is asked for the newest only. */
export class DecisionLog {
  all = [];
  #asked_s = -Infinity;

  /** For everything the first time, and after nobody has looked for long; else for what may be new. */
  async refresh(now_s) {
    const num = now_s - this.#asked_s > LONG_S ? KEPT : RECENT;
    const { decisions } = await ask(`/v1/decisions?last=${num}`);
    this.#asked_s = now_s;
    const known = new Set(this.all.map(nameOf));
    const fresh = decisions.filter((one) => !known.has(nameOf(one)));
    if (fresh.length) this.all = [...this.all, ...fresh].slice(-KEPT);
  }
}

function nameOf(decision) {
  return `${decision.time_s} ${Object.keys(decision.reasons).join()}`;
}

export class Decisions {
  #root = document.getElementById("decisions");
  #list = element("ol", { class: "decisions" });
  #empty = element("p", { class: "empty" }, "No decision yet: there was nothing to decide.");

  constructor() {
    this.#root.append(this.#list, this.#empty);
  }

  show(now_s, decisions, jobs) {
    const shown = decisions.filter((one) => Object.keys(one.reasons).length).slice(-SHOWN).reverse();
    this.#empty.hidden = shown.length > 0;
    setItems(this.#list, shown, nameOf, (one) => item(one, now_s), (child, one) => {
      for (const line of child.lastChild.children) setJobLink(line.firstChild, line.dataset.job, jobs);
      setText(child.firstChild, moment(one.time_s, now_s));
    });
  }
}

function item(decision, now_s) {
  const lines = Object.entries(decision.reasons).map(([id, reason]) => {
    const devices = decision.devices[id] ?? [];
    const what = devices.length ? `${devices.length} worker${devices.length > 1 ? "s" : ""}` : "none";
    return element("li", { "data-job": id }, jobLink(), element("b", {}, what), element("span", {}, plain(reason)));
  });
  return element("li", {}, element("time", {}, moment(decision.time_s, now_s)), element("ul", {}, ...lines));
}
