// The controller's REST API.  The session key is kept in this origin's storage and sent in a header, never in a URL and
// never in a cookie.

import { noteServerTime } from "./clock.js";

const KEY = "weft-key";
const TIMEOUT_MS = 15_000;

/** The controller is not responding; the dashboard keeps asking. */
export class AwayError extends Error {}

/** The controller answered with an error, in a sentence. */
export class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The answer as JSON. */
export async function ask(path, method = "GET") {
  const answer = await send(path, method);
  return answer.status === 204 ? null : answer.json().catch(away);
}

/** The answer as text, with its headers. */
export async function askText(path) {
  const answer = await send(path, "GET");
  return { text: await answer.text().catch(away), headers: answer.headers };
}

/** End the session and show the login form. */
export async function logOut() {
  // A controller that has exited has already forgotten the session.
  await ask("/v1/logout", "POST").catch(() => null);
  leave();
}

async function send(path, method) {
  const key = localStorage.getItem(KEY);
  if (!key) {
    leave();
    throw new RefusedError(401, "not logged in");
  }
  const headers = { Authorization: `Bearer ${key}` };
  const answer = await fetch(path, { method, headers, signal: AbortSignal.timeout(TIMEOUT_MS) }).catch(away);
  noteServerTime(answer.headers.get("date"));
  if (answer.ok) return answer;
  if (answer.status === 401) leave();
  const problem = await answer.json().catch(() => ({}));
  const message = problem.error ?? `the controller answered ${answer.status}`;
  throw answer.status === 503 ? new AwayError(message) : new RefusedError(answer.status, message);
}

function leave() {
  localStorage.removeItem(KEY);
  // Not a page of its own: the cookie gives no access there, so the guard shows the login form.
  location.replace(`/login${location.hash}`);
}

function away(error) {
  throw new AwayError(error.message);
}
