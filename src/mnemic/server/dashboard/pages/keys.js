// Keys: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function KeysPage({ scope }) {
  return html`<${Page} title="Keys"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
