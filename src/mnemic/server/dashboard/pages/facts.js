// Facts: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function FactsPage({ scope }) {
  return html`<${Page} title="Facts"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
