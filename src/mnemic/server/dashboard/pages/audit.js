// Audit: who changed what, newest first, filtered; and what the log can and cannot prove.
import { useState } from "../vendor/preact.js";
import { get } from "../api.js";
import { Badge, Button, Card, Dialog, Empty, Page, PagedTable, Select, Text, Time, html, plural, usePages, useRested } from "../ui.js";

const OPERATIONS = ["put", "delete", "purge", "limit", "expire", "touch", "read", "scan", "recall"];
const KINDS = ["message", "archived", "summary", "title", "memory", "note", "fact", "state", "pruned", "memory-history", "journal", "progress", "lease", "fact-guard", "embedder", "api-key", "hold"];
const SAID = {
  put: ["Written", "good"], delete: ["Deleted", "danger"], purge: ["Cleared", "danger"],
  limit: ["Evicted", "warn"], expire: ["Expired", "warn"], touch: ["Settings", ""],
  read: ["Read", ""], scan: ["Listed", ""], recall: ["Recalled", ""],
};
const FILTERS = ["since", "until", "actor", "operation", "kind", "key"];

/** The first and the last moment of a day, such as 2026-03-09, where the user is. */
const first = (day) => (day ? new Date(`${day}T00:00`).toISOString() : null);
const last = (day) => (day ? new Date(`${day}T23:59:59.999`).toISOString() : null);

export default function Audit({ scope, params, go }) {
  const [entry, setEntry] = useState(null);
  const given = Object.fromEntries(FILTERS.map((name) => [name, params[name] ?? ""]));
  const rested = useRested(JSON.stringify(given), 250);
  const pages = usePages((cursor, signal) => {
    const { since, until, ...rest } = JSON.parse(rested);
    return get("/audit", { scope, ...rest, since: first(since), until: last(until), limit: 50, cursor }, { signal });
  }, [scope, rested]);
  const set = (name) => (value) => go(null, { ...params, [name]: value || null }, { replace: true });
  const filtered = FILTERS.some((name) => given[name]);
  const about = "Every change of what is stored: who made it, when, and to which record.";
  if (pages.error?.status === 404 || pages.error?.title === "No audit log") return html`<${Page} title="Audit" about=${about}><${Off} /><//>`;
  return html`<${Page} title="Audit" about=${about} actions=${html`<${Button} onClick=${pages.reload}>Refresh<//>`}>
    <div class="stack">
      <${Card}><div class="audit-filters">
        <${Text} label="From" type="date" value=${given.since} onValue=${set("since")} />
        <${Text} label="Until" type="date" value=${given.until} onValue=${set("until")} />
        <${Text} label="Actor" placeholder="Anyone" value=${given.actor} onValue=${set("actor")} />
        <${Select} label="Operation" value=${given.operation} onValue=${set("operation")} options=${[["", "Any"], ...OPERATIONS.map((name) => [name, SAID[name][0]])]} />
        <${Select} label="Kind" value=${given.kind} onValue=${set("kind")} options=${[["", "Any"], ...KINDS]} />
        <${Text} label="Key" placeholder="Any" value=${given.key} onValue=${set("key")} />
        ${filtered && html`<${Button} onClick=${() => go(null, {}, { replace: true })}>Clear filters<//>`}
      </div><//>
      <${Card} flush class="card flush stacked audit">
        <${PagedTable} label="Audit log" pages=${pages} columns=${COLUMNS} onRow=${setEntry}
          empty=${filtered ? html`<${Empty} title="No change matches" icon="audit">Actors and keys match as a whole. Change or clear the filters.<//>` : html`<${Empty} title="Nothing has changed in this scope yet" icon="audit">The log begins with the first change that is made while it is on.<//>`} />
      <//>
      <${Proof} />
    </div>
    ${entry && html`<${Entry} entry=${entry} onClose=${() => setEntry(null)} go=${go} />`}
  <//>`;
}

const Operation = ({ name, unsure }) => html`<${Badge} tone=${SAID[name]?.[1]}>${SAID[name]?.[0] ?? name}<//>${unsure && html` <${Badge} tone="warn">unsure<//>`}`;

const COLUMNS = [
  { name: "time", title: "Time", value: (entry) => html`<${Time} at=${entry.time} exact="second" />` },
  { name: "actor", title: "Actor", value: (entry) => entry.actor ?? html`<span class="muted">–</span>` },
  { name: "operation", title: "Operation", value: (entry) => html`<${Operation} name=${entry.operation} unsure=${entry.unsure} />` },
  { name: "kind", title: "Kind", value: (entry) => entry.kind },
  { name: "key", title: "Key", value: (entry) => html`<span class="mono">${entry.key ?? (entry.count === null ? "" : plural(entry.count, "record"))}</span>` },
  { name: "scope", title: "Scope", value: (entry) => entry.scope || "/" },
];

function Entry({ entry, onClose, go }) {
  const rows = [
    ["Time", entry.time.replace("T", " ").replace("Z", " UTC")],
    ["Operation", html`<${Operation} name=${entry.operation} unsure=${entry.unsure} />`],
    ["Entry", entry.number],
    ["Scope", entry.scope || "/"],
    ["Kind", entry.kind],
    ["Key", entry.key],
    ["Actor", entry.actor],
    ["Address", entry.address],
    ["Session", entry.session],
    ["Version before", entry.before === 0 ? "none: it was new" : entry.before],
    ["Version after", entry.after],
    ["Records", entry.count],
    ["Evicted", entry.removed?.length ? entry.removed.join(", ") : null],
    ["Keys", entry.keys?.length ? entry.keys.join(", ") : null],
    ["Content", entry.content],
    ["Flags", entry.flags?.length ? entry.flags.map((flag) => html`<${Badge} tone="warn">${flag}<//> `) : null],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const where = { note: ["notes", { key: entry.key }], message: ["sessions", { session: entry.scope, at: entry.key }], archived: ["sessions", { session: entry.scope, at: entry.key }], fact: ["facts", {}] }[entry.kind];
  return html`<${Dialog} side title="Change" onClose=${onClose} actions=${html`
      <${Button} onClick=${() => (onClose(), go(null, { key: entry.key, kind: entry.kind, scope: entry.scope || null }))} disabled=${!entry.key}>All changes of this record<//>
      ${where && html`<${Button} onClick=${() => (onClose(), go(where[0], { scope: entry.scope || null, ...where[1] }))}>Open<//>`}`}>
    <dl class="properties">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${entry.unsure && html`<p class="muted">The store's answer was lost, so this change may not have happened.</p>`}
  <//>`;
}

const Proof = () => html`<details class="muted small"><summary>What this log proves</summary>
  <p>Entries are written together with the change, and no call of Mnemic changes or deletes one; erasing a scope keeps them. They are not chained by
  hashes: somebody who can write to the database itself could alter them. A program that opens the store with its own audit log in another store is
  protected against that.</p></details>`;

const Off = () => html`<${Card}><${Empty} title="The audit log is off" icon="audit">
  This server was started without it, so changes are not recorded. Start it without <code>--no-audit</code>, or with <code>MNEMIC_AUDIT=true</code>;
  the log begins then.<//><//>`;
