// The controller's REST API.  The session key is kept in this origin's storage and sent in a header, never in a URL and
// never in a cookie.

import { noteServerTime } from "./clock.js";

const KEY = "weft-key";
const TIMEOUT_MS = 15_000;
// In a quiet stream the controller sends a comment every 15 s.
const SILENCE_MS = 60_000;

/** The controller is not responding; the dashboard keeps asking. */
export class AwayError extends Error {}

/** The controller responded with an error message. */
export class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The response as JSON.  `body`: what to send, as JSON. */
export async function ask(path, method = "GET", body = null, timeout_ms = TIMEOUT_MS) {
  const answer = await send(path, method, body, AbortSignal.timeout(timeout_ms));
  return answer.status === 204 ? null : answer.json().catch(away);
}

/** The response as text, with its headers. */
export async function askText(path) {
  const answer = await send(path, "GET", null, AbortSignal.timeout(TIMEOUT_MS));
  return { text: await answer.text().catch(away), headers: answer.headers };
}

/**
 * The events of a stream (server-sent events), as JSON.  It ends only with an error, or when `signal` aborts it.
 * Not an EventSource, which cannot send the session's key in a header.
 */
export async function* listen(path, signal, onOpen) {
  const silence = new AbortController();
  const hang_up = () => silence.abort();
  let timer = setTimeout(hang_up, SILENCE_MS);
  try {
    const answer = await send(path, "GET", null, AbortSignal.any([signal, silence.signal]));
    onOpen();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let unread = "";
    for (;;) {
      const { value, done } = await reader.read().catch(away);
      if (done) throw new AwayError("the controller closed the connection");
      clearTimeout(timer);
      timer = setTimeout(hang_up, SILENCE_MS);
      const events = (unread + value).split("\n\n");
      unread = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data: "));
        if (data.length) yield JSON.parse(data.map((line) => line.slice(6)).join("\n"));
      }
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

/** End the session and show the login form. */
export async function logOut() {
  // A controller that has exited has already forgotten the session.
  await ask("/v1/logout", "POST").catch(() => null);
  leave();
}

async function send(path, method, body, signal) {
  const key = localStorage.getItem(KEY);
  if (!key) {
    leave();
    throw new RefusedError(401, "not logged in");
  }
  const headers = { Authorization: `Bearer ${key}` };
  const request = { method, headers, signal };
  if (body !== null) {
    headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const answer = await fetch(path, request).catch(away);
  noteServerTime(answer.headers.get("date"));
  if (answer.ok) return answer;
  if (answer.status === 401) leave();
  const problem = await answer.json().catch(() => ({}));
  const message = problem.error ?? `the controller responded with status ${answer.status}`;
  throw answer.status === 503 ? new AwayError(message) : new RefusedError(answer.status, message);
}

function leave() {
  localStorage.removeItem(KEY);
  // There is no such page: the cookie gives no access there, so the guard shows the login form.
  location.replace(`/login${location.hash}`);
}

function away(error) {
  throw new AwayError(error.message);
}
