// The controller's clock.  A browser at the other end of a tunnel may run on a machine whose clock is wrong.

// The Date header has whole seconds, so smaller differences mean nothing.
const NOTICEABLE_S = 3;
let offset_s = 0;

/** Called with the Date header of every answer. */
export function noteServerTime(date) {
  const server_s = Date.parse(date ?? "") / 1000;
  if (Number.isNaN(server_s)) return;
  const difference_s = server_s + 0.5 - Date.now() / 1000;
  if (Math.abs(difference_s) < NOTICEABLE_S) offset_s = 0;
  else if (Math.abs(difference_s - offset_s) > NOTICEABLE_S) offset_s = difference_s;
}

/** Seconds since the epoch, as the controller counts them. */
export function now_s() {
  return Date.now() / 1000 + offset_s;
}
