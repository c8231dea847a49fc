// Sessions: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function SessionsPage({ scope }) {
  return html`<${Page} title="Sessions"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
