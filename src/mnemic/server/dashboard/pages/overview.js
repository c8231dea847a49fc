// Overview: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function OverviewPage({ scope }) {
  return html`<${Page} title="Overview"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
