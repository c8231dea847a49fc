// Keys: who may use this server, for which scope and rights; a new key is shown once.
import { useEffect, useRef, useState } from "../vendor/preact.js";
import { get, inPath, patch, post, remove } from "../api.js";
import { Badge, Button, Card, Check, Dialog, Empty, Loaded, Page, Select, Table, Text, Time, attempt, hoursAgo, html, minute, useLoad } from "../ui.js";

const RIGHTS = [
  ["read", "Read", "look at everything in the scope, and recall"],
  ["write", "Write", "add, change and delete single things"],
  ["erase", "Erase", "delete whole sessions and scopes, and forget by filter"],
  ["admin", "Admin", "keys, the audit log and the server's metrics"],
];
const LIFETIMES = [["", "Never"], ["1", "In a day"], ["7", "In a week"], ["30", "In 30 days"], ["90", "In 90 days"], ["365", "In a year"]];
const inDays = (days) => (days ? new Date(Date.now() + Number(days) * 86_400_000).toISOString() : null);

export default function Keys({ scope, who }) {
  const [revoked, setRevoked] = useState(false);
  const keys = useLoad(async (signal) => (await get("/keys", { revoked }, { signal })).items, [revoked]);
  const first = !who.csrf; // nobody needs a key yet: the first one closes the server
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState(null);
  const [asked, setAsked] = useState(null);
  return html`<${Page} title="Keys" about="Each key is bound to a scope and to rights. Only a hash of it is stored, so a lost key is replaced, not found."
    actions=${html`<${Button} kind="primary" icon="plus" onClick=${() => setCreating(true)}>New key<//>`}>
    <${Card} flush class="card flush stacked keys" title="API keys" actions=${html`<${Check} label="Show revoked" checked=${revoked} onValue=${setRevoked} />`}><${Loaded} of=${keys}>
      ${(items) => html`<${Table} label="Keys" rows=${items} rowKey=${(key) => key.id} columns=${columns(setAsked, who)}
        empty=${html`<${Empty} title="There are no keys yet" icon="keys">${first ? "This server answers programs on this machine without one. With the first key, it asks everyone for a key." : "None is within your scope."}<//>`} />`}
    <//><//>
    ${creating && html`<${NewKey} scope=${scope} first=${first} root=${who.scope} rights=${who.rights} onClose=${() => setCreating(false)} onDone=${(key) => (setCreating(false), setMade(key), keys.reload())} />`}
    ${made && html`<${Made} made=${made} onClose=${() => (first ? location.reload() : setMade(null))} />`}
    ${asked && html`<${Ask} ...${asked} mine=${asked.of.id === who.id} onClose=${() => setAsked(null)} onDone=${() => (setAsked(null), keys.reload())} />`}
  <//>`;
}

/** What to say of a key that cannot be used; null of one that can. */
const state = (key) => (key.revoked ? "revoked" : key.expires && Date.parse(key.expires) <= Date.now() ? "expired" : null);

const columns = (ask, who) => [
  { name: "name", title: "Name", value: (key) => html`<span><strong>${key.name}</strong>${key.id === who.id && html` <${Badge} tone="accent">yours<//>`}${state(key) && html` <${Badge} tone="danger">${state(key)}<//>`}</span>` },
  { name: "scope", title: "Scope", value: (key) => key.scope || "everything" },
  { name: "rights", title: "Rights", value: (key) => html`<span class="row">${key.rights.map((right) => html`<${Badge} key=${right} tone=${right === "admin" ? "warn" : ""}>${right}<//>`)}</span>` },
  { name: "created", title: "Created", value: (key) => html`<${Time} at=${key.created} />` },
  { name: "expires", title: "Expires", value: (key) => (key.expires ? html`<${Time} at=${key.expires} />` : html`<span class="muted">never</span>`) },
  { name: "used", title: "Last used", value: (key) => (key.last_used ? html`<time datetime=${key.last_used} title="In the hour from ${minute(key.last_used)}">${hoursAgo(key.last_used)}</time>` : html`<span class="muted">–</span>`) },
  { name: "tools", title: "Change", end: true, value: (key) => !key.revoked && html`<span class="row end">
      <${Button} aria-label="Expire ${key.name}" onClick=${() => ask({ of: key, expire: true })}>Expire<//>
      <${Button} kind="danger" aria-label="Revoke ${key.name}" onClick=${() => ask({ of: key })}>Revoke<//>
    </span>` },
];

function NewKey({ scope, first, root, rights, onClose, onDone }) {
  const [given, setGiven] = useState({ name: "", scope: scope ?? "", rights: ["read", "write"], days: "" });
  const set = (name) => (value) => setGiven((last) => ({ ...last, [name]: value }));
  const send = async (event) => {
    event.preventDefault();
    const path = given.scope.trim().replace(/^\/+|\/+$/g, "") || root;
    const body = first
      ? { name: given.name.trim(), scope: "", rights: RIGHTS.map(([right]) => right) }
      : { name: given.name.trim(), scope: path, rights: given.rights, ...(given.days && { expires: inDays(given.days) }) };
    await attempt(async () => onDone(await post("/keys", body)));
  };
  return html`<${Dialog} title="New key" onClose=${onClose} actions=${html`<${Button} onClick=${onClose}>Cancel<//>
      <button class="button primary" form="new-key" disabled=${!given.name.trim() || !given.rights.length}>Create</button>`}>
    <form id="new-key" class="stack" onSubmit=${send}>
      <${Text} label="Name" hint="Who or what uses it; the audit log shows it as the actor." placeholder="support-bot" maxlength="200" value=${given.name} onValue=${set("name")} />
      ${first
        ? html`<p class="muted">The first key may do everything, and does not expire: from then on this server asks for a key, also on this machine. You stay signed in here. Make
            others with fewer rights afterwards.</p>`
        : html`<${Text} label="Scope" hint="The key sees this scope and those below it. ${root ? `Yours reaches ${root} and below.` : "Empty is everything."}" placeholder=${root || "acme/alice"} value=${given.scope} onValue=${set("scope")} />
      <fieldset class="rights"><legend>Rights</legend>
        ${RIGHTS.filter(([right]) => rights.includes(right)).map(([right, name, meaning]) => html`<${Check} key=${right} label=${html`<strong>${name}</strong> <span class="muted">${right === "admin" && (root || given.scope.trim()) ? "keys and the audit log of the scope" : meaning}</span>`} checked=${given.rights.includes(right)}
          onValue=${(on) => set("rights")(on ? [...given.rights, right] : given.rights.filter((one) => one !== right))} />`)}
      </fieldset>
      <${Select} label="Expires" value=${given.days} onValue=${set("days")} options=${LIFETIMES} />`}
    </form>
  <//>`;
}

/** The key itself: only here, only now. */
function Made({ made, onClose }) {
  const [copied, setCopied] = useState(false);
  const [stored, setStored] = useState(false);
  const held = !copied && !stored; // whoever closes this too early has lost the key, and maybe the server
  useEffect(() => {
    const stay = (event) => event.preventDefault();
    if (held) window.addEventListener("beforeunload", stay);
    return () => window.removeEventListener("beforeunload", stay);
  }, [held]);
  const field = useRef(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(made.secret);
    } catch {
      field.current.querySelector("input").select(); // no access to the clipboard: the person copies it
      return;
    }
    setCopied(true);
  };
  return html`<${Dialog} title="Key for ${made.name}" held=${held} onClose=${onClose} actions=${html`<${Button} kind="primary" disabled=${held} onClick=${onClose}>Done<//>`}>
    <div class="stack">
      <p>Copy it now: <strong>it is not shown again</strong>, and only a hash of it is stored. Whoever has it may use the scope <strong>${made.scope || "/"}</strong> with the rights ${made.rights.join(", ")}.</p>
      <div class="row new-key" ref=${field}><${Text} label="API key" quiet readonly value=${made.secret} class="mono" onFocus=${(event) => event.target.select()} />
        <${Button} icon=${copied ? "check" : "copy"} onClick=${copy}>${copied ? "Copied" : "Copy"}<//></div>
      <${Check} label="I have stored it" checked=${stored} onValue=${setStored} />
      <p class="muted small">In programs: <code>mnemic.open("${location.origin}")</code> with the variable <code>MNEMIC_API_KEY</code>, or the header <code>Authorization: Bearer …</code>.</p>
    </div>
  <//>`;
}

function Ask({ of: key, expire, mine, onClose, onDone }) {
  const [days, setDays] = useState("7");
  const send = () =>
    expire
      ? attempt(async () => (await patch(`/keys/${inPath(key.id)}`, { expires: inDays(days) }), onDone()), {
          done: days ? `“${key.name}” expires ${LIFETIMES.find(([one]) => one === days)[1].toLowerCase()}` : `“${key.name}” does not expire`,
          undo: async () => (await patch(`/keys/${inPath(key.id)}`, { expires: key.expires }), onDone()),
        })
      : attempt(async () => (await remove(`/keys/${inPath(key.id)}`), onDone()), { done: `Revoked “${key.name}”` });
  return html`<${Dialog} title=${expire ? `When does “${key.name}” expire?` : `Revoke “${key.name}”?`} onClose=${onClose} actions=${html`<${Button} onClick=${onClose}>Cancel<//>
      <${Button} kind=${expire ? "primary" : "danger"} onClick=${send}>${expire ? "Set" : "Revoke"}<//>`}>
    ${expire
      ? html`<${Select} label="Expires" value=${days} onValue=${setDays} options=${LIFETIMES} />`
      : html`<p>Programs that use it are refused from now on. This cannot be undone: a revoked key is replaced by a new one.${mine ? " You have signed in with this key, so you are signed out." : ""}</p>`}
  <//>`;
}
