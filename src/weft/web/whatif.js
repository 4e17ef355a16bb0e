// What if: the simulator's forecast for the current queue, without and with changes.

import { ask } from "./api.js";
import { element, setItems, setText } from "./elements.js";
import { chooser, field, jobOptions, numberOf } from "./fields.js";
import { duration } from "./figures.js";
import { Forecast } from "./forecast.js";
import { inOrder, isOver, jobLink, setJobLink } from "./jobs.js";
import { plain } from "./text.js";

const POLICIES = ["balanced", "doubling", "exact", "optimus", "afs", "srtf", "tiresias", "fifo", "equal"];
const MAX_LISTED = 500;
// Longer than the controller lets a simulation run.
const SIMULATION_MS = 90_000;

export class WhatIf {
  #policy = chooser("Policy", [["", "unchanged"], ...POLICIES.map((name) => [name, name])]);
  #devices = field("Devices", { type: "number", min: "1", max: "10000", step: "1", placeholder: "unchanged" });
  #job = chooser("Job to change", [["", "none"]]);
  #weight = field("Its weight", { type: "number", min: "0.01", step: "any", placeholder: "unchanged" });
  #min = field("Its minimum workers", { type: "number", min: "1", step: "1", placeholder: "unchanged" });
  #max = field("Its maximum workers", { type: "number", min: "1", step: "1", placeholder: "unchanged" });
  #ask = element("button", { class: "strong" }, "Simulate");
  #said = element("p", { class: "said", role: "status" });
  #plan = new Forecast("Current");
  #whatif = new Forecast("What if");
  #compared = element("table", { class: "versus" });
  #assumptions = element("ul", { class: "assumptions" });
  #results = element("div", { class: "results", hidden: true });
  #jobs = null;

  constructor() {
    const fields = [this.#policy, this.#devices, this.#job, this.#weight, this.#min, this.#max].map(({ root }) => root);
    const form = element("form", {}, element("div", { class: "fields" }, ...fields), this.#ask, this.#said);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#send();
    });
    this.#job.input.addEventListener("change", () => this.#allow());
    const why = element("section", {}, element("h3", {}, "Assumptions"), this.#assumptions);
    const both = element("div", { class: "forecasts" }, this.#plan.root, this.#whatif.root);
    const table = element("section", {}, element("h3", {}, "Jobs"), this.#compared);
    this.#results.append(both, table, why);
    document.getElementById("whatif").append(form, this.#results);
    this.#allow();
  }

  #allow() {
    const isOn = this.#job.input.value !== "";
    for (const { input } of [this.#weight, this.#min, this.#max]) input.disabled = !isOn;
  }

  show(jobs) {
    this.#jobs = jobs;
    const active = inOrder(jobs.all.filter((job) => !isOver(job))).slice(0, MAX_LISTED);
    const options = [["", "none"], ...jobOptions(active)];
    const { input } = this.#job;
    setItems(input, options, ([id]) => id, ([id]) => element("option", { value: id }), (child, [, text]) => setText(child, text));
    this.#allow();
    if (!active.length && !this.#ask.disabled) setText(this.#said, "No job is running or waiting: there is nothing to simulate.");
  }

  #question() {
    const question = {};
    if (this.#policy.input.value) question.policy = this.#policy.input.value;
    const devices = numberOf(this.#devices.input);
    if (devices !== null) question.devices = devices;
    const changes = {
      weight: numberOf(this.#weight.input),
      min_workers: numberOf(this.#min.input),
      max_workers: numberOf(this.#max.input),
    };
    const given = Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== null));
    const id = this.#job.input.value;
    if (id && Object.keys(given).length) question.jobs = { [id]: given };
    return question;
  }

  async #send() {
    this.#ask.disabled = true;
    setText(this.#said, "Simulating…");
    try {
      const answer = await ask("/v1/whatif", "POST", this.#question(), SIMULATION_MS);
      setText(this.#said, "");
      this.#showAnswer(answer);
    } catch (error) {
      setText(this.#said, `No answer: ${error.message || "the controller is not responding"}`);
    }
    this.#ask.disabled = false;
  }

  #showAnswer(answer) {
    const { plan, whatif } = answer;
    this.#results.hidden = false;
    const until_s = Math.max(plan.makespan_s ?? 0, whatif.makespan_s ?? 0, 1);
    this.#plan.show(plan, null, this.#jobs, until_s);
    this.#whatif.show(whatif, plan, this.#jobs, until_s);
    this.#showJobs(plan, whatif);
    setItems(this.#assumptions, answer.assumptions, (text) => text, (text) => element("li", {}, plain(text)), () => {});
  }

  /** When each job ends, and how much earlier or later that is. */
  #showJobs(plan, whatif) {
    const after = new Map(whatif.jobs.map((job) => [job.id, job]));
    if (!this.#compared.firstChild) {
      const headings = ["Job", "Ends in (current)", "Ends in (what if)", "Difference"];
      const cells = headings.map((text) => element("th", { scope: "col" }, text));
      this.#compared.append(element("thead", {}, element("tr", {}, ...cells)), element("tbody"));
    }
    const row = () => element("tr", {}, element("td", {}, jobLink()), element("td"), element("td"), element("td"));
    setItems(this.#compared.lastChild, plan.jobs, (job) => job.id, row, (child, job) => {
      const [name, before, then, difference] = child.children;
      setJobLink(name.firstChild, job.id, this.#jobs);
      const end_s = after.get(job.id)?.end_s ?? Infinity;
      setText(before, duration(job.end_s));
      setText(then, end_s === Infinity ? "does not end" : duration(end_s));
      setText(difference, differenceText(job.end_s, end_s));
      difference.className = end_s < job.end_s ? "better" : end_s > job.end_s ? "worse" : "";
    });
  }
}

function differenceText(before_s, after_s) {
  const difference_s = after_s - before_s;
  if (difference_s === Infinity) return "";
  if (Math.abs(difference_s) < 0.5) return "same";
  return `${duration(Math.abs(difference_s))} ${difference_s < 0 ? "earlier" : "later"}`;
}
