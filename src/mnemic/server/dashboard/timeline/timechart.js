// Charts along time, drawn as SVG in the colours of the theme: ticks, bars in rows, and curves.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const STEPS = [SECOND, 5 * SECOND, 15 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY];
const MONTHS = [1, 2, 3, 6, 12, 24, 60, 120, 240];
const two = (value) => String(value).padStart(2, "0");
const NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** The width of an element, as it changes. Returns [ref, width]. */
export function useWidth(first = 0) {
  const place = useRef(null);
  const [width, setWidth] = useState(first);
  useEffect(() => {
    const sized = new ResizeObserver(([entry]) => setWidth(Math.max(200, Math.round(entry.contentRect.width))));
    sized.observe(place.current);
    return () => sized.disconnect();
  }, []);
  return [place, width];
}

/** Round times between two, in milliseconds, not more than `most`, each with its name: [time, name]. */
export function ticks(since, until, most) {
  const room = (until - since) / Math.max(most, 1);
  const step = STEPS.find((one) => one >= room);
  const found = [];
  if (step) {
    const start = new Date(since);
    start.setHours(0, 0, 0, 0);
    if (step === 7 * DAY) start.setDate(start.getDate() - ((start.getDay() + 6) % 7));
    for (let at = start.getTime(); at <= until; at += step) {
      // A day is not always 24 hours long.
      const time = step >= DAY ? new Date(at + 2 * HOUR).setHours(0, 0, 0, 0) : at;
      if (time >= since && time <= until) found.push([time, named(time, step)]);
    }
    return found;
  }
  const months = MONTHS.find((one) => one * 30 * DAY >= room) ?? MONTHS.at(-1);
  const first = new Date(since);
  let at = new Date(first.getFullYear(), Math.floor(first.getMonth() / Math.min(months, 12)) * Math.min(months, 12), 1);
  while (at <= until) {
    if (at >= since) found.push([at.getTime(), months < 12 && at.getMonth() ? NAMES[at.getMonth()] : String(at.getFullYear())]);
    at = new Date(at.getFullYear(), at.getMonth() + months, 1);
  }
  return found;
}

function named(time, step) {
  const at = new Date(time);
  const midnight = !at.getHours() && !at.getMinutes() && !at.getSeconds();
  if (step >= DAY || midnight) return `${NAMES[at.getMonth()]} ${at.getDate()}`;
  return `${two(at.getHours())}:${two(at.getMinutes())}${step < MINUTE ? `:${two(at.getSeconds())}` : ""}`;
}

/** Lines and names of times, from the top to `height`. */
export const TimeAxis = ({ since, until, left = 0, width, height }) => html`<g class="axis">
  ${ticks(since, until, width / 90).map(([time, name]) => {
    const x = left + ((time - since) / (until - since)) * width;
    return html`<g key=${time}><line x1=${x} x2=${x} y1="0" y2=${height} />${x < left + width - 24 && html`<text x=${x + 3} y=${height + 13}>${name}</text>`}</g>`;
  })}
</g>`;

/** Bars of one row as the path of an SVG: `counts` in equal parts of `width`, the largest as high as `height`. */
export function bars(counts, { left = 0, width, bottom, height, most = Math.max(...counts, 1) }) {
  const step = width / counts.length;
  const thick = Math.max(1, step - (step > 4 ? 1 : 0));
  let path = "";
  counts.forEach((count, i) => {
    if (!count) return;
    const tall = Math.max(2, (count / most) * height);
    path += `M${(left + i * step).toFixed(2)} ${bottom}v${(-tall).toFixed(2)}h${thick.toFixed(2)}v${tall.toFixed(2)}z`;
  });
  return path;
}

/** Points as the path of an SVG; a null interrupts it. */
export function line(points) {
  let path = "", on = false;
  for (const point of points) {
    if (point === null) on = false;
    else {
      path += `${on ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      on = true;
    }
  }
  return path;
}

/** Columns that say what is in them when the pointer rests there. */
export const Hover = ({ count, width, height, text }) =>
  Array.from({ length: count }, (_, i) => html`<rect key=${i} class="hover" x=${(i * width) / count} width=${width / count} y="0" height=${height}><title>${text(i)}</title></rect>`);

/** Bars of several rows on top of one another, one path for each row; `scale` maps shares of the largest to heights. */
export function stacked(rows, { left = 0, width, bottom, height, scale = (share) => share }) {
  const parts = Math.max(...rows.map((row) => row?.length ?? 0), 1);
  const sums = Array.from({ length: parts }, (_, i) => rows.reduce((sum, row) => sum + (row?.[i] ?? 0), 0));
  const most = Math.max(...sums, 1);
  const step = width / parts;
  const thick = Math.max(1, step - (step > 4 ? 1 : 0));
  const below = new Array(parts).fill(0);
  return rows.map((row) => {
    let path = "";
    (row ?? []).forEach((count, i) => {
      if (!count) return;
      const tall = Math.max(1, scale(sums[i] / most) * (count / sums[i]) * height);
      path += `M${(left + i * step).toFixed(2)} ${(bottom - below[i]).toFixed(2)}v${(-tall).toFixed(2)}h${thick.toFixed(2)}v${tall.toFixed(2)}z`;
      below[i] += tall;
    });
    return path;
  });
}
