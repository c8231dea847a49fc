// Settings of a recall: their defaults, how a request is made of them, and the panel that changes them.
import { Button, Check, Chips, Slider, Text, html } from "../ui.js";

/** Signals and the design tokens of their colours. */
export const SIGNALS = {
  lexical: "c1", dense: "c2", session: "c5", speaker: "c3", time: "c4", form: "c9", recency: "c7", importance: "c6", graph: "c8",
};
const ABOUT = {
  lexical: "words in common", dense: "closeness of meaning", session: "words of the session", speaker: "who said it", time: "dates and times",
  form: "questions and short turns", recency: "newer is better", importance: "what importance is left", graph: "facts that lead there",
};
const KINDS = ["message", "memory", "note", "fact", "summary", "title"];
const ROLES = ["user", "assistant", "tool", "system"];

export const DEFAULTS = {
  k: 10, weights: {}, kinds: [], roles: [], since: "", until: "", as_of: "", min_importance: "", min_score: 0, metadata: "", diverse: true, traffic: false,
};

/** What differs from the defaults, for an address; "" if nothing does. */
export function pack(settings) {
  const changed = Object.entries(settings).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(DEFAULTS[name]));
  return changed.length ? JSON.stringify(Object.fromEntries(changed)) : "";
}

/** Settings from an address; what is not understood there is left out. */
export function unpack(text) {
  try {
    const given = Object.entries(JSON.parse(text || "{}"));
    const known = given.filter(([name, value]) => name in DEFAULTS && typeof value === typeof DEFAULTS[name] && Array.isArray(value) === Array.isArray(DEFAULTS[name]));
    return { ...DEFAULTS, ...Object.fromEntries(known) };
  } catch {
    return DEFAULTS;
  }
}

const instant = (local) => (local ? new Date(local).toISOString() : null);

/** Metadata from "topic=travel, rank=3": a value is JSON if it can be read as such. */
function metadata(text) {
  const found = {};
  for (const pair of text.split(",").filter((one) => one.includes("="))) {
    const [name, ...rest] = pair.split("=");
    const value = rest.join("=").trim();
    try {
      found[name.trim()] = JSON.parse(value);
    } catch {
      found[name.trim()] = value;
    }
  }
  return Object.keys(found).length ? found : null;
}

/** The arguments of recall that differ from its own defaults, but for `weights`. */
export function filters(settings) {
  const some = (list) => (list.length ? list : null);
  const given = {
    kinds: some(settings.kinds),
    roles: some(settings.roles),
    since: instant(settings.since && `${settings.since}T00:00`),
    until: instant(settings.until && `${settings.until}T23:59:59.999`),
    as_of: instant(settings.as_of),
    min_importance: settings.min_importance === "" ? null : Number(settings.min_importance),
    min_score: settings.min_score || null,
    metadata: metadata(settings.metadata),
    diverse: settings.diverse ? null : false,
    traffic: settings.traffic || null,
  };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null));
}

/** Weights that are not 1. */
export const weights = (settings) => Object.fromEntries(Object.entries(settings.weights).filter(([name, factor]) => name in SIGNALS && factor !== 1));

/** The body of a request. All weights are named, so that the figures of recall do not count what is tried out here. */
export const body = (query, settings, k = settings.k) => ({
  query, k, uses: false, ...filters(settings), weights: { ...Object.fromEntries(Object.keys(SIGNALS).map((name) => [name, 1])), ...weights(settings) },
});

const python = (value) =>
  Array.isArray(value) ? `[${value.map(python).join(", ")}]`
    : value && typeof value === "object" ? `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${python(v)}`).join(", ")}}`
      : value === true ? "True" : value === false ? "False" : value === null ? "None" : JSON.stringify(value);

/** The call in Python that recalls with these settings. */
export function asPython(scope, query, settings) {
  const given = Object.entries({ ...filters(settings), ...(Object.keys(weights(settings)).length ? { weights: weights(settings) } : {}) });
  const times = ["since", "until", "as_of"];
  const options = given.map(([name, value]) => `, ${name}=${times.includes(name) ? `datetime.fromisoformat(${python(value)})` : python(value)}`);
  return `memory.scope(${scope.split("/").filter(Boolean).map(python).join(", ")}).recall(${python(query)}, k=${settings.k}${options.join("")})`;
}

/** The panel: everything that changes a ranking. */
export function SettingsPanel({ settings, onSettings, heading }) {
  const set = (change) => onSettings({ ...settings, ...change });
  const weigh = (name, factor) => set({ weights: { ...settings.weights, [name]: factor } });
  return html`<div class="stack lab-settings">
    <div class="spread">${heading}<${Button} disabled=${pack(settings) === ""} onClick=${() => onSettings(DEFAULTS)}>Reset<//></div>
    <${Slider} label="Hits (k)" min="1" max="50" step="1" value=${settings.k} onValue=${(k) => set({ k })} />
    <fieldset><legend>Weights of signals</legend>
      ${Object.entries(SIGNALS).map(([name, token]) => html`<div key=${name} class="weight" title=${ABOUT[name]}>
        <${Slider} label=${html`<i class="dot ${token}"></i>${name}`} max="3" step="0.05" value=${settings.weights[name] ?? 1} shown=${(factor) => `× ${factor.toFixed(2)}`} onValue=${(factor) => weigh(name, factor)} />
      </div>`)}
    </fieldset>
    <fieldset><legend>Filters</legend>
      <${Chips} label="Kinds" options=${KINDS} value=${settings.kinds} onValue=${(kinds) => set({ kinds })} />
      <${Chips} label="Roles" options=${ROLES} value=${settings.roles} onValue=${(roles) => set({ roles })} />
      <div class="pair">
        <${Text} label="Since" type="date" value=${settings.since} onValue=${(since) => set({ since })} />
        <${Text} label="Until" type="date" value=${settings.until} onValue=${(until) => set({ until })} />
      </div>
      <${Text} label="As of" type="datetime-local" value=${settings.as_of} onValue=${(as_of) => set({ as_of })} hint="What was true then, instead of now." />
      <${Text} label="Least importance" type="number" step="any" value=${settings.min_importance} onValue=${(min_importance) => set({ min_importance })} />
      <${Text} label="Metadata" placeholder="topic=travel" value=${settings.metadata} onValue=${(text) => set({ metadata: text })} />
      <${Slider} label="Least score" step="0.05" value=${settings.min_score} shown=${(score) => score.toFixed(2)} onValue=${(min_score) => set({ min_score })} />
      <${Check} label="Leave out near-duplicates" checked=${settings.diverse} onValue=${(diverse) => set({ diverse })} />
      <${Check} label="Include tool and system messages" checked=${settings.traffic} onValue=${(traffic) => set({ traffic })} />
    </fieldset>
  </div>`;
}
