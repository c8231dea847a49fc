// Forgetting: the curves of the memories that fade first, and when each falls below a threshold.
import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { get, post } from "../api.js";
import { TimeAxis, bars, line, useWidth } from "./timechart.js";
import { Button, Card, Empty, Loaded, Select, Slider, attempt, day, html, number, plural, useLoad, useRested } from "../ui.js";

const AHEAD = [["30", "30 days"], ["90", "90 days"], ["365", "a year"]];
const WHICH = [["next", "next to go"], ["gone", "below now"]];
const MOST_ARCHIVED = 100; // How many can be archived at once, and brought back.
const TOKENS = ["k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8"];
const BELOW = 0.5;
const HALF_LIFE = 30; // In days.
const HEIGHT = 150;
const SCHEDULE = 44;

/** Curves as lines: `curves` are {token, values} at the times of the forecast. */
export function Curves({ forecast, curves, marked }) {
  const [place, width] = useWidth(360);
  const since = Date.parse(forecast.times[0]), until = Date.parse(forecast.until), now = Date.parse(forecast.now);
  const most = Math.max(forecast.below * 1.25, ...curves.flatMap((one) => one.values.filter((value) => value !== null)));
  const x = (time) => ((time - since) / (until - since)) * width;
  const y = (value) => 4 + (1 - value / most) * (HEIGHT - 8);
  const paths = useMemo(() => curves.map((one) => line(one.values.map((value, i) => (value === null ? null : [x(Date.parse(forecast.times[i])), y(value)])))), [forecast, curves, width]);
  return html`<div ref=${place} class="curves"><svg width=${width} height=${HEIGHT + 18} viewBox="0 0 ${width} ${HEIGHT + 18}" role="img"
    aria-label="Importance of ${plural(curves.length, "memory", "memories")} over time, and the threshold ${forecast.below}">
    <${TimeAxis} since=${since} until=${until} width=${width} height=${HEIGHT} />
    <line class="now" x1=${x(now)} x2=${x(now)} y1="0" y2=${HEIGHT} /><text class="mark" x=${x(now) + 4} y="12">now</text>
    <line class="threshold" x1="0" x2=${width} y1=${y(forecast.below)} y2=${y(forecast.below)} />
    <text class="mark" x=${width - 2} y=${y(forecast.below) - 4} text-anchor="end">forgotten below ${Number(forecast.below.toPrecision(3))}</text>
    ${curves.map((one, i) => html`<path key=${i} class="curve ${one.token} ${marked === i ? "marked" : ""}" d=${paths[i]} />`)}
  </svg></div>`;
}

const given = (text, least, most, otherwise) => (Number(text) >= least && Number(text) <= most ? Number(text) : otherwise);
const unless = (value, usual) => (value === usual ? null : value);

/** `change` writes what is chosen here into the address; the forecast is read again after each of `changes`. */
export function Forgetting({ scope, params, change, changes, onOpen, onChanged, who }) {
  const [below, setBelow] = useState(given(params.below, 0.05, 5, BELOW));
  const [halfLife, setHalfLife] = useState(given(params.half_life, 1, 180, HALF_LIFE));
  const inAddress = `${params.below ?? ""} ${params.half_life ?? ""}`;
  const written = useRef(inAddress);
  const days = AHEAD.some(([name]) => name === params.ahead) ? params.ahead : "90";
  const which = params.fading === "gone" ? "gone" : "next";
  const setDays = (name) => change({ ahead: unless(name, "90") });
  const setWhich = (name) => change({ fading: unless(name, "next") });
  const [marked, setMarked] = useState(null);
  const rested = useRested(JSON.stringify({ below, half_life_days: halfLife, days }), 120);
  const forecast = useLoad((signal) => get("/forecast", { scope, which, parts: 15, limit: TOKENS.length, ...JSON.parse(rested) }, { signal }), [scope, rested, which]);
  useEffect(() => {
    const now = JSON.parse(rested);
    const values = { below: unless(now.below, BELOW), half_life: unless(now.half_life_days, HALF_LIFE) };
    const next = `${values.below ?? ""} ${values.half_life ?? ""}`;
    if (next === written.current) return;
    written.current = next;
    change(values);
  }, [rested]);
  useEffect(() => {
    if (inAddress === written.current) return;
    written.current = inAddress;
    setBelow(given(params.below, 0.05, 5, BELOW));
    setHalfLife(given(params.half_life, 1, 180, HALF_LIFE));
  }, [inAddress]);
  useEffect(() => void (changes && forecast.reload()), [changes]);
  return html`<${Card} title="Forgetting">
    <${Loaded} of=${forecast} lines=${6}>${(found) =>
      found.memories + found.pinned === 0
        ? html`<${Empty} title="No memories here">What is remembered fades unless it is used or pinned. The curves are drawn here.<//>`
        : html`<div class="stack">
            <div class="forgetting-controls">
              <${Slider} label="Forget below importance" value=${below} onValue=${setBelow} min=${0.05} max=${5} step=${0.05} shown=${(value) => value.toFixed(2)} />
              <${Slider} label="Half-life without use" value=${halfLife} onValue=${setHalfLife} min=${1} max=${180} step=${1} shown=${(value) => plural(value, "day")} />
              <div class="forgetting-choices"><${Select} label="Ahead" value=${days} onValue=${setDays} options=${AHEAD} />
                <${Select} label="Memories" value=${which} onValue=${setWhich} options=${WHICH} /></div>
            </div>
            ${found.fading.length > 0 && html`<${Curves} forecast=${found} marked=${marked} curves=${found.fading.map((one, i) => ({ token: TOKENS[i], values: one.curve }))} />`}
            ${found.fading.length === 0 && html`<p class="muted">${which === "gone" ? "None is below the threshold now." : "All of them are below the threshold, or pinned."}</p>`}
            <${Schedule} found=${found} />
            ${who?.rights.includes("erase") && found.gone > 0 && html`<${Archive} scope=${scope} found=${found} onDone=${onChanged} />`}
            <ul class="fading">${found.fading.map((one, i) => html`<li key=${`${one.scope}/${one.id}`}>
              <button type="button" class="record" onClick=${() => onOpen({ kind: "memory", id: one.id, scope: one.scope })}
                onMouseEnter=${() => setMarked(i)} onMouseLeave=${() => setMarked(null)} onFocus=${() => setMarked(i)} onBlur=${() => setMarked(null)}>
                <span class="record-text" dir="auto"><span class="kind ${TOKENS[i]}">${one.text || one.id}</span></span>
                <span class="muted small">${number(Number(one.strength.toPrecision(2)))} of ${number(Number(one.importance.toPrecision(3)))} left · ${fate(one, found)}</span>
              </button></li>`)}</ul>
          </div>`}<//>
  <//>`;
}

/** Moves what is below the threshold to the archive of its scope, from which it can be brought back. */
function Archive({ scope, found, onDone }) {
  const limits = { below: found.below, half_life_days: found.half_life_days };
  const run = async () => {
    const listed = await get("/forecast", { scope, which: "gone", limit: MOST_ARCHIVED, parts: 1, points: 2, ...limits });
    const back = async () => {
      for (const one of listed.fading) await post("/memories/restore", { id: one.id, used: false }, { query: { scope: one.scope } });
      onDone();
    };
    const send = () => post("/forget", { faded_below: found.below, half_life: found.half_life_days * 86_400, kinds: ["memory"], archive: true }, { query: { scope } });
    if (await attempt(send, { done: `${plural(found.gone, "memory", "memories")} archived`, undo: found.gone <= MOST_ARCHIVED ? back : undefined })) onDone();
  };
  return html`<div class="row"><${Button} icon="empty" onClick=${run}>Archive ${plural(found.gone, "memory", "memories")} below ${Number(found.below.toPrecision(3))}<//></div>`;
}

function fate(one, found) {
  if (one.below_at === null) return "lasts";
  const days = (Date.parse(one.below_at) - Date.parse(found.now)) / 86_400_000;
  if (days <= 0) return `below since ${day(one.below_at)}`;
  return `below on ${day(one.below_at)}, in ${plural(Math.max(1, Math.round(days)), "day")}`;
}

/** How many memories fall below the threshold, and when. */
function Schedule({ found }) {
  const [place, width] = useWidth(360);
  const soon = found.parts.reduce((a, b) => a + b, 0);
  const since = Date.parse(found.now), until = Date.parse(found.until);
  const told = [`${plural(found.gone, "memory is", "memories are")} below now`, `${number(soon)} more by ${day(found.until)}`, `${number(found.later)} later`];
  if (found.pinned) told.push(`${number(found.pinned)} pinned, never`);
  return html`<div ref=${place} class="schedule">
    <p class="small">${told.join(" · ")}.${!found.complete && ` Only the first ${number(found.memories)} were read.`}</p>
    <svg width=${width} height=${SCHEDULE + 16} viewBox="0 0 ${width} ${SCHEDULE + 16}" role="img" aria-label="Memories that fall below the threshold, over time: ${found.parts.join(", ")}">
      <${TimeAxis} since=${since} until=${until} width=${width} height=${SCHEDULE} />
      <path class="bars danger" d=${bars(found.parts, { width, bottom: SCHEDULE, height: SCHEDULE - 6 })} />
    </svg>
    <p class="muted small">Nothing is deleted by itself: <code>forget(faded_below=${found.below})</code> deletes what is below, or archives it.</p>
  </div>`;
}
