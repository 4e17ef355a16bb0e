// Canceling a job: a button that asks before it acts.

import { ask } from "./api.js";
import { element, setText } from "./elements.js";
import { isOver } from "./jobs.js";

/** Cancels a job after a second click: the first one only asks. */
export class CancelControl {
  /** Opens the question in `root`, which is below it. */
  button = element("button", { type: "button", class: "danger" });
  root = element("div", { class: "cancel" });
  #question = element("p");
  #yes = element("button", { type: "button", class: "danger strong" });
  #no = element("button", { type: "button", class: "quiet" }, "Keep job");
  #confirm = element("div", { class: "confirm", role: "group" }, this.#question, this.#yes, this.#no);
  #said = element("p", { class: "said", role: "status" });
  #wasAsked = false;

  constructor(id) {
    this.#confirm.hidden = true;
    this.button.addEventListener("click", () => this.#open(true));
    this.#no.addEventListener("click", () => this.#open(false));
    this.#yes.addEventListener("click", () => void this.#send(id));
    this.root.append(this.#confirm, this.#said);
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.#confirm.hidden) return;
      event.stopPropagation();
      this.#open(false);
    });
  }

  show(job) {
    if (isOver(job)) {
      // Keep the keyboard focus near the button that was pressed instead of at the top of the page.
      if ([this.root, this.button].some((one) => one.contains(document.activeElement))) {
        document.getElementById("detail-title").focus();
      }
      this.root.hidden = this.button.hidden = true;
      return;
    }
    // A job may be stopping for another reason, such as a resize; then this is still the first cancel request.
    const kills = job.state === "STOPPING" && (this.#wasAsked || job.reason_code === "Cancelled");
    this.button.hidden = !this.#confirm.hidden;
    setText(this.button, kills ? "Kill workers" : "Cancel job");
    setText(this.#yes, kills ? "Kill workers" : "Cancel job");
    setText(
      this.#question,
      kills
        ? "Kill the workers now? Unsaved progress will be lost."
        : job.workers
          ? "Cancel this job? Its workers are asked to save a checkpoint and exit."
          : "Remove this job from the queue?",
    );
  }

  #open(isOpen) {
    this.#confirm.hidden = !isOpen;
    this.button.hidden = isOpen;
    (isOpen ? this.#no : this.button).focus();
  }

  async #send(id) {
    this.#yes.disabled = true;
    try {
      await ask(`/v1/jobs/${id}/cancel`, "POST");
      this.#wasAsked = true;
      setText(this.#said, "Stop requested.");
    } catch (error) {
      setText(this.#said, `Not canceled: ${error.message || "the controller is not responding"}`);
    }
    this.#yes.disabled = false;
    this.#open(false);
  }
}
