// Recall: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function RecallPage({ scope }) {
  return html`<${Page} title="Recall"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
