// The calls that were made, kept for the tab, and the differences between two of them.

import { button, h, jsonText, parseJson, shown } from "./dom.js"

const MOST_CALLS = 50
const MOST_TEXT = 8000
const MOST_ROWS = 200
const isBranch = (value) => typeof value === "object" && value !== null && !ArrayBuffer.isView(value) && Object.keys(value).length > 0

/** Whether the text of a value has more than about `most` characters, without writing it. */
function isLong(value, most) {
  let left = most
  const count = (each) => {
    left -= typeof each === "string" ? each.length : 2
    if (!isBranch(each) || ArrayBuffer.isView(each.data)) return
    for (const key of Array.isArray(each) ? each.keys() : Object.keys(each)) {
      if (left <= 0) return
      left -= Array.isArray(each) ? 0 : key.length + 3
      count(each[key])
    }
  }
  count(value)
  return left <= 0
}

/** A value as text for the history; "" if it is too long to keep. */
export function kept(value) {
  const text = isLong(value, MOST_TEXT) ? "" : jsonText(value, 0, Infinity)
  return text.length > MOST_TEXT ? "" : text
}

/** Add each leaf of a value by its path; the depth is limited because a server may nest without end. */
function leaves(value, path, found, level = 0) {
  if (!isBranch(value) || level > 24) return found.set(path, jsonText(value, 0, 300))
  for (const [key, each] of Object.entries(value)) leaves(each, Array.isArray(value) ? `${path}[${key}]` : `${path}.${key}`, found, level + 1)
  return found
}

function leavesOf({ params, result, outcome }) {
  const found = new Map([["outcome", String(outcome).split(",")[0]]])
  for (const [name, text] of [["params", params], ["result", result]]) if (text) leaves(parseJson(text), name, found)
  return found
}

/** The paths at which two calls differ: `[path, first, second]`; undefined where a call has no such path. */
function differences(first, second) {
  const [left, right] = [leavesOf(first), leavesOf(second)]
  return [...new Set([...left.keys(), ...right.keys()])]
    .filter((path) => left.get(path) !== right.get(path)).map((path) => [path, left.get(path), right.get(path)])
}

const titleOf = ({ method, time }) => `${shown(method, 60)} at ${time}`
/** Pictures, arrays and bytes are kept as their type and size, in angle brackets. */
const hasPayload = (each) => /"<(array |[\w.+-]+\/|\d)/.test(`${each.params}${each.result}`)
const isCut = (each) => each.params === "" || each.result === ""

/** A stream and a call that was stopped have no result. */
const isStream = (each) => each.result === undefined && String(each.outcome).startsWith("done")

/** The table of differences between two calls. */
function diffView(first, second) {
  const rows = differences(first, second)
  const heads = ["Where", titleOf(first), titleOf(second)].map((each) => h("th", { scope: "col" }, each))
  const cell = (text) => h("td", null, text === undefined ? h("span", { class: "note" }, "not there") : h("code", null, shown(text, 300)))
  const body = rows.slice(0, MOST_ROWS).map(([path, left, right]) => h("tr", null, h("td", { class: "name" }, shown(path, 200)), cell(left), cell(right)))
  const table = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "differences" }, h("table", null, h("thead", null, h("tr", null, heads)), h("tbody", null, body)))
  return h("section", { class: "diff" }, h("h3", null, "Differences"),
    rows.length ? table : h("p", { class: "note" }, "No differences found."),
    rows.length > MOST_ROWS && h("p", { class: "note" }, `The first ${MOST_ROWS} of ${rows.length} differences.`),
    (hasPayload(first) || hasPayload(second)) && h("p", { class: "note" }, "Pictures, arrays and bytes are compared by type and size only."),
    (isStream(first) || isStream(second)) && h("p", { class: "note" }, "Items of streams are not compared."),
    (isCut(first) || isCut(second)) && h("p", { class: "note" }, "Arguments or results over 8,000 characters are not compared."))
}

/** The calls that were made, newest first. */
export class History {
  #list = h("ul", { class: "plain history" })
  #diff = h("div", { "aria-live": "polite" })
  #hint = h("p", { class: "note" })
  #all = []
  #chosen = []

  constructor() {
    this.node = h("section", null, h("h2", null, "History"), this.#hint, button("Clear", () => {
      this.#all = []
      this.#keep()
    }), this.#diff, this.#list)
    try {
      this.#all = JSON.parse(sessionStorage.getItem("rpc-history") ?? "[]")
    } catch {}
    this.#show()
  }

  add(entry) {
    this.#all = [{ ...entry, time: new Date().toTimeString().slice(0, 8) }, ...this.#all].slice(0, MOST_CALLS)
    this.#keep()
  }

  #keep() {
    try {
      sessionStorage.setItem("rpc-history", JSON.stringify(this.#all))
    } catch {}
    this.#show()
  }

  /** Choose a call or not; of three, the one that was chosen first is released. */
  #choose(entry, isChosen) {
    this.#chosen = [...this.#chosen.filter((each) => each !== entry), ...(isChosen ? [entry] : [])].slice(-2)
    this.#compare()
  }

  #compare() {
    this.#list.querySelectorAll("input").forEach((box, at) => (box.checked = this.#chosen.includes(this.#all[at])))
    const [first, second] = this.#all.filter((each) => this.#chosen.includes(each)).reverse()
    this.#diff.replaceChildren(...(second ? [diffView(first, second)] : []))
  }

  #show() {
    this.#chosen = this.#chosen.filter((each) => this.#all.includes(each))
    this.#list.replaceChildren(...this.#all.map((entry) => {
      const { link, method, time, outcome } = entry
      const box = h("input", { type: "checkbox", "aria-label": `Compare ${titleOf(entry)}`, onchange: () => this.#choose(entry, box.checked) })
      return h("li", null, box, ` ${time} `, h("a", { href: link }, shown(method)), h("span", { class: "note" }, ` ${outcome}`))
    }))
    this.#hint.textContent = this.#all.length ? "Select two calls to compare their arguments and results." : "No calls yet. Open a method and call it."
    this.#compare()
  }
}
