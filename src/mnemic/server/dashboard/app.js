// The shell: signs in, shows the sidebar with the scope and the pages, and the page that the address names.
import { render, useCallback, useEffect, useRef, useState } from "./vendor/preact.js";
import { signIn, signOut, whoAmI } from "./api.js";
import { ScopePicker, within } from "./scope_picker.js";
import { Button, Dialog, Empty, ErrorBox, Icon, Loading, Page as Frame, Text, Toasts, attempt, html, useNarrow } from "./ui.js";
import { Leaving, anyUnsaved } from "./unsaved.js";

const PAGES = [
  { name: "recall", title: "Recall lab" },
  { name: "timeline", title: "Timeline" },
  { name: "sessions", title: "Sessions" },
  { name: "overview", title: "Overview" },
  { name: "facts", title: "Facts" },
  { name: "notes", title: "Notes" },
  { name: "audit", title: "Audit", right: "admin" },
  { name: "keys", title: "Keys", right: "admin" },
];
const HOME = PAGES.find((one) => one.name === "overview");
const THEMES = ["system", "light", "dark"];

/** What the address names: #/page?scope=…&other=…; the rest of the parameters belong to the page. */
function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const { scope, ...params } = Object.fromEntries(new URLSearchParams(query));
  return { page: PAGES.find((one) => one.name === path) ?? (path ? null : HOME), scope: scope || null, params };
}

function writeAddress(page, scope, params, replace) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ scope, ...params }))
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  const hash = `#/${page}${query.size ? `?${query}` : ""}`;
  history[replace || hash === location.hash ? "replaceState" : "pushState"](null, "", hash);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

function useAddress() {
  const [address, setAddress] = useState(readAddress);
  const [wanted, setWanted] = useState(null); // where to go, if what was typed may be thrown away
  const here = useRef(location.hash);
  useEffect(() => {
    const changed = () => {
      if (location.hash !== here.current && anyUnsaved()) {
        setWanted(location.hash);
        return history.replaceState(null, "", here.current || location.pathname);
      }
      here.current = location.hash;
      setAddress(readAddress());
    };
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  /** Go to a page (null is this one) with parameters, in the same scope unless they name another. */
  const go = useCallback((page, { scope, ...params } = {}, { replace = false } = {}) => {
    const now = readAddress();
    writeAddress(page ?? now.page?.name ?? HOME.name, scope === undefined ? now.scope : scope, params, replace);
  }, []);
  const stay = () => setWanted(null);
  const leave = () => {
    history.pushState(null, "", wanted);
    here.current = wanted;
    stay();
    setAddress(readAddress());
  };
  return [address, go, wanted && html`<${Leaving} onStay=${stay} onLeave=${leave} />`];
}

function ThemeSwitch() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  const choose = (name) => {
    document.documentElement.dataset.theme = name;
    localStorage.setItem("mnemic.theme", name);
    setTheme(name);
    window.dispatchEvent(new Event("mnemic-theme"));
  };
  return html`<div class="segments" role="group" aria-label="Theme">
    ${THEMES.map((name) => html`<button key=${name} type="button" aria-pressed=${name === theme ? "true" : "false"} aria-label="${name} theme" title="${name} theme"
      onClick=${() => choose(name)}><${Icon} name=${name} /></button>`)}
  </div>`;
}

function Sidebar({ who, address, go, onLeave }) {
  const link = (page) => `#/${page.name}${address.scope ? `?scope=${encodeURIComponent(address.scope)}` : ""}`;
  return html`
    <a class="brand" href=${link(HOME)}><img src="favicon.svg" alt="" width="22" height="22" /><span>Mnemic</span></a>
    <${ScopePicker} scope=${address.scope} root=${who.scope} onScope=${(scope) => go(null, { scope })} />
    <nav aria-label="Pages"><ul>
      ${PAGES.filter((page) => !page.right || who.rights.includes(page.right)).map((page) => html`<li key=${page.name}>
        <a href=${link(page)} aria-current=${page === address.page ? "page" : undefined} onClick=${onLeave}><${Icon} name=${page.name} />${page.title}</a>
      </li>`)}
    </ul></nav>
    <div class="sidebar-foot">
      <${ThemeSwitch} />
      ${who.csrf && html`<${Button} kind="quiet" icon="exit" label="Sign out ${who.name}" onClick=${() => signOut().finally(() => location.reload())} />`}
    </div>`;
}

/** A page's module is loaded when it is first opened. */
function PageFrame({ address, who, go }) {
  const { page, scope, params } = address;
  const [loaded, setLoaded] = useState({});
  useEffect(() => {
    document.title = page ? `${page.title} · Mnemic` : "Mnemic";
    if (!page || loaded[page.name]) return;
    const set = (value) => setLoaded((last) => ({ ...last, [page.name]: value }));
    const failed = () => set({ error: { title: "The server cannot be reached", message: `The page “${page.title}” could not be loaded. Is the server still running?` } });
    import(`./pages/${page.name}.js`).then((module) => set({ Page: module.default }), failed);
  }, [page]);
  // A browser may remember that a module failed, so the whole dashboard is loaded again, once the server answers.
  const again = () => attempt(() => whoAmI().then(() => location.reload()));
  if (!page) return html`<${Empty} title="There is no such page">Choose one at the left.<//>`;
  if (page.right && !who.rights.includes(page.right))
    return html`<${Frame} title=${page.title}><${Empty} title="This page needs a key with the right ${page.right}" icon=${page.name}>Your key “${who.name}” has: ${who.rights.join(", ")}.<//><//>`;
  const foreign = [scope, page.name === "sessions" ? params.session : null].find((path) => path && !within(path, who.scope));
  if (foreign)
    return html`<${Frame} title=${page.title}><div class="state"><${Icon} name="keys" /><strong>Your key does not reach ${foreign}</strong>
      <p class="muted">It is for <a href="#/${page.name}?scope=${encodeURIComponent(who.scope)}">${who.scope}</a> and what is below.</p></div><//>`;
  const { Page, error } = loaded[page.name] ?? {};
  if (error) return html`<${ErrorBox} error=${error} onRetry=${again} />`;
  return Page ? html`<${Page} key=${page.name} scope=${scope ?? who.scope} params=${params} go=${go} who=${who} />` : html`<${Loading} />`;
}

/** The form for a key: the whole page, or with `ended` a dialog above a page that has something unsaved. */
function SignIn({ onDone, ended, above }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current?.showModal(), []);
  const [key, setKey] = useState("");
  const [error, setError] = useState(null);
  const send = async (event) => {
    event.preventDefault();
    try {
      await signIn(key.trim());
      onDone();
    } catch (problem) {
      setError(problem.status === 401 ? "This key is not known, or no longer valid." : problem.message);
    }
  };
  const form = html`<form class="card" onSubmit=${send}>
    <img src="favicon.svg" alt="" width="36" height="36" />
    <h1>Sign in to Mnemic</h1>
    ${ended && html`<p role="status">Your session has ended; sign in to go on.${above ? " What you typed is kept." : ""}</p>`}
    <p class="muted">With an API key. Whoever runs the server makes one with <code>mnemic keys create</code>.</p>
    <${Text} label="API key" type="password" autocomplete="current-password" required value=${key} onValue=${setKey} aria-invalid=${error ? "true" : undefined} />
    ${error && html`<p class="error-text" role="alert">${error}</p>`}
    <button class="button primary" disabled=${!key.trim()}>Sign in</button>
  </form>`;
  if (!above) return html`<main class="sign-in" id="main">${form}</main>`;
  return html`<dialog ref=${dialog} class="whole" aria-label="Sign in" onCancel=${(e) => e.preventDefault()} onClose=${() => dialog.current?.showModal()}>
    <main class="sign-in">${form}</main></dialog>`;
}

function App() {
  const [who, setWho] = useState(undefined);
  const [error, setError] = useState(null);
  const [ended, setEnded] = useState(false);
  const [open, setOpen] = useState(false);
  const [address, go, question] = useAddress();
  const narrow = useNarrow();
  const load = () => whoAmI().then((found) => (setError(null), found && setEnded(false), setWho((last) => found ?? last ?? null)), setError);
  useEffect(() => {
    load();
    const out = () => setEnded(true);
    window.addEventListener("mnemic-signed-out", out);
    return () => window.removeEventListener("mnemic-signed-out", out);
  }, []);
  useEffect(() => setOpen(false), [address]);
  if (error && !who) return html`<main id="main"><${ErrorBox} error=${error} onRetry=${load} /></main>`;
  if (who === undefined) return html`<main id="main" class="sign-in"><${Loading} /></main>`;
  if (!who || (ended && !anyUnsaved())) return html`<${SignIn} onDone=${load} ended=${Boolean(who)} />`;
  const sidebar = html`<${Sidebar} who=${who} address=${address} go=${go} onLeave=${() => setOpen(false)} />`;
  const skip = (event) => (event.preventDefault(), document.getElementById("main").focus());
  // With another key, nothing of what was shown or typed stays.
  return html`
    ${!ended && html`<a class="skip" href="#main" onClick=${skip}>Skip to the page</a>`}
    <div class="shell" key=${[who.id, who.scope, ...who.rights].join("\n")} hidden=${ended}>
      ${narrow
        ? html`<header class="topbar">
            <${Button} kind="quiet" icon="menu" label="Menu" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(true)} />
            <strong>${address.page?.title ?? "Mnemic"}</strong><span class="muted ellipsis">${address.scope ?? who.scope}</span>
          </header>`
        : html`<aside class="sidebar" aria-label="Sidebar">${sidebar}</aside>`}
      <main id="main" tabindex="-1"><${PageFrame} address=${address} who=${who} go=${go} /></main>
    </div>
    ${narrow && open && html`<${Dialog} title="Menu" side onClose=${() => setOpen(false)}><div class="sidebar">${sidebar}</div><//>`}
    ${question}
    ${ended && html`<${SignIn} onDone=${load} ended above />`}
    <${Toasts} />`;
}

render(html`<${App} />`, document.getElementById("app"));
