// Timeline: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function TimelinePage({ scope }) {
  return html`<${Page} title="Timeline"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
