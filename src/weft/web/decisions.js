// The latest decisions, newest first: what changed for which job, and why.

import { element, setItems, setText } from "./elements.js";
import { moment } from "./figures.js";
import { jobLink, setJobLink } from "./jobs.js";
import { plain } from "./text.js";

const SHOWN = 40;

function nameOf(decision) {
  return `${decision.time_s} ${Object.keys(decision.reasons).join()}`;
}

export class Decisions {
  #root = document.getElementById("decisions");
  #list = element("ol", { class: "decisions" });
  #empty = element("p", { class: "empty" }, "No decisions yet.");

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
