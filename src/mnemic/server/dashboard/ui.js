// Components that every page is made of. Texts of a store are only ever children of these, so always text nodes.
import { html, useCallback, useEffect, useId, useRef, useState } from "./vendor/preact.js";
import { Icon } from "./icons.js";
import { compact, number, ago, minute, second } from "./format.js";

export { html, Icon };
export * from "./format.js";

const joined = (...names) => names.filter(Boolean).join(" ");

// --- page and layout

/** A page's heading, what it is for in one sentence, and its buttons. */
export const Page = ({ title, about, actions, children }) => html`
  <header class="page-head">
    <div><h1>${title}</h1>${about && html`<p class="muted">${about}</p>`}</div>
    ${actions && html`<div class="row">${actions}</div>`}
  </header>
  ${children}`;

/** A surface with an optional heading. `flush` has no padding, for tables. */
export const Card = ({ title, actions, flush, children, ...rest }) => html`
  <section class=${joined("card", flush && "flush")} aria-label=${title} ...${rest}>
    ${title && html`<header class="card-head"><h2>${title}</h2>${actions && html`<div class="row">${actions}</div>`}</header>`}
    ${children}
  </section>`;

/** A number that matters, with its name. */
export const Figure = ({ label, value, hint }) => html`
  <div class="figure"><span class="muted">${label}</span><strong>${value}</strong>${hint && html`<small class="muted">${hint}</small>`}</div>`;

/** A count written short, with the exact one on hover and for those who listen. */
export const Count = ({ of }) =>
  compact(of) === number(of) ? number(of) : html`<span title=${number(of)}><span aria-hidden="true">${compact(of)}</span><span class="hidden">${number(of)}</span></span>`;

/** Buttons: `kind` is "primary", "danger", "quiet" or nothing. With an icon alone, `label` is its name. */
export const Button = ({ kind, icon, label, children, ...rest }) => html`
  <button type="button" class=${joined("button", kind, !children && "icon-only")} aria-label=${label} title=${children ? undefined : label} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}${children}
  </button>`;

/** A small word of state: `tone` is "good", "warn", "danger", "accent" or nothing. */
export const Badge = ({ tone, children }) => html`<span class=${joined("badge", tone)}>${children}</span>`;

/** A time: how long ago, with the exact one on hover. `exact` shows that one instead, to the minute or, as "second", to that. */
export const Time = ({ at, exact }) =>
  at ? html`<time datetime=${at} title=${second(at)}>${exact === "second" ? second(at) : exact ? minute(at) : ago(at)}</time>` : html`<span class="muted">–</span>`;

// --- fields

const Field = ({ label, hint, quiet, children, class: name }) => {
  const id = useId();
  return html`<div class=${joined("field", name)}>
    <label for=${id} class=${quiet ? "hidden" : undefined}>${label}</label>
    ${children(id, hint && `${id}-hint`)}
    ${hint && html`<small id="${id}-hint" class="muted">${hint}</small>`}
  </div>`;
};

/** A line of text; `onValue` gets the text. `quiet` hides the label from those who see. Other attributes go to the input. */
export const Text = ({ label, hint, quiet, value, onValue, ...rest }) => html`
  <${Field} label=${label} hint=${hint} quiet=${quiet}>
    ${(id, by) => html`<input id=${id} aria-describedby=${by} value=${value ?? ""} onInput=${(e) => onValue?.(e.target.value)} ...${rest} />`}
  <//>`;

/** Several lines of text. */
export const Area = ({ label, hint, quiet, value, onValue, ...rest }) => html`
  <${Field} label=${label} hint=${hint} quiet=${quiet}>
    ${(id, by) => html`<textarea id=${id} aria-describedby=${by} rows="6" onInput=${(e) => onValue?.(e.target.value)} ...${rest} value=${value ?? ""} />`}
  <//>`;

/** A choice: `options` are [value, name] pairs or plain values. */
export const Select = ({ label, hint, quiet, value, onValue, options, ...rest }) => html`
  <${Field} label=${label} hint=${hint} quiet=${quiet}>
    ${(id, by) => html`<select id=${id} aria-describedby=${by} onChange=${(e) => onValue(e.target.value)} ...${rest}>
      ${options.map((one) => {
        const [key, name] = Array.isArray(one) ? one : [one, one];
        return html`<option key=${key} value=${key} selected=${String(key) === String(value ?? "")}>${name}</option>`;
      })}
    </select>`}
  <//>`;

/** A number on a scale, shown beside its name; `shown` writes it. With `exact`, its name, there is a field to type it as well. */
export const Slider = ({ label, value, onValue, min = 0, max = 1, step = 0.01, shown = String, exact, ...rest }) => {
  const id = useId();
  const typed = (event) => event.target.validity.valid && event.target.value !== "" && onValue(Number(event.target.value));
  return html`<div class="field slider">
    <label for=${id}><span>${label}</span>${!exact && html`<output class="num" for=${id}>${shown(value)}</output>`}</label>
    <div class=${exact && "slider-exact"}>
      <input id=${id} type="range" min=${min} max=${max} step=${step} value=${value} onInput=${(e) => onValue(Number(e.target.value))} ...${rest} />
      ${exact && html`<input type="number" class="num" aria-label=${exact} min="1" max="10000000" step="1" value=${value} onInput=${typed} />`}
    </div>
  </div>`;
};

/** A box to tick. */
export const Check = ({ label, checked, onValue, ...rest }) => html`
  <label class="check"><input type="checkbox" checked=${checked} onChange=${(e) => onValue(e.target.checked)} ...${rest} /><span>${label}</span></label>`;

/** Buttons of which any number are on: `value` is an array. */
export const Chips = ({ label, options, value, onValue }) => html`
  <div class="field" role="group" aria-label=${label}><span class="label">${label}</span><div class="chips">
    ${options.map((one) => {
      const on = value.includes(one);
      return html`<button key=${one} type="button" class="chip" aria-pressed=${on ? "true" : "false"}
        onClick=${() => onValue(on ? value.filter((other) => other !== one) : [...value, one])}>${one}</button>`;
    })}
  </div></div>`;

/** Views of which one is shown: `options` are [value, name] pairs; arrow keys move. */
export const Tabs = ({ label, value, onValue, options }) => {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = options.findIndex(([key]) => key === value);
    onValue(options[(at + step + options.length) % options.length][0]);
    const buttons = event.currentTarget.children;
    buttons[(at + step + options.length) % options.length].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${options.map(([key, name]) => html`<button key=${key} type="button" role="tab" aria-selected=${key === value ? "true" : "false"}
      tabindex=${key === value ? 0 : -1} onClick=${() => onValue(key)}>${name}</button>`)}
  </div>`;
};

// --- states

/** What to say where there is nothing: why, and what to do. */
export const Empty = ({ title, icon = "empty", children }) => html`
  <div class="state"><${Icon} name=${icon} /><strong>${title}</strong>${children && html`<p class="muted">${children}</p>`}</div>`;

/** An error in the words of the server, with a way to try again. */
export const ErrorBox = ({ error, onRetry }) => html`
  <div class="state error" role="alert"><${Icon} name="alert" />
    <strong>${error.status === 403 ? "Your key may not do this" : error.status === 404 ? "There is nothing here" : error.title || "This did not work"}</strong>
    <p class="muted">${error.message}</p>
    ${onRetry && html`<${Button} onClick=${onRetry}>Try again<//>`}
  </div>`;

/** Grey lines where content will be; `slow` says why, if it takes longer than a second. */
export const Loading = ({ lines = 4, slow }) => {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 1000);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="skeleton" role="status" aria-label="Loading">
    ${late && slow && html`<p class="muted">${slow}</p>`}
    ${Array.from({ length: lines }, (_, i) => html`<span key=${i}></span>`)}
  </div>`;
};

/**
 * Load something when `inputs` change: `load(signal)` returns a promise. Returns {value, error, loading, reload}. The last
 * value stays until the next one is there; a request that is no longer needed is cancelled.
 */
export function useLoad(load, inputs) {
  const [state, setState] = useState({ value: undefined, error: null, loading: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    setState((last) => ({ ...last, loading: true }));
    (async () => load(control.signal))().then(
      (value) => control.signal.aborted || setState({ value, error: null, loading: false }),
      (error) => control.signal.aborted || setState({ value: undefined, error, loading: false }),
    );
    return () => control.abort();
  }, [...inputs, round]);
  return { ...state, reload: useCallback(() => setRound((n) => n + 1), []) };
}

/** Show what useLoad returned: an error, grey lines, or `children(value)`. */
export const Loaded = ({ of, lines, slow, children }) =>
  of.error ? html`<${ErrorBox} error=${of.error} onRetry=${of.reload} />` : of.value === undefined ? html`<${Loading} lines=${lines} slow=${slow} />` : children(of.value);

/** A value that follows `value` after it has rested for `ms`. */
export function useRested(value, ms = 200) {
  const [rested, setRested] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return rested;
}

/** Whether the window is as narrow as a phone's. */
export function useNarrow() {
  const query = window.matchMedia("(max-width: 760px)");
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const changed = (event) => setNarrow(event.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return narrow;
}

// --- tables

/**
 * Rows by columns: {name, title, value(row), wide, end, width}. `onRow` makes each row a button. `end` aligns right.
 */
export const Table = ({ label, columns, rows, rowKey = (_, i) => i, onRow, empty }) =>
  rows.length === 0 && empty
    ? empty
    : html`<div class="table-frame" role="group" aria-label=${label} tabindex="0"><table>
        <thead><tr>${columns.map((c) => html`<th key=${c.name} scope="col" class=${joined(c.end && "end", c.wide && "wide")}>${c.title}</th>`)}</tr></thead>
        <tbody>${rows.map((row, i) => html`<tr key=${rowKey(row, i)} class=${onRow && "clickable"} onClick=${onRow && (() => onRow(row))}>
          ${columns.map((c, at) => html`<td key=${c.name} data-title=${c.title} class=${joined(c.end && "end num", c.wide && "wide")}>
            ${onRow && at === 0 ? html`<button type="button" class="link" onClick=${(e) => (e.stopPropagation(), onRow(row))}>${c.value(row)}</button>` : c.value(row)}
          </td>`)}
        </tr>`)}</tbody>
      </table></div>`;

/**
 * Load page after page: `load(cursor, signal)` returns {items, cursor}. Returns {items, error, loading, more, reload}: `more`
 * loads the next page and is null at the end; `reload` loads the same pages again and shows the old ones until then.
 */
export function usePages(load, inputs) {
  const [state, setState] = useState({ items: [], next: null, error: null, loading: true });
  const [round, setRound] = useState(0);
  const control = useRef(null);
  const shown = useRef({ round: 0, pages: 1 });
  const read = async (cursor, before, pages) => {
    const mine = (control.current = new AbortController());
    const items = [...before];
    try {
      for (let n = 0; n < pages && (n === 0 || cursor !== null); n++) {
        const page = await load(cursor, mine.signal);
        items.push(...page.items);
        cursor = page.cursor ?? null;
      }
      if (!mine.signal.aborted) setState({ items, next: cursor, error: null, loading: false });
    } catch (error) {
      if (!mine.signal.aborted) setState((last) => ({ ...last, error, loading: false }));
    }
  };
  useEffect(() => {
    const again = shown.current.round !== round;
    shown.current = { round, pages: again ? shown.current.pages : 1 };
    setState((last) => ({ ...last, items: again ? last.items : [], loading: true, error: null }));
    read(null, [], shown.current.pages);
    return () => control.current?.abort();
  }, [...inputs, round]);
  const next = () => {
    shown.current.pages++;
    setState((last) => ({ ...last, loading: true, error: null }));
    read(state.next, state.items, 1);
  };
  const more = state.next !== null && !state.loading ? next : null;
  return { ...state, more, reload: useCallback(() => setRound((n) => n + 1), []) };
}

/** A table of what usePages returned, with its states and the button for more. */
export const PagedTable = ({ pages, empty, ...rest }) =>
  pages.error && !pages.items.length
    ? html`<${ErrorBox} error=${pages.error} onRetry=${pages.reload} />`
    : pages.loading && !pages.items.length
      ? html`<${Loading} lines=${6} />`
      : html`<${Table} rows=${pages.items} empty=${empty} ...${rest} />
          ${pages.error && html`<${ErrorBox} error=${pages.error} onRetry=${pages.more} />`}
          ${(pages.more || pages.loading) && html`<div class="more"><${Button} disabled=${!pages.more} onClick=${pages.more}>${pages.loading ? "Loading …" : "Show more"}<//></div>`}`;

// --- over the page

/**
 * A dialog in the middle, or with `side` a panel at the right; the browser keeps the focus inside, and Escape or a click beside
 * it closes it. One that is `held` stays, whatever the person presses: its content says how to close it.
 */
export const Dialog = ({ title, onClose, side, held, actions, children }) => {
  const node = useRef(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    const shown = node.current;
    shown.showModal();
    return () => {
      shown.close(); // While it is open, nothing behind it can take the focus.
      (before?.isConnected ? before : document.getElementById("main"))?.focus();
    };
  }, []);
  return html`<dialog ref=${node} class=${side ? "drawer" : "dialog"} aria-labelledby=${id}
    onCancel=${(e) => (e.preventDefault(), held || onClose())} onClick=${(e) => e.target === node.current && !held && onClose()}
    onKeyDown=${(e) => held && e.key === "Escape" && e.preventDefault()} onClose=${() => held && node.current?.showModal()}>
    <div class="dialog-body">
      <header class="card-head"><h2 id=${id}>${title}</h2>${!held && html`<${Button} kind="quiet" icon="close" label="Close" onClick=${onClose} />`}</header>
      <div class="dialog-content">${children}</div>
      ${actions && html`<footer class="row end">${actions}</footer>`}
    </div>
    <${Toasts} />
  </dialog>`;
};

let toasts = [];
let toastCount = 0;
const toastPlaces = []; // The last one shows them: what is under an open dialog cannot be clicked.
function setToasts(next) {
  toasts = next;
  toastPlaces.forEach((show, i) => show(i === toastPlaces.length - 1 ? toasts : []));
}

/** Say something for some seconds; with `undo`, a function, there is a button for it. `tone` "danger" is an error. */
export function toast(text, { undo, tone } = {}) {
  const one = { id: ++toastCount, text, undo, tone };
  setToasts([...toasts, one]);
  setTimeout(() => setToasts(toasts.filter((other) => other !== one)), undo ? 10_000 : 5_000);
}

/** Run something that changes the store: success and failure are said. Returns whether it worked. */
export async function attempt(change, { done, undo } = {}) {
  try {
    await change();
    if (done) toast(done, { undo });
    return true;
  } catch (error) {
    if (error.status !== 401) toast(error.message, { tone: "danger" }); // the form to sign in says that one
    return false;
  }
}

/** Run one change at a time. Returns [busy, run]: what comes while one runs is ignored. */
export function useBusy() {
  const [busy, setBusy] = useState(false);
  const running = useRef(false);
  const run = async (change) => {
    if (running.current) return;
    setBusy((running.current = true));
    try {
      await change();
    } finally {
      setBusy((running.current = false));
    }
  };
  return [busy, run];
}

/** Where toasts appear: in the shell, and in an open dialog. */
export function Toasts() {
  const [shown, setShown] = useState([]);
  useEffect(() => {
    toastPlaces.push(setShown);
    setToasts(toasts);
    return () => (toastPlaces.splice(toastPlaces.indexOf(setShown), 1), setToasts(toasts));
  }, []);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.map((one) => html`<div key=${one.id} class=${joined("toast", one.tone)}>
      <span>${one.text}</span>
      ${one.undo && html`<${Button} onClick=${() => (setToasts(toasts.filter((other) => other !== one)), attempt(one.undo, { done: "Undone" }))}>Undo<//>`}
    </div>`)}
  </div>`;
}
