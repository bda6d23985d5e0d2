// Tables: columns with a type, sorted by a click on their heads, saved as CSV or JSON.
//
// A table is `{ count, columns }`, a column `{ name, type, at }`, where `at(row)` gives a value; undefined: there is none.
// `at(row, most)` may cut a text off after `most` bytes.

import { inSlices } from "../rpcstream.js"
import { h, iconButton, jsonText, lazily, save, shown } from "./dom.js"

const MOST_COLUMNS = 60
const FOR_TYPES = 200 // rows that are looked at
const MOST_BYTES = 10_000 // of a text that is shown

/** The table of a list of objects. */
export function tableOf(list) {
  const keys = [...new Set(list.slice(0, FOR_TYPES).flatMap((each) => Object.keys(each ?? {})))].slice(0, MOST_COLUMNS)
  const columns = keys.map((name) => ({ name, at: (row) => (list[row] !== null && typeof list[row] === "object" && Object.hasOwn(list[row], name) ? list[row][name] : undefined) }))
  for (const each of columns) each.type = typeOf(list.slice(0, FOR_TYPES).map((_, row) => each.at(row)))
  return { count: list.length, columns }
}

function nameOfType(value) {
  if (typeof value === "bigint" || Number.isInteger(value)) return "int"
  if (typeof value === "string") return /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d|$)/.test(value) ? "date" : "text"
  return { number: "float", boolean: "bool" }[typeof value] ?? (Array.isArray(value) ? "list" : "object")
}

/** The type of a column: that of all its values, "float" for whole and other numbers, "mixed" for others. */
function typeOf(values) {
  const types = new Set(values.filter((each) => each != null).map(nameOfType))
  if (types.size === 2 && types.has("int") && types.has("float")) return "float"
  return types.size > 1 ? "mixed" : ([...types][0] ?? "empty")
}

const isNumeric = ({ type }) => /^(u?int|float|decimal)/.test(type)

/** Compare two values: numbers by size, others as text, missing ones last. */
function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null)
  if (typeof a !== "object" && typeof a === typeof b && typeof a !== "string") return a < b ? -1 : a > b ? 1 : Number.isNaN(a) - Number.isNaN(b)
  const [left, right] = [a, b].map((each) => (typeof each === "object" ? jsonText(each, 0, 200) : String(each)))
  return left.localeCompare(right, undefined, { numeric: true })
}

/** The order of the rows by a column: 1 ascending, -1 descending, 0 as they came. Missing values stay last. */
function sorted(count, column, direction) {
  const order = Array.from({ length: count }, (_, row) => row)
  if (!direction) return order
  const values = order.map((row) => column.at(row, MOST_BYTES))
  const isMissing = (row) => values[row] == null || Number.isNaN(values[row])
  return order.sort((a, b) => (isMissing(a) || isMissing(b) ? isMissing(a) - isMissing(b) : direction * compare(values[a], values[b])) || a - b)
}

/** The node of a table; `cell(value)` makes a td. */
export function tableView(table, cell) {
  const place = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `table of ${table.count} rows` })
  const rest = h("div")
  const heads = []
  const columns = table.columns.slice(0, MOST_COLUMNS)
  const cellOf = (value) => (value === undefined ? h("td") : cell(value))
  const row = (number) => h("tr", null, columns.map(({ at }) => cellOf(at(number, MOST_BYTES))))
  const body = h("tbody")
  function fill(order) {
    body.replaceChildren()
    rest.replaceChildren(lazily(body, order, row, 50)[1])
  }
  const head = (column) => {
    const order = () => (node.getAttribute("aria-sort") === "ascending" ? -1 : node.getAttribute("aria-sort") === "descending" ? 0 : 1)
    const node = h("th", { scope: "col", class: isNumeric(column) ? "number" : null }, h("button", { type: "button", class: "sort", onclick: () => {
      const direction = order()
      for (const each of heads) each.removeAttribute("aria-sort")
      if (direction) node.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending")
      fill(sorted(table.count, column, direction))
      place.scrollTop = 0
    } }, shown(column.name, 60), h("span", { class: "note" }, ` ${shown(column.type, 40)}`)))
    heads.push(node)
    return node
  }
  place.append(h("table", null, h("thead", null, h("tr", null, columns.map(head))), body))
  fill(sorted(table.count, null, 0))
  const more = table.columns.length > MOST_COLUMNS ? `, the first ${MOST_COLUMNS} are shown` : ""
  const said = h("span", { class: "note", role: "status" }, `${table.count.toLocaleString()} rows × ${table.columns.length} columns${more}`)
  const saveAs = async (kind, work) => save(`table.${kind}`, new Blob(await inSlices(work(table)), { type: kind === "csv" ? "text/csv" : "application/json" }))
  return h("div", null, place, rest, h("div", { class: "tools" }, said,
    iconButton("save", "Save .csv", () => saveAs("csv", csv)), iconButton("save", ".json", () => saveAs("json", json), { "aria-label": "Save .json" })))
}

/** A value as a field of CSV (RFC 4180). */
function field(value) {
  const text = value == null ? "" : typeof value === "object" ? jsonText(value, 0, Infinity) : String(value)
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

function* csv({ count, columns }) {
  const parts = [`${columns.map(({ name }) => field(name)).join(",")}\n`]
  for (let row = 0; row < count; row++) {
    parts.push(`${columns.map(({ at }) => field(at(row))).join(",")}\n`)
    yield
  }
  return parts
}

function* json({ count, columns }) {
  const parts = ["["]
  for (let row = 0; row < count; row++) {
    const members = columns.filter(({ at }) => at(row) !== undefined).map(({ name, at }) => `${JSON.stringify(name)}: ${jsonText(at(row), 0, Infinity)}`)
    parts.push(`${row ? ",\n" : ""}{${members.join(", ")}}`)
    yield
  }
  return [...parts, "]\n"]
}
