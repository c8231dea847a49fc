// How numbers and times are written, everywhere the same.

const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const AGO = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const STEPS = [["second", 60], ["minute", 60], ["hour", 24], ["day", 30], ["month", 12], ["year", Infinity]];
const two = (value) => String(value).padStart(2, "0");

export const number = (value) => NUMBER.format(value);
export const compact = (value) => COMPACT.format(value);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
export const percent = (share, digits = 0) => `${(share * 100).toFixed(digits)}%`;

export function bytes(count) {
  const step = count < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(count) / 10));
  return step ? `${(count / 1024 ** step).toFixed(1)} ${["", "kB", "MB", "GB", "TB"][step]}` : `${count} B`;
}

/** Milliseconds, as "0.4 ms", "12 ms" or "1.2 s". */
export const duration = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : `${ms.toFixed(ms < 10 ? 1 : 0)} ms`);

/** A day in the user's time zone: 2026-03-09. */
export function day(time) {
  const at = new Date(time);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** A time in the user's time zone: 2026-03-09 14:05. */
export function minute(time) {
  const at = new Date(time);
  return `${day(at)} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** A time in the user's time zone: 2026-03-09 14:05:09. */
export const second = (time) => `${minute(time)}:${two(new Date(time).getSeconds())}`;

/** One of two times, with seconds or milliseconds if it takes them to tell the times apart. */
export function between(time, [since, until]) {
  const at = new Date(time);
  const near = until - since;
  return minute(at) + (near < 600_000 ? `:${two(at.getSeconds())}` : "") + (near < 10_000 ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "");
}

/** How long ago, or how far ahead: "3 hr. ago". */
export function ago(time, from = Date.now()) {
  let distance = (new Date(time) - from) / 1000;
  for (const [unit, size] of STEPS) {
    if (Math.abs(distance) < size) return AGO.format(Math.round(distance), unit);
    distance /= size;
  }
  return "";
}

/** How long ago it was, of a time that is known to the hour: "this hour", "3 hr. ago". */
export function hoursAgo(time, from = Date.now()) {
  const hour = Math.floor(from / 3_600_000) * 3_600_000;
  return Date.parse(time) >= hour ? "this hour" : ago(time, hour);
}
