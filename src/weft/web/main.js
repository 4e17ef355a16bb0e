// The dashboard: asks the controller once a second and passes the answer to its parts.  Start reading here.

import { AwayError, logOut, RefusedError } from "./api.js";
import { Board } from "./board.js";
import { now_s } from "./clock.js";
import { Decisions } from "./decisions.js";
import { Detail } from "./detail.js";
import { Devices } from "./devices.js";
import { element, setItems, setText } from "./elements.js";
import { count, moment } from "./figures.js";
import { History } from "./history.js";
import { Jobs } from "./jobs.js";
import { Queue } from "./queue.js";

const EVERY_MS = 1000;
// A slow controller is asked less often: it should not spend more than a fifth of its time on one dashboard.
const REST_PER_WORK = 4;
// With enough room the detail is next to the jobs; otherwise it covers them.
const NARROW = matchMedia("(max-width: 1179px)");

const history = new History();
const board = new Board();
const parts = { devices: new Devices(), queue: new Queue(), detail: new Detail(), decisions: new Decisions() };
const away = document.getElementById("away");
let shown = null;
let lost_s = null;

async function update() {
  await board.refresh();
  const { health, nodes } = board;
  shown = { time_s: now_s(), health, jobs: new Jobs(board.jobs), nodes };
  history.note(shown.time_s, nodes, board.jobs, board.decisions);
  showContact(true);
  show();
  await parts.detail.refresh();
}

function show() {
  if (!shown) return;
  const { time_s, health, jobs, nodes } = shown;
  const id = selectedId();
  showTotals(health, jobs, nodes);
  parts.devices.show(time_s, nodes, jobs, history);
  parts.queue.show(time_s, jobs, id);
  parts.detail.show(time_s, jobs, id);
  parts.decisions.show(time_s, board.decisions, jobs);
  document.body.classList.toggle("has-detail", id !== null);
  for (const part of [document.getElementById("main"), document.getElementById("decisions-card")]) {
    part.inert = id !== null && NARROW.matches;
  }
}

function showTotals(health, jobs, nodes) {
  const devices = nodes.filter((node) => node.up).flatMap((node) => node.devices);
  const num = (...states) => jobs.all.filter((job) => states.includes(job.state)).length;
  const [running, waiting] = [num("RUNNING", "STOPPING"), num("PENDING")];
  const totals = [
    ["devices busy", `${count(devices.filter((device) => device.jobs.length).length)} / ${count(devices.length)}`],
    ["running", count(running)],
    ["waiting", count(waiting)],
    ["completed", count(num("COMPLETED"))],
    ["failed", count(num("FAILED"))],
  ];
  setItems(
    document.getElementById("totals"),
    totals,
    ([name]) => name,
    ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    (child, [, value]) => setText(child.lastChild, value),
  );
  setText(document.getElementById("policy"), `policy ${health.policy}`);
  document.getElementById("policy").title = `weft ${health.version}, process ${health.pid}`;
  document.title = running + waiting ? `${running} running, ${waiting} waiting: weft` : "weft";
}

function showContact(isThere) {
  if (isThere) lost_s = null;
  else lost_s ??= now_s();
  document.body.classList.toggle("away", !isThere);
  setText(document.getElementById("contact-text"), isThere ? "live" : "not responding");
  away.hidden = isThere;
  if (!isThere) {
    const since = `The controller has not responded since ${moment(lost_s, now_s())}.`;
    setText(away, `${since} Jobs keep running, and the dashboard reconnects automatically. To start it: weft up`);
  }
}

/** The controller answered, but something else went wrong. */
function showProblem(error) {
  console.error(error);
  away.hidden = false;
  setText(away, `Something went wrong: ${error.message}. The dashboard retries automatically.`);
}

function selectedId() {
  const found = /^#job\/([0-9a-z]+)$/.exec(location.hash);
  return found ? found[1] : null;
}

async function keepLooking() {
  for (;;) {
    await visible();
    const begin_ms = performance.now();
    try {
      await update();
    } catch (error) {
      if (error instanceof RefusedError && error.status === 401) return;
      if (error instanceof AwayError) showContact(false);
      else showProblem(error);
    }
    const took_ms = performance.now() - begin_ms;
    await pause(Math.max(EVERY_MS - took_ms, REST_PER_WORK * took_ms));
  }
}

/** Resolves immediately if the tab is visible, otherwise when it becomes visible. */
function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", () => resolve(), { once: true }));
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

let opener = null;
addEventListener("hashchange", () => {
  const isOpen = selectedId() !== null;
  if (isOpen) opener = document.activeElement;
  show();
  if (isOpen) {
    parts.detail.focus();
    void parts.detail.refresh().catch(() => null);
  } else if (opener?.isConnected) opener.focus();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && selectedId() !== null) location.hash = "";
});
NARROW.addEventListener("change", show);
document.getElementById("logout").addEventListener("click", () => void logOut());
void keepLooking();
