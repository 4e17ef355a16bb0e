// The dashboard: follows the controller's changes and passes them to its parts.  Start reading here.

import { AwayError, logOut, RefusedError } from "./api.js";
import { Board } from "./board.js";
import { now_s } from "./clock.js";
import { Compare } from "./compare.js";
import { Decisions } from "./decisions.js";
import { Detail } from "./detail.js";
import { Devices } from "./devices.js";
import { element, setAttribute, setItems, setText } from "./elements.js";
import { count, moment } from "./figures.js";
import { Jobs } from "./jobs.js";
import { Nodes } from "./nodes.js";
import { Queue } from "./queue.js";
import { Submit } from "./submit.js";
import { Timeline } from "./timeline.js";
import { WhatIf } from "./whatif.js";

// Clocks and timelines advance this often, and details of the visible view are requested.
const TICK_MS = 1000;
const RETRY_MS = 1000;
// A slow controller is asked less often: it should not spend more than a fifth of its time on one dashboard.
const REST_PER_WORK = 4;
// With enough room the detail is next to the jobs; otherwise it covers them.
const NARROW = matchMedia("(max-width: 1179px)");

const timeline = new Timeline();
const board = new Board();
const mayChange = () => board.health?.permission === "change";
const parts = {
  devices: new Devices(timeline, mayChange),
  queue: new Queue(),
  detail: new Detail(mayChange),
  decisions: new Decisions(),
  compare: new Compare(),
  whatif: new WhatIf(),
  submit: new Submit(),
};
const layout = document.querySelector(".layout");
const away = document.getElementById("away");
let shown = null;
let lost_s = null;

async function update() {
  const { health, nodes } = board;
  shown = { health, jobs: new Jobs(board.jobs), nodes: new Nodes(nodes) };
  if (board.isNew) timeline.clear();
  if (board.movedJobs) timeline.isStale = true;
  if (timeline.isStale) await timeline.refresh(now_s());
  show();
  showContact(true);
}

/** What only the visible view needs. */
async function refreshView() {
  const { view } = place();
  if (view === "compare") await parts.compare.refresh();
  else await parts.detail.refresh();
}

function show() {
  if (!shown) return;
  const { health, jobs, nodes } = shown;
  const time_s = now_s();
  const { view, ids } = place();
  const id = view === "cluster" ? ids[0] ?? null : null;
  showTotals(health, jobs, nodes);
  setAttribute(layout, "data-view", view);
  for (const link of document.querySelectorAll("#views a")) {
    setAttribute(link, "aria-current", link.dataset.view === view ? "page" : null);
  }
  document.querySelector('#views [data-view="submit"]').hidden = !mayChange();
  if (view === "cluster") {
    parts.devices.show(time_s, nodes, jobs);
    parts.queue.show(time_s, jobs, id);
    parts.decisions.show(time_s, board.decisions, jobs);
  } else if (view === "compare") parts.compare.show(time_s, jobs, ids);
  else if (view === "whatif") parts.whatif.show(jobs);
  parts.detail.show(time_s, jobs, nodes, id);
  document.body.classList.toggle("has-detail", id !== null);
  for (const part of [document.getElementById("main"), document.getElementById("decisions-card")]) {
    part.inert = id !== null && NARROW.matches;
  }
}

function showTotals(health, jobs, nodes) {
  const devices = nodes.all.filter((node) => node.up).flatMap((node) => node.devices);
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
    setText(away, `${since} Jobs keep running, and the dashboard reconnects automatically; a restarted controller asks for the token again. To start it: weft up`);
  }
}

/** The controller responded, but something else went wrong. */
function showProblem(error) {
  console.error(error);
  away.hidden = false;
  setText(away, `Something went wrong: ${error.message}. The dashboard retries automatically.`);
}

/** What the URL names: "#job/ID", "#whatif", "#compare/ID/ID", "#submit"; otherwise the whole cluster. */
function place() {
  const [name, ...ids] = location.hash.slice(1).split("/");
  if (ids.some((id) => !/^[0-9a-z]+$/.test(id))) return { view: "cluster", ids: [] };
  if (name === "job") return { view: "cluster", ids };
  return ["whatif", "compare", "submit"].includes(name) ? { view: name, ids } : { view: "cluster", ids: [] };
}

/** Follows the changes while the tab is visible; a hidden dashboard costs nothing. */
async function keepFollowing() {
  for (;;) {
    await visible();
    const leaving = new AbortController();
    const leave = () => leaving.abort();
    document.addEventListener("visibilitychange", leave, { once: true });
    try {
      await board.follow(leaving.signal, () => shown && showContact(true), update);
    } catch (error) {
      if (isLoggedOut(error)) return;
      if (!leaving.signal.aborted) showFailure(error);
    }
    document.removeEventListener("visibilitychange", leave);
    if (!leaving.signal.aborted) await pause(RETRY_MS);
  }
}

/** Time passes without changes, too, and what only one view needs is not part of the stream. */
async function keepTicking() {
  for (;;) {
    await visible();
    const begin_ms = performance.now();
    try {
      if (shown && lost_s === null) {
        if (timeline.lacks(board.jobs)) await timeline.refresh(now_s());
        show();
        await refreshView();
      }
    } catch (error) {
      if (isLoggedOut(error)) return;
      if (!(error instanceof AwayError)) showFailure(error);
    }
    const took_ms = performance.now() - begin_ms;
    await pause(Math.max(TICK_MS - took_ms, REST_PER_WORK * took_ms));
  }
}

function isLoggedOut(error) {
  return error instanceof RefusedError && error.status === 401;
}

function showFailure(error) {
  if (error instanceof AwayError) showContact(false);
  else showProblem(error);
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
  const { view, ids } = place();
  const isOpen = view === "cluster" && ids.length > 0;
  if (isOpen && !document.getElementById("detail").contains(document.activeElement)) opener = document.activeElement;
  show();
  if (isOpen) parts.detail.focus();
  else if (view !== "cluster") document.getElementById(`${view}-title`).focus();
  else if (opener?.isConnected) opener.focus();
  void refreshView().catch(() => null);
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && place().view === "cluster" && place().ids.length) location.hash = "";
});
NARROW.addEventListener("change", show);
document.getElementById("logout").addEventListener("click", () => void logOut());
void keepFollowing();
void keepTicking();
