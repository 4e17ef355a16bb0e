// Numbers in a readable form.

const THIN = "\u2009";
// A number and its unit stay on one line.
const HARD = "\u00a0";

/** 1234567 -> "1 234 567" */
export function count(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** "45 s", "12 min", "3 h 05 min", "2 d 4 h" */
export function duration(seconds) {
  const s = Math.max(Math.round(seconds), 0);
  if (s < 60) return `${s}${HARD}s`;
  const min = Math.floor(s / 60);
  if (min < 10) return `${min}${HARD}min ${pad(s % 60)}${HARD}s`;
  if (min < 60) return `${min}${HARD}min`;
  const h = Math.floor(min / 60);
  if (h < 24) return `${h}${HARD}h ${pad(min % 60)}${HARD}min`;
  return `${Math.floor(h / 24)}${HARD}d ${h % 24}${HARD}h`;
}

/** An estimate, with no more digits than it deserves: "40 s", "8 min", "4.6 h", "3 d" */
export function roughly(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  const h = seconds / 3600;
  return h < 48 ? `${Number(h.toPrecision(2))} h` : `${Math.round(h / 24)} d`;
}

/** Step time: "1.24 s", "83 ms"; empty if unknown. */
export function stepTime(seconds) {
  if (!seconds) return "";
  if (seconds < 0.001) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(3))} ms` : `${seconds.toPrecision(3)} s`;
}

/** Four significant digits: 0.03412, 12.31; small ones shorter, such as 1.23e-7 */
export function loss(value) {
  if (value === null) return "";
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** "42 %", "0.7 %", "0.013 %": small shares are not rounded to nothing. */
export function percent(share) {
  const value = Math.min(Math.max(share, 0), 1) * 100;
  return `${value >= 10 ? Math.round(value) : Number(value.toPrecision(2))} %`;
}

/** Time of day; with the date if it is not today. */
export function moment(time_s, now_s) {
  const then = new Date(time_s * 1000);
  const clock = `${pad(then.getHours())}:${pad(then.getMinutes())}:${pad(then.getSeconds())}`;
  if (then.toDateString() === new Date(now_s * 1000).toDateString()) return clock;
  return `${then.getFullYear()}-${pad(then.getMonth() + 1)}-${pad(then.getDate())} ${clock}`;
}

function pad(number) {
  return String(number).padStart(2, "0");
}

/** Steps per second: "12.3 /s"; slower ones per minute or hour. */
export function rate(per_s) {
  if (per_s === 0) return "0";
  if (per_s >= 0.1) return `${Number(per_s.toPrecision(3))} /s`;
  return per_s * 60 >= 0.1 ? `${Number((per_s * 60).toPrecision(3))} /min` : `${Number((per_s * 3600).toPrecision(3))} /h`;
}

/** "1.2 GiB" */
export function memory(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes < 1 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1);
  return `${Number((bytes / 1024 ** power).toPrecision(3))} ${units[power]}`;
}
