// Notes: a tree of keys, and one note to read or edit; saving never overwrites what somebody else wrote meanwhile.
import { useMemo, useState } from "../vendor/preact.js";
import { get, inPath, patch, put, remove } from "../api.js";
import { Elsewhere } from "../elsewhere.js";
import { parseExact } from "../exact.js";
import { Area, Badge, Button, Card, Dialog, Loaded, Page, Table, Tabs, Text, Time, attempt, bytes, html, number, plural, toast, useBusy, useLoad } from "../ui.js";
import { useUnsaved } from "../unsaved.js";

const MOST = 5000;

/** All notes of a scope without their values, at most MOST. */
async function list(scope, signal) {
  const items = [];
  for (let cursor = null; items.length < MOST; ) {
    const page = await get("/notes", { scope, limit: 1000, cursor }, { signal });
    items.push(...page.items);
    cursor = page.cursor;
    if (!cursor) return { items, complete: true };
  }
  return { items, complete: false };
}

const path = (key) => `/notes/${inPath(key)}`;
const matching = (version) => ({ "If-Match": `"${version}"` });
const content = ({ value, description, metadata, source }) => ({ value, description: description ?? "", metadata, ...(source && { source }) });

/** Undo something; that somebody has written the note meanwhile is said in the words of this page. */
async function unlessChanged(key, undo) {
  try {
    await undo();
  } catch (error) {
    if (![404, 409, 412].includes(error.status)) throw error;
    throw new Error(`Somebody has changed “${key}” since, so this cannot be undone.`);
  }
}

/** Write a note that must not be there yet; one that was deleted keeps the time when it was made. */
const create = (scope, note) => put(path(note.key), { ...content(note), ...(note.created && { created: note.created }) }, { query: { scope }, headers: { "If-None-Match": "*" } });

export default function Notes({ scope, params, go, who }) {
  const notes = useLoad((signal) => list(scope, signal), [scope]);
  const [creating, setCreating] = useState(false);
  const writes = who.rights.includes("write");
  const key = params.key ?? null;
  const open = (name, options) => go(null, { key: name }, options);
  return html`<${Page} title="Notes" about="What agents and people wrote down, by key. Every save checks that nobody else was faster."
    actions=${writes && html`<${Button} kind="primary" icon="plus" onClick=${() => setCreating(true)}>New note<//>`}>
    <${Loaded} of=${notes} lines=${8}>
      ${({ items, complete }) =>
        items.length || key
          ? html`<div class=${key ? "notes-body one" : "notes-body"}>
              <${Card} flush title=${plural(items.length, "note")} class="card flush notes-tree">
                ${!complete && html`<p class="muted small padded">The first ${number(MOST)} notes.</p>`}
                <${Tree} items=${items} selected=${key} onKey=${(name) => open(name)} />
              <//>
              ${key
                ? html`<${Note} key=${`${scope}\n${key}`} scope=${scope} name=${key} writes=${writes} open=${open} reload=${notes.reload} />`
                : html`<${Card} flush class="card flush notes-newest" title="Changed last"><${Table} label="Notes that were changed last" rows=${newest(items)} rowKey=${(note) => note.key} columns=${COLUMNS} onRow=${(note) => open(note.key)} /><//>`}
            </div>`
          : html`<${Card}><${Elsewhere} scope=${scope} noun="note" page="notes" icon="notes" title="No notes in this scope">
              An agent keeps notes for itself; a program writes them with <code>scope.notes.write("plan", …)</code>.
            <//><//>`}
    <//>
    ${creating && html`<${NewNote} scope=${scope} onClose=${() => setCreating(false)} onDone=${(name) => (setCreating(false), notes.reload(), open(name))} />`}
  <//>`;
}

const newest = (items) => [...items].sort((a, b) => (a.updated < b.updated ? 1 : -1)).slice(0, 20);
const COLUMNS = [
  { name: "key", title: "Key", value: (note) => note.key },
  { name: "description", title: "Description", wide: true, value: (note) => note.description ?? "" },
  { name: "updated", title: "Changed", value: (note) => html`<${Time} at=${note.updated} />` },
];

// --- the tree

/** Keys as folders by "/": {folders: Map of name to the same, notes: []}. */
function grow(items) {
  const root = { folders: new Map(), notes: [] };
  for (const item of [...items].sort((a, b) => (a.key < b.key ? -1 : 1))) {
    const parts = item.key.split("/");
    let at = root;
    for (const part of parts.slice(0, -1)) {
      if (!at.folders.has(part)) at.folders.set(part, { folders: new Map(), notes: [] });
      at = at.folders.get(part);
    }
    at.notes.push({ ...item, name: parts.at(-1) });
  }
  return root;
}

function Tree({ items, selected, onKey }) {
  const [filter, setFilter] = useState("");
  const shown = filter ? items.filter((item) => `${item.key} ${item.description ?? ""}`.toLowerCase().includes(filter.toLowerCase())) : items;
  const tree = useMemo(() => grow(shown), [items, filter]);
  return html`<div class="padded"><${Text} label="Filter notes" quiet type="search" placeholder="Filter" value=${filter} onValue=${setFilter} /></div>
    ${shown.length ? html`<${Branch} at=${tree} path="" selected=${selected} onKey=${onKey} open=${Boolean(filter) || items.length <= 60} />` : html`<p class="muted padded">No key or description has this.</p>`}`;
}

const Branch = ({ at, path: above, selected, onKey, open }) => html`<ul class="tree">
  ${[...at.folders].map(([name, inner]) => html`<li key=${`${name}/`}>
    <details open=${open || selected?.startsWith(`${above}${name}/`)}><summary>${name || "(empty)"}/</summary>
      <${Branch} at=${inner} path="${above}${name}/" selected=${selected} onKey=${onKey} open=${open} /></details>
  </li>`)}
  ${at.notes.map((note) => html`<li key=${note.key}>
    <button type="button" aria-current=${note.key === selected ? "true" : undefined} onClick=${() => onKey(note.key)}>
      <span class="ellipsis">${note.name || "(empty)"}</span><small class="muted">${bytes(note.size)}</small>
    </button>
  </li>`)}
</ul>`;

// --- one note

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** The value that a text stands for; raises SyntaxError if it is not JSON and should be. */
const parse = (text, mode) => (mode === "text" ? text : parseExact(text));

function Note({ scope, name, writes, open, reload }) {
  const note = useLoad((signal) => get(path(name), { scope }, { signal }), [scope, name]);
  const [editing, setEditing] = useState(false);
  const [renaming, setRenaming] = useState(false);
  const again = () => (note.reload(), reload());
  const close = () => open(null);
  const erase = (value) =>
    attempt(async () => (await remove(path(name), { query: { scope }, headers: matching(value.version) }), close(), reload()), {
      done: `Deleted “${name}”`,
      undo: () => unlessChanged(name, async () => (await create(scope, value), open(name), reload())),
    });
  return html`<${Card} title=${name} class="card note" actions=${html`
      ${writes && note.value && !editing && html`<${Button} icon="edit" onClick=${() => setEditing(true)}>Edit<//>
        <${Button} onClick=${() => setRenaming(true)}>Rename<//>
        <${Button} kind="danger" icon="trash" label="Delete this note" onClick=${() => erase(note.value)} />`}
      <${Button} kind="quiet" icon="close" label="Close" onClick=${close} />`}>
    <${Loaded} of=${note}>
      ${(value) => html`${editing
        ? html`<${Editor} scope=${scope} note=${value} onDone=${() => (setEditing(false), again())} onCancel=${() => setEditing(false)} />`
        : html`<${Shown} note=${value} />`}
        ${renaming && html`<${Rename} scope=${scope} note=${value} onClose=${() => setRenaming(false)} onDone=${(to) => (setRenaming(false), reload(), open(to, { replace: true }))} />`}`}
    <//>
  <//>`;
}

const Shown = ({ note }) => html`<div class="stack">
  ${note.description && html`<p>${note.description}</p>`}
  <div class="row small muted"><${Badge}>version ${note.version}<//><span>${bytes(note.size)}</span>
    <span>changed <${Time} at=${note.updated} /></span><span>created <${Time} at=${note.created} /></span>
    ${note.source && html`<span>from ${note.source}</span>`}</div>
  ${typeof note.value === "string" ? html`<div class="prose">${note.value || html`<span class="muted">An empty text.</span>`}</div>` : html`<pre tabindex="0">${asText(note.value)}</pre>`}
  ${Object.keys(note.metadata).length > 0 && html`<details><summary>Metadata</summary><pre>${asText(note.metadata)}</pre></details>`}
</div>`;

function Editor({ scope, note, onDone, onCancel }) {
  const [mode, setMode] = useState(typeof note.value === "string" ? "text" : "json");
  const [text, setText] = useState(asText(note.value));
  const [description, setDescription] = useState(note.description ?? "");
  const [conflict, setConflict] = useState(null); // the note as somebody else has written it
  const [busy, run] = useBusy();
  const [leave, question] = useUnsaved(text !== asText(note.value) || description !== (note.description ?? ""));
  const wrong = useMemo(() => problem(text, mode), [text, mode]);
  const turn = (to) => {
    if (to === "json" && mode === "text") setText(JSON.stringify(text, null, 2));
    if (to === "text" && mode === "json") try { const value = JSON.parse(text); if (typeof value === "string") setText(value); } catch { /* it stays as it is */ }
    setMode(to);
  };
  const undo = (stored) => () =>
    unlessChanged(note.key, async () => {
      await put(path(note.key), content(note), { query: { scope }, headers: matching(stored.version) });
      onDone();
    });
  const send = (change, options) => run(() => attempt(change, options));
  const save = (version = note.version) =>
    send(async () => {
      try {
        const stored = await put(path(note.key), { value: parse(text, mode), description }, { query: { scope }, headers: matching(version) });
        toast(`Saved “${note.key}”`, { undo: undo(stored) });
        onDone();
      } catch (error) {
        if (error.status !== 412) throw error;
        setConflict(await get(path(note.key), { scope }).catch((gone) => (gone.status === 404 ? { gone: true } : Promise.reject(gone))));
      }
    });
  const recreate = () => send(async () => (await create(scope, { ...note, value: parse(text, mode), description }), onDone()), { done: `Saved “${note.key}”` });
  return html`<form class="stack" onSubmit=${(event) => (event.preventDefault(), wrong || save())}>
    ${conflict && html`<${Conflict} theirs=${conflict} mine=${text} description=${description} onMine=${() => (conflict.gone ? recreate() : save(conflict.version))} onTheirs=${onDone} />`}
    <${Text} label="Description" value=${description} onValue=${setDescription} />
    <${Tabs} label="Form of the value" value=${mode} onValue=${turn} options=${[["json", "JSON"], ["text", "Text"]]} />
    <${Area} label="Value" quiet rows="16" spellcheck=${false} value=${text} onValue=${setText} aria-invalid=${wrong ? "true" : undefined} />
    ${wrong && html`<p class="error-text small" role="status">${wrong}</p>`}
    <div class="row end"><${Button} onClick=${() => leave(onCancel)}>Cancel<//><button class="button primary" disabled=${Boolean(wrong) || busy}>Save</button></div>
    ${question}
  </form>`;
}

function problem(text, mode) {
  try {
    parse(text, mode);
    return null;
  } catch (error) {
    return `This is not valid JSON: ${error.message}. Mend it, or choose Text to save it as text.`;
  }
}

/** Both versions beside one another, and what to do. */
const Conflict = ({ theirs, mine, description, onMine, onTheirs }) => html`<section class="conflict stack" role="alert" aria-label="Conflict">
  <div><strong>${theirs.gone ? "Somebody has deleted this note meanwhile" : "Somebody was faster"}</strong>
    <p class="muted">${theirs.gone ? "Your text is still here." : html`Version ${theirs.version} was written <${Time} at=${theirs.updated} />${theirs.source ? ` by ${theirs.source}` : ""}. Nothing of yours is lost: choose, or take over parts of it below and save again.`}</p></div>
  ${!theirs.gone && html`<div class="columns narrow">
    ${[["Stored now", theirs.description ?? "", asText(theirs.value)], ["Yours", description, mine]].map(([title, about, value]) => html`<div key=${title}><h3>${title}</h3>
      ${(theirs.description ?? "") !== description && html`<p>${about || html`<span class="muted">No description</span>`}</p>`}
      <pre tabindex="0">${value}</pre></div>`)}
  </div>`}
  <div class="row"><${Button} onClick=${onTheirs}>${theirs.gone ? "Discard mine" : "Keep what is stored"}<//><${Button} kind="danger" onClick=${onMine}>${theirs.gone ? "Write mine again" : "Replace it with mine"}<//></div>
</section>`;

function Rename({ scope, note, onClose, onDone }) {
  const [to, setTo] = useState(note.key);
  const [taken, setTaken] = useState(null);
  const [busy, run] = useBusy();
  const move = async (from, name) => (inPath(name), patch(path(from), { key: name }, { query: { scope } }));
  const back = () => unlessChanged(to, async () => (await move(to, note.key), onDone(note.key)));
  const send = () =>
    attempt(async () => {
      try {
        await move(note.key, to);
      } catch (error) {
        if (error.status !== 409) throw error;
        return setTaken(already(to));
      }
      toast(`Renamed to “${to}”`, { undo: back });
      onDone(to);
    });
  return html`<${Dialog} title="Rename" onClose=${onClose} actions=${html`<${Button} onClick=${onClose}>Cancel<//>
      <button class="button primary" form="rename-form" disabled=${!to || to === note.key || busy}>Rename</button>`}>
    <form id="rename-form" class="stack" onSubmit=${(event) => (event.preventDefault(), run(send))}>
      <${Text} label="Key" hint="With / it is shown in a folder." value=${to} onValue=${(name) => (setTo(name), setTaken(null))} maxlength="500" aria-invalid=${taken ? "true" : undefined} />
      ${taken && html`<p class="error-text small" role="alert">${taken}</p>`}
    </form>
  <//>`;
}

const already = (key) => `There is a note “${key}” already.`;

function NewNote({ scope, onClose, onDone }) {
  const [given, setGiven] = useState({ key: "", description: "", text: "" });
  const [form, setForm] = useState(null); // "text" or "json", once chosen
  const [taken, setTaken] = useState(null);
  const [busy, run] = useBusy();
  const [leave, question, saved] = useUnsaved(Boolean(given.description || given.text));
  const set = (name) => (value) => setGiven((last) => ({ ...last, [name]: value }));
  const mode = form ?? (/^\s*[[{]/.test(given.text) ? "json" : "text");
  const wrong = useMemo(() => problem(given.text, mode), [given.text, mode]);
  const send = async () => {
    setTaken(null);
    await attempt(async () => {
      try {
        await create(scope, { key: given.key, description: given.description, value: parse(given.text, mode) });
      } catch (error) {
        if (error.status === 412) return setTaken(already(given.key));
        throw error;
      }
      saved();
      onDone(given.key);
    });
  };
  return html`<${Dialog} title="New note" onClose=${() => leave(onClose)} actions=${html`<${Button} onClick=${() => leave(onClose)}>Cancel<//>
      <button class="button primary" form="new-note" disabled=${!given.key || Boolean(wrong) || busy}>Create</button>`}>
    <form id="new-note" class="stack" onSubmit=${(event) => (event.preventDefault(), wrong || run(send))}>
      <${Text} label="Key" hint="With / it is shown in a folder." placeholder="plans/week" maxlength="500" value=${given.key} onValue=${set("key")} aria-invalid=${taken ? "true" : undefined} />
      ${taken && html`<p class="error-text small" role="alert">${taken}</p>`}
      <${Text} label="Description" hint="What the note is for, in a few words." value=${given.description} onValue=${set("description")} />
      <${Tabs} label="Form of the value" value=${mode} onValue=${setForm} options=${[["json", "JSON"], ["text", "Text"]]} />
      <${Area} label="Value" hint="What begins with { or [ is JSON, unless you choose Text." rows="8" value=${given.text} onValue=${set("text")} aria-invalid=${wrong ? "true" : undefined} />
      ${wrong && html`<p class="error-text small" role="status">${wrong}</p>`}
    </form>
    ${question}
  <//>`;
}
