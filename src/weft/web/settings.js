// Changing a job that has not finished: its weight, its priority, and how many workers it may have.

import { ask } from "./api.js";
import { element, setAttribute, setText } from "./elements.js";
import { field, numberOf } from "./fields.js";
import { isOver } from "./jobs.js";

const FIELDS = [
  ["weight", "Weight", { min: "0.01", step: "any" }],
  ["priority", "Priority", { step: "1" }],
  ["min_workers", "Minimum workers", { min: "1", step: "1" }],
  ["max_workers", "Maximum workers", { min: "1", step: "1" }],
];

export class SettingsControl {
  button = element("button", { type: "button", "aria-expanded": "false" }, "Change");
  root = element("form", { class: "settings", hidden: true });
  #inputs = new Map();
  #save = element("button", { class: "strong" }, "Save");
  #said = element("p", { class: "said", role: "status" });
  #job;

  constructor(job, mayChange) {
    this.#job = job;
    this.mayChange = mayChange;
    const fields = FIELDS.map(([key, label, limits]) => {
      const { root, input } = field(label, { type: "number", required: true, ...limits });
      this.#inputs.set(key, input);
      return root;
    });
    const back = element("button", { type: "button", class: "quiet" }, "Close");
    back.addEventListener("click", () => this.#open(false));
    this.root.append(element("div", { class: "fields" }, ...fields), this.#save, back, this.#said);
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#send();
    });
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.#open(false);
    });
    this.button.addEventListener("click", () => this.#open(this.root.hidden));
  }

  show(job) {
    this.#job = job;
    this.button.hidden = isOver(job) || !this.mayChange();
    if (this.button.hidden) this.root.hidden = true;
  }

  #open(isOpen) {
    this.root.hidden = !isOpen;
    setAttribute(this.button, "aria-expanded", String(isOpen));
    setText(this.#said, "");
    if (!isOpen) return this.button.focus();
    for (const [key, input] of this.#inputs) input.value = this.#job[key];
    this.#inputs.get("weight").focus();
  }

  async #send() {
    const changes = {};
    for (const [key, input] of this.#inputs) {
      const value = numberOf(input);
      if (value !== this.#job[key]) changes[key] = value;
    }
    if (!Object.keys(changes).length) return setText(this.#said, "Nothing changed.");
    this.#save.disabled = true;
    try {
      await ask(`/v1/jobs/${this.#job.id}`, "PATCH", changes);
      setText(this.#said, "Saved. The next decision takes it into account.");
    } catch (error) {
      setText(this.#said, `Not saved: ${error.message || "the controller is not responding"}`);
    }
    this.#save.disabled = false;
  }
}
