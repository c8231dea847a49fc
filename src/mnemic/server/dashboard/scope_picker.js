// The scope that the pages show: a box with completion from the scopes of the store.
import { useEffect, useId, useMemo, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { html, plural } from "./ui.js";

const MOST = 50;

/** Whether a scope is `root` or below it; an empty root is everything. */
export const within = (scope, root) => !root || scope === root || scope.startsWith(`${root}/`);

/** All prefixes of paths within `root`: of "acme/alice" also "acme", so that one can choose what lies above. */
function withParents(scopes, root) {
  const found = new Map();
  for (const { scope, ...counts } of scopes) {
    const parts = scope.split("/");
    for (let length = 1; length < parts.length; length++) {
      const parent = parts.slice(0, length).join("/");
      if (within(parent, root) && !found.has(parent)) found.set(parent, null);
    }
    found.set(scope, counts);
  }
  return [...found].map(([scope, counts]) => ({ scope, counts })).sort((a, b) => (a.scope < b.scope ? -1 : 1));
}

export function ScopePicker({ scope, root, onScope }) {
  const [text, setText] = useState(null); // null: not being typed in
  const [scopes, setScopes] = useState([]);
  const [at, setAt] = useState(-1);
  const input = useRef(null);
  const id = useId();
  const open = text !== null;
  useEffect(() => {
    if (!open) return;
    const control = new AbortController();
    get("/scopes", { limit: 1000 }, { signal: control.signal }).then((page) => control.signal.aborted || setScopes(withParents(page?.items ?? [], root)), () => {}); // A request that is cancelled late has an empty answer.
    return () => control.abort();
  }, [open]);
  const shown = useMemo(() => {
    const typed = (text ?? "").trim().toLowerCase();
    const found = [{ scope: root || "/", counts: null }, ...scopes.filter((one) => one.scope !== root)].filter((one) => one.scope.toLowerCase().includes(typed));
    // What begins with the typed text is more likely meant than what has it somewhere.
    return found.sort((a, b) => b.scope.toLowerCase().startsWith(typed) - a.scope.toLowerCase().startsWith(typed)).slice(0, MOST);
  }, [scopes, text, root]);
  /** What Enter chooses: the option that is lit, the typed scope, or else the best match, unless it is not listed. */
  const meant = () => {
    const typed = text.trim();
    if (at >= 0) return shown[at].scope;
    if (!typed) return scope ?? (root || "/");
    return scopes.some((one) => one.scope === typed) || !shown.length ? typed : shown[0].scope;
  };
  const choose = (path) => {
    setText(null);
    setAt(-1);
    input.current.blur();
    onScope(path === (root || "/") ? null : path);
  };
  const pressed = (event) => {
    if (event.key === "Escape") return setText(null), event.stopPropagation(), event.preventDefault();
    if (event.key === "Enter") return event.preventDefault(), open && choose(meant());
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    if (!open) return setText("");
    const next = (at + step + shown.length) % shown.length;
    setAt(next);
    document.getElementById(`${id}-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  return html`<div class="picker">
    <label for=${id}>Scope</label>
    <input id=${id} ref=${input} role="combobox" aria-expanded=${open ? "true" : "false"} aria-controls="${id}-list" aria-autocomplete="list"
      aria-activedescendant=${open && at >= 0 ? `${id}-${at}` : undefined} autocomplete="off" spellcheck=${false}
      placeholder=${scope ?? (root || "/")} value=${open ? text : (scope ?? (root || "/"))}
      onFocus=${() => setText("")} onBlur=${() => (setText(null), setAt(-1))} onInput=${(e) => (setText(e.target.value), setAt(-1))} onKeyDown=${pressed} />
    <ul id="${id}-list" role="listbox" aria-label="Scopes" hidden=${!open}>
      ${open && shown.map((one, i) => html`<li key=${one.scope} id="${id}-${i}" role="option" aria-selected=${i === at ? "true" : "false"}
        onPointerDown=${(e) => (e.preventDefault(), choose(one.scope))}>
        <span class="ellipsis">${one.scope === "/" ? "/ (everything)" : one.scope}</span>
        ${one.counts && html`<small class="muted">${plural(one.counts.messages + one.counts.memories + one.counts.notes + one.counts.facts + one.counts.state, "record")}</small>`}
      </li>`)}
    </ul>
  </div>`;
}
