// One record of any kind in a panel: its text, times and source, a link to its session, its fading, and what can be changed.
import { useState } from "../vendor/preact.js";
import { get, patch } from "../api.js";
import { Curves } from "./forgetting.js";
import { KindName, parentOf } from "./kinds.js";
import { Badge, Button, Dialog, Loaded, Text, Time, attempt, html, number, plural, useLoad } from "../ui.js";

/** `place` is {kind, id, scope}; `onChanged` is called after a change. */
export function RecordDialog({ place, go, who, onClose, onChanged }) {
  const query = { kind: place.kind, id: place.id, scope: place.scope };
  const record = useLoad((signal) => get("/timeline/record", query, { signal }), [JSON.stringify(query)]);
  const change = async (changes, done) => {
    const before = { importance: record.value.importance ?? undefined, pinned: record.value.pinned };
    const back = Object.fromEntries(Object.keys(changes).map((name) => [name, before[name]]).filter(([, value]) => value !== undefined));
    const send = async (body) => (await patch("/timeline/record", body, { query }), record.reload(), onChanged?.());
    await attempt(() => send(changes), { done, undo: Object.keys(back).length ? () => send(back) : undefined });
  };
  return html`<${Dialog} title="Record" side onClose=${onClose}>
    <${Loaded} of=${record} lines=${8}>${(found) => html`<div class="stack record-detail">
      <div class="row"><${KindName} kind=${found.kind} />${found.role && html`<${Badge}>${found.role}<//>`}${found.pinned && html`<${Badge} tone="accent">pinned<//>`}</div>
      <p class="text" dir="auto">${found.text || found.message?.calls.map((call) => `${call.name}(${call.arguments})`).join("\n") || "(no text)"}</p>
      <${Fields} found=${found} go=${go} />
      ${who?.rights.includes("write") && html`<${Changes} found=${found} change=${change} />`}
      ${found.kind === "memory" && !found.pinned && html`<${Fading} place=${place} version=${found.version} />`}
      ${Object.keys(found.metadata).length > 0 && html`<div class="field"><span class="label">Metadata</span><pre>${JSON.stringify(found.metadata, null, 2)}</pre></div>`}
    </div>`}<//>
  <//>`;
}

function Fields({ found, go }) {
  const rows = [
    ["Scope", found.session === null ? found.scope || "/" : parentOf(found.scope) || "/"],
    found.session !== null && ["Session", html`<button type="button" class="link" onClick=${() => go("sessions", { scope: parentOf(found.scope), session: found.scope })}>${found.session}</button>`],
    found.source !== null && ["Source", html`<${Source} found=${found} go=${go} />`],
    ["Id", html`<code>${found.id}</code>`],
    found.tokens > 0 && ["Tokens", number(found.tokens)],
    found.importance !== null && ["Importance", number(found.importance)],
    ["Created", html`<${Time} at=${found.created} exact />`],
    found.updated !== found.created && ["Changed", html`<${Time} at=${found.updated} exact />`],
    found.valid_from && ["Valid from", html`<${Time} at=${found.valid_from} exact />`],
    found.valid_to && ["Valid until", html`<${Time} at=${found.valid_to} exact />`],
    found.expires && ["Expires", html`<${Time} at=${found.expires} exact />`],
    found.message?.images.length > 0 && ["Images", found.message.images.join("; ")],
  ].filter(Boolean);
  return html`<dl class="fields">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** The source of a record: a link if it is a session or a message that is still there. */
const Source = ({ found, go }) =>
  found.source_session === null
    ? html`<span>${found.source}</span>`
    : html`<button type="button" class="link" onClick=${() => go("sessions", { scope: parentOf(found.source_session), session: found.source_session })}>${found.source}</button>`;

function Changes({ found, change }) {
  const [importance, setImportance] = useState(found.importance ?? "");
  const spoken = found.kind === "message" || found.kind === "archived";
  return html`<div class="row changes">
    ${!(spoken && found.role === "system") && html`<${Button} icon="pin" onClick=${() => change({ pinned: !found.pinned }, found.pinned ? "No longer pinned" : "Pinned")}>${found.pinned ? "Unpin" : "Pin"}<//>`}
    <form class="row" onSubmit=${(e) => (e.preventDefault(), change({ importance: Number(importance) }, `Importance is ${Number(importance)} now`))}>
      <${Text} label="Importance" quiet type="number" min="0" max="1e15" step="any" placeholder="Importance" value=${importance} onValue=${setImportance} required />
      <button class="button" disabled=${importance === "" || Number(importance) === found.importance}>Set importance</button>
    </form>
  </div>`;
}

function Fading({ place, version }) {
  const forecast = useLoad((signal) => get("/forecast", { scope: place.scope, id: place.id, days: 365, below: 0.5, points: 100, parts: 1, limit: 1 }, { signal }), [place.id, version]);
  return html`<div class="field"><span class="label">Fading</span><${Loaded} of=${forecast}>${(found) =>
    found.fading.length === 0
      ? html`<p class="muted">It does not fade.</p>`
      : html`<${Curves} forecast=${found} curves=${[{ token: "k1", values: found.fading[0].curve }]} />
          <p class="muted small">${number(Number(found.fading[0].strength.toPrecision(3)))} of ${number(found.fading[0].importance)} left after ${plural(Math.round(found.fading[0].uses), "use")}; each use slows it.</p>`}<//></div>`;
}
