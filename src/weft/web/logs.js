// The end of a worker's output, refreshed while the job runs.

import { askText, AwayError } from "./api.js";
import { choices, element, setItems, setText } from "./elements.js";
import { isOver } from "./jobs.js";
import { asOnTerminal } from "./text.js";

const TAIL_BYTES = 64 * 1024;
const MAX_RANKS = 64;
// Scrolled this close to the end, the reader wants to follow new output.
const NEAR_END_PX = 40;
const MAX_FOUND = 2000;

export class LogTail {
  #job = null;
  #turn = 0;
  #stream = "out";
  #text = element("pre", { class: "log", role: "region", tabindex: "0", "aria-label": "Output" });
  #which = element("span", { class: "which" });
  #rank = element("select", { "aria-label": "Worker" });
  #search = element("input", { type: "search", placeholder: "Search output", "aria-label": "Search output", autocomplete: "off" });
  #output = "";

  constructor(job) {
    this.#job = job;
    // The cause of a failure is usually in stderr.
    this.#stream = job.state === "FAILED" ? "err" : "out";
    const streams = element("div", { class: "choices", role: "group", "aria-label": "Stream" });
    choices(streams, [["out", "stdout"], ["err", "stderr"]], this.#stream, (stream) => {
      this.#stream = stream;
      void this.refresh();
    });
    this.#rank.addEventListener("change", () => void this.refresh());
    this.#search.addEventListener("input", () => this.#show());
    const head = element("div", { class: "card-head" }, element("h3", {}, "Output"), streams, this.#rank, this.#search);
    this.root = element("section", {}, head, this.#which, this.#text);
    this.show(job);
  }

  show(job) {
    this.#job = job;
    const num = Math.min(Math.max(job.workers, this.#rank.children.length, 1), MAX_RANKS);
    const ranks = Array.from({ length: num }, (_, rank) => rank);
    const option = (rank) => element("option", { value: rank }, `worker ${rank}`);
    setItems(this.#rank, ranks, (rank) => rank, option, () => {});
    this.#rank.hidden = num < 2;
  }

  /** Fetch again.  An error message takes the place of output that could not be fetched. */
  async refresh() {
    const turn = ++this.#turn;
    if (!this.#job.attempt) return this.#fill("(not started yet)");
    const rank = this.#rank.value || "0";
    const address = `/v1/jobs/${this.#job.id}/logs?stream=${this.#stream}&rank=${rank}&tail_bytes=${TAIL_BYTES}`;
    try {
      const { text, headers } = await askText(address);
      if (turn !== this.#turn) return; // another worker or stream was selected meanwhile
      const skipped = Number(headers.get("x-weft-skipped-bytes") ?? 0) > 0;
      this.#output = asOnTerminal(skipped ? text.slice(text.indexOf("\n") + 1) : text);
      this.#show();
      const attempt = `attempt ${headers.get("x-weft-attempt")}`;
      setText(this.#which, skipped ? `the end of ${attempt}; for all output: weft logs ${this.#job.id}` : attempt);
    } catch (error) {
      if (!(error instanceof AwayError)) this.#fill(error.message);
    }
  }

  /** All of it, or the lines with the searched text. */
  #show() {
    const wanted = this.#search.value.toLowerCase();
    if (!wanted) return this.#fill(this.#output || (isOver(this.#job) ? "(no output)" : "(no output yet)"));
    const found = this.#output.split("\n").filter((line) => line.toLowerCase().includes(wanted));
    this.#fill(found.slice(-MAX_FOUND).join("\n") || `(no line contains ${this.#search.value})`);
  }

  #fill(text) {
    const box = this.#text;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX;
    setText(box, text);
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }
}
