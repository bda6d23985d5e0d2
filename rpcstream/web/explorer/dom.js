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

export const button = (text, onclick, props) => h("button", { type: "button", onclick, ...props }, text)

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
