// The state of a page about one scope that has nothing there: it leads to the scopes that have something.
import { get } from "./api.js";
import { Empty, html, number, plural, useLoad } from "./ui.js";

const MOST = 20;

/** What is there is called `noun`, and counted as `noun` with an s; `children` say what to do if there is nothing anywhere. */
export function Elsewhere({ scope, noun, page, title, icon, children }) {
  const count = `${noun}s`;
  const found = useLoad(async (signal) => (await get("/scopes", { scope, limit: 1000 }, { signal })).items.filter((one) => one[count] > 0), [scope, count]);
  const some = found.value ?? [];
  if (!some.length) return html`<${Empty} title=${title} icon=${icon}>${children}<//>`;
  return html`<div class="state"><strong>${title}</strong><p class="muted">Scopes below it have some:</p>
    <ul class="elsewhere">${some.slice(0, MOST).map((one) => html`<li key=${one.scope}>
      <a href="#/${page}?scope=${encodeURIComponent(one.scope)}">${one.scope || "/"}</a> <span class="muted small">${plural(one[count], noun)}</span></li>`)}
    </ul>
    ${some.length > MOST && html`<p class="muted small">and ${number(some.length - MOST)} more: choose one at the left.</p>`}
  </div>`;
}
