// The start page: what this server is, how to connect, and its methods as cards.

import { WAYS } from "./copy.js"
import { h, shown } from "./dom.js"
import { codePanel, markdown } from "./markup.js"
import { signature } from "./signature.js"

/** The badges of a method: what a caller has to know before its form is open. */
export const badges = (method) => [
  method["x-stream"] === true && h("span", { class: "badge" }, "stream"),
  method["x-idempotent"] === true && h("span", { class: "badge", title: "Calling it twice does no harm" }, "idempotent"),
  method["x-allow"] && h("span", { class: "badge" }, "restricted"),
  method.deprecated && h("span", { class: "badge warn" }, "deprecated"),
].filter(Boolean)

const card = (method, schemas, href) => h("li", null, h("a", { class: "method-card", href },
  typeof method.summary === "string" && method.summary && h("span", { class: "summary" }, shown(method.summary, 200)),
  signature(method, schemas),
  h("span", { class: "badges" }, badges(method))))

/** The start page as a node; `groups` are pairs of a name and its methods, as many as are to be shown. */
export function startView({ info = {}, groups, count, schemas, hrefOf, address, url, hasToken }) {
  const [title, version, description] = [info.title, info.version, info.description].map((each) => (typeof each === "string" ? each : ""))
  const example = groups.flatMap(([name, members]) => (name === "rpc" ? [] : members)).find((each) => !each.deprecated && (each.params ?? []).every?.((param) => !param?.required)) ?? { name: "rpc.discover" }
  const isStream = example["x-stream"] === true
  const code = codePanel(Object.keys(WAYS), (way) => WAYS[way]({ method: example.name, params: {}, address, url, isStream, hasToken }), "how to connect")
  const head = h("header", { class: "start-head" },
    h("div", null,
      h("h2", null, shown(title || "Methods", 120), version && version !== "0" && h("span", { class: "badge" }, shown(version, 40))),
      description ? markdown(description) : h("p", { class: "note" }, "Choose a method to see its form, call it, and copy the call as code.")),
    h("div", null, h("h3", null, "Connect"), code.node))
  const sections = groups.map(([name, members]) => {
    const list = h("ul", { class: "cards" }, members.map((each) => card(each, schemas, hrefOf(each.name))))
    if (name === "rpc") return h("details", null, h("summary", null, "Built-in methods"), list)
    return h("section", null, groups.length > 1 && h("h3", null, shown(name || "Methods", 60)), list)
  })
  const more = count > groups.reduce((sum, [, members]) => sum + members.length, 0)
  const none = !count && h("p", { class: "empty" }, "This server has no methods yet.")
  return h("article", { class: "start" }, head, none, sections, more && h("p", { class: "note" }, "Search finds the others."))
}
