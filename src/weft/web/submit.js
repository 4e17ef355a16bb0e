// Submitting a job from the dashboard, or first asking what it would get.

import { ask } from "./api.js";
import { element, setText } from "./elements.js";
import { field, numberOf } from "./fields.js";
import { addressOf } from "./jobs.js";
import { commandWords } from "./text.js";

export class Submit {
  #command = field("Command", { required: true, placeholder: "python train.py --lr 3e-4" }, "Runs without a shell: quotes work, variables and pipes do not.");
  #cwd = field("Folder", { required: true, placeholder: "/home/ana/project" }, "An absolute path on the controller's machine.");
  #name = field("Name", { placeholder: "train.py" });
  #min = field("Minimum workers", { type: "number", min: "1", step: "1", value: "1", required: true });
  #max = field("Maximum workers", { type: "number", min: "1", step: "1", value: "1", required: true });
  #steps = field("Total steps", { type: "number", min: "1", step: "1", placeholder: "unknown" });
  #weight = field("Weight", { type: "number", min: "0.01", step: "any", value: "1", required: true });
  #priority = field("Priority", { type: "number", step: "1", value: "0", required: true });
  #send = element("button", { class: "strong" }, "Submit job");
  #check = element("button", { type: "button" }, "What would it get?");
  #said = element("p", { class: "said", role: "status" });
  #form;

  constructor() {
    const wide = element("div", { class: "fields wide" }, this.#command.root, this.#cwd.root);
    const others = [this.#name, this.#min, this.#max, this.#steps, this.#weight, this.#priority].map(({ root }) => root);
    const buttons = element("div", { class: "actions" }, this.#send, this.#check);
    this.#form = element("form", {}, wide, element("div", { class: "fields" }, ...others), buttons, this.#said);
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#ask("/v1/jobs", ({ id }) => (location.hash = addressOf(id)));
    });
    this.#check.addEventListener("click", () => {
      if (!this.#form.reportValidity()) return;
      void this.#ask("/v1/outlook", ({ workers, reason }) => {
        setText(this.#said, `${workers ? `${workers} worker${workers === 1 ? "" : "s"} now` : "It would wait"}: ${reason}`);
      });
    });
    document.getElementById("submit").append(this.#form);
  }

  #document() {
    const document = {
      command: commandWords(this.#command.input.value),
      cwd: this.#cwd.input.value.trim(),
      min_workers: numberOf(this.#min.input),
      max_workers: numberOf(this.#max.input),
      weight: numberOf(this.#weight.input),
      priority: numberOf(this.#priority.input),
    };
    if (this.#name.input.value.trim()) document.name = this.#name.input.value.trim();
    if (numberOf(this.#steps.input) !== null) document.total_steps = numberOf(this.#steps.input);
    return document;
  }

  async #ask(path, onAnswer) {
    this.#send.disabled = this.#check.disabled = true;
    setText(this.#said, "");
    try {
      onAnswer(await ask(path, "POST", this.#document()));
    } catch (error) {
      setText(this.#said, error.message || "The controller is not responding.");
    }
    this.#send.disabled = this.#check.disabled = false;
  }
}
