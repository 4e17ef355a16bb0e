// The latest decisions, newest first: one line each; expanded, what changed for which job and why.

import { element, setItems, setText } from "./elements.js";
import { moment } from "./figures.js";
import { jobLink, setJobLink } from "./jobs.js";
import { plain } from "./text.js";

const SHOWN = 40;
const MAX_NAMES = 3;

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
    setItems(this.#list, shown, nameOf, item, (child, one) => {
      const [summary, lines] = child.firstChild.children;
      setText(summary.firstChild, moment(one.time_s, now_s));
      setText(summary.lastChild, summaryOf(one, jobs));
      for (const line of lines.children) setJobLink(line.firstChild, line.dataset.job, jobs);
    });
  }
}

function nameOf(decision) {
  return `${decision.time_s} ${Object.keys(decision.reasons).join()}`;
}

/** "resnet: 2 workers, lm: waits" */
function summaryOf(decision, jobs) {
  const ids = Object.keys(decision.reasons);
  const parts = ids.slice(0, MAX_NAMES).map((id) => `${isolated(short(jobs.name(id)))}: ${whatOf(decision, id)}`);
  return parts.join(", ") + (ids.length > MAX_NAMES ? `, and ${ids.length - MAX_NAMES} more` : "");
}

function whatOf(decision, id) {
  const num = decision.devices[id]?.length ?? 0;
  return num ? `${num} worker${num > 1 ? "s" : ""}` : "waits";
}

function short(name) {
  return name.length > 24 ? `${name.slice(0, 23)}…` : name;
}

/** Between marks that keep a right-to-left name from reordering the words around it. */
function isolated(name) {
  return `\u2068${name}\u2069`;
}

function item(decision) {
  const lines = Object.entries(decision.reasons).map(([id, reason]) => {
    const what = element("b", {}, whatOf(decision, id));
    return element("li", { "data-job": id }, jobLink(), what, element("span", {}, plain(reason)));
  });
  const summary = element("summary", {}, element("time"), element("bdi", { dir: "ltr" }));
  return element("li", {}, element("details", {}, summary, element("ul", {}, ...lines)));
}
