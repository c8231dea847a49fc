// Timeline: what a scope holds along time, in rows by kind; zoomed with drag, wheel, buttons and keys; and forgetting.
import { useEffect, useRef, useState } from "../vendor/preact.js";
import { get } from "../api.js";
import { RecordDialog } from "../timeline/record_dialog.js";
import { TimeAxis, bars, useWidth } from "../timeline/timechart.js";
import { Button, Card, Empty, ErrorBox, Loading, Page, Text, Time, between, html, number, plural, useLoad, usePages, useRested } from "../ui.js";
import { Forgetting } from "../timeline/forgetting.js";
import { KINDS, KindName, ROLES, kindOf, parentOf } from "../timeline/kinds.js";
import { useMore } from "../timeline/more.js";

const ROW = 46;
const LEAST = 1000; // The shortest time that can be shown, in milliseconds.
const BURST = 700; // Zooming with keys and the wheel: steps that follow one another so fast, in milliseconds, are one.
const listed = (text) => (text ? text.split(",") : []);

/** The record that the address names: [kind, id, scope]. */
function recordOf(text) {
  try {
    const [kind, id, scope] = JSON.parse(text);
    return { kind: String(kind), id: String(id), scope: String(scope) };
  } catch {
    return null;
  }
}

export default function TimelinePage({ scope, params, go, who }) {
  const kinds = listed(params.kinds);
  const roles = listed(params.roles);
  const min = params.min ?? "";
  const times = [Date.parse(params.since), Date.parse(params.until)];
  const range = times[1] > times[0] ? times : null;
  const open = params.record ? recordOf(params.record) : null;
  const setOpen = (one) => change({ record: one && JSON.stringify([one.kind, one.id, one.scope]) }, { replace: !one });
  const [changes, setChanges] = useState(0); // How often something was changed here.
  const change = (values, { replace = true } = {}) => go(null, { ...params, ...values }, { replace });
  const moved = useRef(-Infinity);
  const setRange = (next, { fast = false } = {}) => {
    const replace = fast && performance.now() - moved.current < BURST;
    moved.current = fast ? performance.now() : -Infinity;
    change({ since: next && new Date(next[0]).toISOString(), until: next && new Date(next[1]).toISOString() }, { replace });
  };
  const [place, width] = useWidth();
  const buckets = Math.max(20, Math.round(width / 6));
  const filters = { kinds, roles, min_importance: useRested(min, 300) };
  const given = JSON.stringify(filters);
  const rested = useRested(JSON.stringify(range), 60);
  const timeline = useLoad(async (signal) => {
    if (!width) return undefined;
    const [since, until] = (JSON.parse(rested) ?? []).map((time) => new Date(time).toISOString());
    return get("/timeline", { scope, since, until, buckets, ...filters }, { signal });
  }, [scope, rested, given, buckets, !width]);
  useMore(timeline);
  const found = timeline.value;
  const busy = timeline.loading || rested !== JSON.stringify(range) || filters.min_importance !== min;
  const shown = range ?? (found ? [Date.parse(found.since), Date.parse(found.until)] : null);
  const all = found?.first ? [Date.parse(found.first), Date.parse(found.last) + 1] : null;
  const beyond = !range && all !== null && (all[0] < Date.parse(found.since) || all[1] > Date.parse(found.until) + 1);
  const zoom = (factor, { around = 0.5, fast } = {}) => shown && setRange(zoomed(shown, factor, around), { fast });
  const move = (share, { fast } = {}) => shown && setRange(shown.map((time) => time + share * (shown[1] - shown[0])), { fast });
  useEffect(() => void (changes && timeline.reload()), [changes]);
  const filtered = kinds.length > 0 || roles.length > 0 || min !== "";
  return html`<${Page} title="Timeline" about="What is stored here, when, and what will be forgotten."
    actions=${html`<div class="row" role="group" aria-label="Time">
      <${Button} icon="back" label="Earlier" disabled=${!shown} onClick=${() => move(-0.5)} />
      <${Button} icon="chevron" label="Later" disabled=${!shown} onClick=${() => move(0.5)} />
      <${Button} icon="minus" label="Zoom out" disabled=${!shown} onClick=${() => zoom(2)} />
      <${Button} icon="plus" label="Zoom in" disabled=${!shown} onClick=${() => zoom(0.5)} />
      <${Button} disabled=${!range && !beyond} onClick=${() => setRange(beyond ? all : null)}>Show all<//>
    </div>`}>
    <div class="stack">
      <${Card} aria-label="Along time">
        <${Filters} ...${{ kinds, roles, min, change }} />
        <div ref=${place} class="timeline" aria-busy=${busy ? "true" : "false"}>
          ${timeline.error
            ? html`<${ErrorBox} error=${timeline.error} onRetry=${timeline.reload} />`
            : !found
              ? html`<${Loading} lines=${6} />`
              : found.read === 0 && !filtered && !range
                ? html`<${Empty} title="Nothing is stored here yet">Messages, memories, summaries, facts and notes of this scope appear here as they are written.<//>`
                : html`<${Rows} ...${{ found, shown, width, setRange, zoom, move }} kinds=${kinds.length ? KINDS.filter((one) => kinds.includes(one.kind)) : KINDS}
                    onOne=${async (since, until) => openOnly(scope, since, until, filters, setOpen)} />
                    <${Status} ...${{ found, shown, beyond }} loading=${timeline.loading} />`}
        </div>
      <//>
      <div class="beside">
        ${found ? html`<${Records} ...${{ scope, filters, since: found.since, until: found.until, changes, onOpen: setOpen }} />` : html`<${Card} title="Records"><${Loading} lines=${8} /><//>`}
        <${Forgetting} ...${{ scope, params, change, changes, who }} onOpen=${setOpen} onChanged=${() => setChanges((n) => n + 1)} />
      </div>
    </div>
    ${open && html`<${RecordDialog} key=${JSON.stringify(open)} place=${open} go=${go} who=${who} onClose=${() => setOpen(null)} onChanged=${() => setChanges((n) => n + 1)} />`}
  <//>`;
}

function zoomed([since, until], factor, around) {
  const span = Math.max(LEAST, (until - since) * factor);
  const at = since + (until - since) * around;
  const start = at - span * around;
  // Years that a date can be written with.
  return [Math.max(start, Date.UTC(1, 0, 1)), Math.min(start + span, Date.UTC(9999, 0, 1))];
}

async function openOnly(scope, since, until, filters, setOpen) {
  const page = await get("/timeline/records", { scope, since, until, limit: 1, ...filters });
  if (page.items.length) setOpen(page.items[0]);
}

function Filters({ kinds, roles, min, change }) {
  const toggled = (list, one) => (list.includes(one) ? list.filter((other) => other !== one) : [...list, one]).join(",");
  const spoken = !kinds.length || kinds.includes("message") || kinds.includes("archived");
  return html`<div class="timeline-filters">
    <div class="field" role="group" aria-label="Kinds"><span class="label">Kinds</span><div class="chips">
      ${KINDS.map((one) => html`<button key=${one.kind} type="button" class="chip" aria-pressed=${kinds.includes(one.kind) ? "true" : "false"}
        onClick=${() => change({ kinds: toggled(kinds, one.kind) })}><span class="kind ${one.token}">${one.name}</span></button>`)}
    </div></div>
    <div class="field" role="group" aria-label="Roles"><span class="label">Roles</span><div class="chips">
      ${ROLES.map((one) => html`<button key=${one} type="button" class="chip" aria-pressed=${roles.includes(one) ? "true" : "false"} disabled=${!spoken}
        onClick=${() => change({ roles: toggled(roles, one) })}>${one}</button>`)}
    </div></div>
    <div class="importance"><${Text} label="Importance from" type="number" min="0" step="0.5" placeholder="any" value=${min} onValue=${(value) => change({ min: value })} /></div>
    ${(kinds.length > 0 || roles.length > 0 || min !== "") &&
    html`<${Button} kind="quiet" onClick=${() => change({ kinds: "", roles: "", min: "" })}>Clear filters<//>`}
  </div>`;
}

const Status = ({ found, shown, beyond, loading }) => {
  const inside = Object.values(found.counts).reduce((sum, counts) => sum + counts.reduce((a, b) => a + b, 0), 0);
  return html`<p class="muted small timeline-status" role="status">
    ${plural(inside, "record")} from ${between(shown[0], shown)} to ${between(shown[1], shown)}. Drag to zoom into a time; click a bar for what is in it; Ctrl and the wheel, or + and −, zoom.
    ${beyond && " Some records are many years before or after that: Show all."}
    ${found.missing === "more" && ` Counting: ${number(found.read)} of ${number(found.total)} records so far …`}
    ${found.missing === "old" && ` Only the ${number(found.read)} records of what changed last are counted, of ${number(found.total)}.`}
    ${loading && found.missing === "nothing" && " Loading …"}
  </p>`;
};

/** Rows of bars, one for each kind, each on its own scale. */
function Rows({ found, shown, width, kinds, setRange, zoom, move, onOne }) {
  const node = useRef(null);
  const [drag, setDrag] = useState(null); // [start, now], as shares of the width
  const [over, setOver] = useState(null); // share of the width
  const [since, until] = shown;
  const held = [Date.parse(found.since), Date.parse(found.until)];
  const x = (time) => ((time - since) / (until - since)) * width;
  const rows = kinds.filter((one) => found.counts[one.kind]);
  const height = rows.length * ROW;
  const buckets = rows.length ? found.counts[rows[0].kind].length : 1;
  const bucket = over === null ? null : Math.floor(((since + over * (until - since) - held[0]) / (held[1] - held[0])) * buckets);
  const inside = bucket !== null && bucket >= 0 && bucket < buckets;
  const edges = (n) => [held[0] + (n * (held[1] - held[0])) / buckets, held[0] + ((n + 1) * (held[1] - held[0])) / buckets];
  const share = (event) => {
    const box = node.current.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  useEffect(() => {
    const wheel = (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && document.activeElement !== node.current) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) move((event.deltaX || event.deltaY) / 1000, { fast: true });
      else zoom(Math.exp(event.deltaY / 400), { around: share(event), fast: true });
    };
    node.current.addEventListener("wheel", wheel, { passive: false });
    return () => node.current?.removeEventListener("wheel", wheel);
  });
  const down = (event) => {
    if (event.button) return;
    node.current.setPointerCapture(event.pointerId);
    setDrag([share(event), share(event)]);
  };
  const up = (event) => {
    if (!drag) return;
    const [from, to] = [Math.min(drag[0], share(event)), Math.max(drag[0], share(event))];
    setDrag(null);
    if ((to - from) * width > 5) return setRange([since + from * (until - since), Math.max(since + to * (until - since), since + from * (until - since) + LEAST)]);
    const at = Math.floor(((since + from * (until - since) - held[0]) / (held[1] - held[0])) * buckets);
    const count = rows.reduce((sum, one) => sum + (found.counts[one.kind][at] ?? 0), 0);
    if (count === 1) onOne(...edges(at).map((time) => new Date(time).toISOString()));
    else if (count > 1) setRange([edges(at)[0] - (held[1] - held[0]) / buckets, edges(at)[1] + (held[1] - held[0]) / buckets]);
  };
  const pressed = (event) => {
    const fast = { fast: true };
    const action = { ArrowLeft: () => move(-0.2, fast), ArrowRight: () => move(0.2, fast), "+": () => zoom(0.5, fast), "=": () => zoom(0.5, fast), ArrowUp: () => zoom(0.5, fast),
      "-": () => zoom(2, fast), ArrowDown: () => zoom(2, fast), Home: () => setRange(null), 0: () => setRange(null), Escape: () => setDrag(null) }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };
  const now = Date.parse(found.now);
  return html`<div class="plot" ref=${node} tabindex="0" role="application" aria-label="Records along time. Arrow keys move, plus and minus zoom, Home shows all."
    onPointerDown=${down} onPointerMove=${(e) => (setOver(share(e)), drag && setDrag([drag[0], share(e)]))} onPointerUp=${up}
    onPointerLeave=${() => setOver(null)} onPointerCancel=${() => setDrag(null)} onDblClick=${() => setRange(null)} onKeyDown=${pressed}>
    <svg width=${width} height=${height + 20} viewBox="0 0 ${width} ${height + 20}" aria-hidden="true">
      <${TimeAxis} since=${since} until=${until} width=${width} height=${height} />
      ${now > since && now < until && html`<line class="now" x1=${x(now)} x2=${x(now)} y1="0" y2=${height} />`}
      ${inside && html`<rect class="column" x=${x(edges(bucket)[0])} width=${Math.max(1, x(edges(bucket)[1]) - x(edges(bucket)[0]))} y="0" height=${height} />`}
      ${rows.map((one, i) => html`<g key=${one.kind} class=${one.token}>
        <line class="base" x1="0" x2=${width} y1=${(i + 1) * ROW - 0.5} y2=${(i + 1) * ROW - 0.5} />
        <path class="bars" d=${bars(found.counts[one.kind], { left: x(held[0]), width: x(held[1]) - x(held[0]), bottom: (i + 1) * ROW - 1, height: ROW - 20 })} />
        <text class="row-name" x="0" y=${i * ROW + 14}>${one.name} ${number(found.counts[one.kind].reduce((a, b) => a + b, 0))}</text>
      </g>`)}
      ${drag && html`<rect class="selection" x=${Math.min(...drag) * width} width=${Math.abs(drag[1] - drag[0]) * width} y="0" height=${height} />`}
    </svg>
    ${inside && !drag && html`<${Tip} at=${over} rows=${rows} counts=${found.counts} bucket=${bucket} times=${edges(bucket)} />`}
  </div>`;
}

function Tip({ at, rows, counts, bucket, times }) {
  const told = rows.filter((one) => counts[one.kind][bucket]);
  return html`<div class="tip" style=${{ left: `${at * 100}%`, transform: `translateX(${at > 0.5 ? "calc(-100% - 12px)" : "12px"})` }}>
    <strong>${between(times[0], times)}</strong>
    ${told.length ? told.map((one) => html`<span key=${one.kind} class="spread"><${KindName} kind=${one.kind} /><span class="num">${number(counts[one.kind][bucket])}</span></span>`) : html`<span class="muted">nothing</span>`}
  </div>`;
}

/** The records of the time that is shown, newest first. */
function Records({ scope, filters, since, until, changes, onOpen }) {
  const pages = usePages(async (cursor, signal) => {
    const page = await get("/timeline/records", { scope, since, until, limit: 15, cursor, ...filters }, { signal });
    return page;
  }, [scope, since, until, JSON.stringify(filters)]);
  useEffect(() => void (changes && pages.reload()), [changes]);
  return html`<${Card} title="Records" flush>
    ${pages.error && !pages.items.length
      ? html`<${ErrorBox} error=${pages.error} onRetry=${pages.reload} />`
      : pages.loading && !pages.items.length
        ? html`<${Loading} lines=${8} />`
        : !pages.items.length
          ? html`<${Empty} title="No records in this time">Zoom out, or clear the filters.<//>`
          : html`<ul class="records">${pages.items.map((one) => html`<${RecordRow} key=${`${one.scope}/${one.kind}/${one.id}`} record=${one} onOpen=${onOpen} />`)}</ul>
              ${(pages.more || pages.loading) && html`<div class="more"><${Button} disabled=${!pages.more} onClick=${pages.more}>${pages.loading ? "Loading …" : "Show more"}<//></div>`}`}
  <//>`;
}

const RecordRow = ({ record, onOpen }) => html`<li><button type="button" class="record" onClick=${() => onOpen(record)}>
  <span class="record-head"><${KindName} kind=${record.kind} />${record.role && html`<span class="muted">${record.role}</span>`}
    ${record.importance !== null && html`<span class="muted">importance ${Number(record.importance.toFixed(2))}</span>`}
    ${record.pinned && record.role !== "system" && html`<span class="badge accent">pinned</span>`}
    <${Time} at=${record.time} exact /></span>
  <span class="record-text" dir="auto">${record.text || `(${kindOf(record.kind).one} without text)`}</span>
  <span class="muted small ellipsis">${record.session ? `${parentOf(record.scope) || "/"} · ${record.session}` : record.scope || "/"}</span>
</button></li>`;
