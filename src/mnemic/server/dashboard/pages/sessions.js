// Sessions: a list with search and sort, and a conversation as a chat with its tokens and its window.
import { useEffect, useMemo, useState } from "../vendor/preact.js";
import { get } from "../api.js";
import { Button, Card, Empty, ErrorBox, Loading, Page, Select, Text, Time, compact, html, number, plural, useLoad } from "../ui.js";
import { Conversation } from "../sessions/conversation.js";
import { nameOf, parentOf } from "../timeline/kinds.js";

const SORTS = { recent: "Newest", name: "By name", messages: "Messages", tokens: "Tokens" };
const ORDER = {
  recent: (a, b) => (a.newest < b.newest ? 1 : -1),
  name: (a, b) => (a.title ?? a.name).localeCompare(b.title ?? b.name),
  messages: (a, b) => b.messages - a.messages,
  tokens: (a, b) => b.tokens - a.tokens,
};
const FIRST = 100; // How many are loaded at first, and shown while the others come.
const AT_ONCE = 1000;
const MOST = 5000; // How many sessions are listed at most: those with the newest messages.
const SHOWN = 60;

const pageOf = (scope, limit, cursor, signal) => get("/sessions", { scope, order: "recent", limit, cursor }, { signal });

/** The sessions of a scope as useLoad returns them: first some, then all; `counting` says that others are on their way. */
function useSessions(scope) {
  const first = useLoad((signal) => pageOf(scope, FIRST, null, signal), [scope]);
  const rest = useLoad(async (signal) => {
    const items = [];
    let cursor = first.value?.cursor ?? null;
    while (cursor && items.length < MOST) {
      const page = await pageOf(scope, AT_ONCE, cursor, signal);
      items.push(...page.items);
      cursor = page.cursor;
    }
    return { after: first.value, items, more: cursor !== null };
  }, [first.value]);
  const value = useMemo(() => {
    if (!first.value) return undefined;
    const there = rest.value?.after === first.value;
    return { items: there ? [...first.value.items, ...rest.value.items] : first.value.items, more: there && rest.value.more, counting: !there && first.value.cursor !== null };
  }, [first.value, rest.value]);
  return { ...first, value, error: first.error ?? rest.error };
}

export default function SessionsPage({ scope, params, go, who }) {
  const sessions = useSessions(scope);
  const open = params.session ?? null;
  const choose = (path) => go(null, { ...params, session: path, at: null, budget: null });
  return html`<${Page} title="Sessions" about="Conversations as they were stored, and what of them fits into a prompt.">
    <div class="sessions ${open ? "opened" : ""}">
      <${List} scope=${scope} sessions=${sessions} open=${open} params=${params} go=${go} onOpen=${choose} />
      ${open
        ? html`<${Conversation} key=${open} path=${open} params=${params} go=${go} who=${who} onBack=${() => choose(null)} onChanged=${sessions.reload} />`
        : html`<div class="card nothing"><${Empty} title="Choose a session" icon="sessions">Its messages are shown here, with what was archived and summarized.<//></div>`}
    </div>
  <//>`;
}

function List({ scope, sessions, open, params, go, onOpen }) {
  const [most, setMost] = useState(SHOWN);
  const search = params.search ?? "";
  const sort = params.sort in ORDER ? params.sort : "recent";
  const change = (changes) => go(null, { ...params, ...changes }, { replace: true });
  const items = sessions.value?.items;
  const shown = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (one) => `${one.title ?? ""} ${one.scope}`.toLowerCase();
    return (items ?? []).filter((one) => words.every((word) => text(one).includes(word))).sort(ORDER[sort]);
  }, [items, search, sort]);
  useEffect(() => setMost(SHOWN), [search, sort, scope]);
  return html`<${Card} flush aria-label="Sessions" class="card flush session-list">
    <div class="session-search">
      <${Text} label="Search sessions" quiet type="search" placeholder="Title, name, scope" value=${search} onValue=${(value) => change({ search: value })} />
      <${Select} label="Sort by" quiet value=${sort} onValue=${(value) => change({ sort: value })} options=${Object.entries(SORTS)} />
    </div>
    ${sessions.error
      ? html`<${ErrorBox} error=${sessions.error} onRetry=${sessions.reload} />`
      : !items
        ? html`<${Loading} lines=${8} />`
        : !items.length
          ? html`<${Empty} title="No sessions here yet" icon="sessions">A session begins with its first message: <code>scope.session("monday").add("user", "Hello")</code><//>`
          : !shown.length
            ? html`<${Empty} title="No session matches">None of ${plural(items.length, "session")} has these words in its title, name or scope.<//>`
            : html`<p class="muted small session-count" role="status">${shown.length === items.length ? plural(items.length, "session") : `${number(shown.length)} of ${plural(items.length, "session")}`}${sessions.value.more ? ", those with the newest messages" : sessions.value.counting ? " so far …" : ""}</p>
              <ul>${shown.slice(0, most).map((one) => html`<li key=${one.scope}>
                <button type="button" class="session" aria-current=${one.scope === open ? "true" : undefined} onClick=${() => onOpen(one.scope)}>
                  <strong class="ellipsis" dir="auto">${one.title ?? one.name}</strong><${Time} at=${one.newest} />
                  <span class="muted ellipsis">${parentOf(one.scope) || "/"}${one.title ? ` · ${nameOf(one.scope)}` : ""}</span>
                  <span class="muted num">${compact(one.messages)} · ${compact(one.tokens)} tok</span>
                </button></li>`)}</ul>
              ${shown.length > most && html`<div class="more"><${Button} onClick=${() => setMost(most + 4 * SHOWN)}>Show more<//></div>`}`}
  <//>`;
}
