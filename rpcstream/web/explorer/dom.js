// Elements, texts and files. What a server sends becomes text nodes only: nothing here makes markup out of strings.

let numbers = 0
export const uid = () => `e${++numbers}`

/** Make an element. `on...` are listeners; true and false are properties, the rest attributes. */
export function h(tag, props, ...children) {
  const node = document.createElement(tag)
  for (const [key, value] of Object.entries(props ?? {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value)
    else if (value == null) continue
    else if (typeof value === "boolean" || key === "value") node[key] = value
    else node.setAttribute(key, value)
  }
  node.append(...children.flat().filter((child) => child != null && child !== false))
  return node
}

/** Icons, drawn on 16 by 16 as lines. */
const ICONS = {
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.6 10.6 14 14",
  key: "M5.5 10.5a3.5 3.5 0 1 1 3.3-2.3L14 13.4V14h-2v-1.5h-1.5V11L8.8 9.3M4.6 6.1h.1",
  moon: "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M3.2 12.8l1.1-1.1M11.7 4.3l1.1-1.1",
  copy: "M6 5.5h7.5v8.3H6zM10 5.5V2.2H2.5v8.3H6",
  link: "M6.8 9.2 9.2 6.8M7.5 4.5 9 3a2.8 2.8 0 0 1 4 4l-1.5 1.5M8.5 11.5 7 13a2.8 2.8 0 0 1-4-4l1.5-1.5",
  play: "M4.5 2.8v10.4L13 8z",
  upload: "M8 10.5V2.5M4.8 5.4 8 2.2l3.2 3.2M2.5 10.5v3h11v-3",
  save: "M8 2.2v8M4.8 7.2 8 10.4l3.2-3.2M2.5 10.5v3h11v-3",
  paste: "M5.5 3H3v11h10V3h-2.5M5.5 1.8h5v2.6h-5z",
  zoom: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.6 10.6 14 14M7 5v4M5 7h4",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  camera: "M2 4.8h2.6L5.8 3h4.4l1.2 1.8H14v8.2H2zM8 11.2a2.4 2.4 0 1 0 0-4.8 2.4 2.4 0 0 0 0 4.8z",
}

export function icon(name) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", "svg")
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path")
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" })) node.setAttribute(key, value)
  path.setAttribute("d", ICONS[name])
  node.append(path)
  return node
}

/** A button with an icon before its text; without a text, `label` names it. */
export const iconButton = (name, text, onclick, props) => h("button", { type: "button", onclick, class: text ? "quiet" : "quiet bare", ...props }, icon(name), text && ` ${text}`)

export const button = (text, onclick, props) => h("button", { type: "button", onclick, ...props }, text)

/** One of some ways to look at something, to be chosen; `onPick` gets its name. */
export function segments(label, names, chosen, onPick) {
  const group = uid()
  return h("div", { class: "segments", role: "radiogroup", "aria-label": label }, names.map((name) =>
    h("label", null, h("input", { type: "radio", name: group, checked: name === chosen, onchange: () => onPick(name) }), name)))
}

/** A name as it can be read: cut, and with control and direction characters as their numbers. */
export function shown(name, most = 160) {
  const whole = String(name)
  const text = whole.slice(0, most).replace(
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`,
  )
  return whole.length > most ? `${text}…` : text
}

/** Text that may be long: its beginning, and a button for more of it. */
export function longText(text, tag = "p", first = 1200) {
  const node = h(tag, { class: "text" }, text.slice(0, first))
  if (text.length <= first) return node
  let end = first
  const more = button("", () => {
    node.append(text.slice(end, (end += 50_000)))
    label()
  })
  const label = () => {
    more.hidden = end >= text.length
    more.textContent = `More (${(text.length - end).toLocaleString()} characters)`
  }
  label()
  return h("div", null, node, more)
}

/** Children of a node, made `step` at a time by a button behind them. */
export function lazily(node, items, make, step = 100) {
  let next = 0
  const more = button("", () => add(), { class: "more" })
  function add() {
    for (const end = Math.min(next + step, items.length); next < end; next++) node.append(make(items[next], next))
    more.textContent = `More (${(items.length - next).toLocaleString()})`
    more.hidden = next >= items.length
  }
  add()
  return [node, more]
}

export const sizeOf = (bytes) =>
  bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`

/** The name of a file for what a method gave. */
export const fileName = (method, end) => `${String(method).replace(/[^\w.-]+/g, "-").replace(/^[.-]+/, "").slice(0, 60) || "result"}.${end}`

/** Offer a file to be saved. */
export function save(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name })
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}

/** A big integer for JSON.stringify: exact where the browser can write it so. */
export const exact = (big) => (JSON.rawJSON ? JSON.rawJSON(`${big}`) : Number(big))

/** The value of a JSON text; integers beyond 2^53 are BigInt where the browser shows how they were written. */
export const parseJson = (text) =>
  JSON.parse(text, (_, value, context) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? BigInt(context.source) : value)

/** JSON of any value, for people: cut payloads, exact big integers. */
export function jsonText(value, indent, most = 20_000) {
  const text = JSON.stringify(value, (_, each) => {
    if (typeof each === "bigint") return exact(each)
    if (typeof each === "number" && !Number.isFinite(each)) return `${each}`
    if (each instanceof Blob) return `<${each.type}, ${sizeOf(each.size)}>`
    if (ArrayBuffer.isView(each?.data) && each.dtype) return `<array ${each.dtype} (${each.shape.join(", ")})>`
    if (each instanceof Uint8Array) return `<${sizeOf(each.length)}>`
    return each
  }, indent) ?? "null"
  return text.length > most ? `${text.slice(0, most)}…` : text
}
