// The wire: each call with its messages, sizes and times, like the network panel of a browser.

import { button, h, jsonText, shown, sizeOf } from "./dom.js"

const MOST_CALLS = 300
const FIRST_MESSAGES = 10
const MOST_MESSAGES = 60
const LONGEST = 2000
const PARSED = 20_000 // characters; of longer messages only the head is read

const clock = (time) => new Date(time).toTimeString().slice(0, 8)

/** Milliseconds in words. */
export const took = (time) => (time < 1000 ? `${time.toFixed(1)} ms` : `${(time / 1000).toFixed(1)} s`)

/** The id, the method and the kind of a message: "request", "reply", "error", or "notification". */
function headOf(text) {
  if (text.length <= PARSED) {
    try {
      const { id, method, params, error } = JSON.parse(text)
      if (method === undefined) return { id, kind: error === undefined ? "reply" : "error" }
      if (id !== undefined) return { id, method, kind: "request" }
      return { id: String(method).startsWith("$/") ? params?.id ?? params?.token : undefined, method, kind: "notification" }
    } catch {
      return { kind: "notification" }
    }
  }
  const head = text.slice(0, 400)
  const id = /"(?:id|token)":\s*("[^"]*"|\d+)/.exec(head)?.[1]
  const method = /"method":\s*"([^"\\]{1,200})"/.exec(head)?.[1]
  const isItem = method?.startsWith("$/")
  return { id: id && JSON.parse(id), method, kind: !method ? "reply" : isItem || id === undefined ? "notification" : "request" }
}

/** One call with its messages, or one message that belongs to no call. */
class Exchange {
  #messages = []
  count = 0
  bytes = { in: 0, out: 0 }
  state = ""

  constructor(title, direction, isCall) {
    Object.assign(this, { title, direction, isCall, at: Date.now() })
    if (isCall) this.state = "running"
  }

  add({ direction, text, bytes, binary }) {
    this.began ??= performance.now()
    const time = performance.now() - this.began
    this.count++
    this.bytes[direction] += bytes
    if (this.count === 2) this.waited = time
    this.time = time
    this.#messages.push({ direction, bytes, binary, time, text: String(text ?? "").slice(0, LONGEST), isCut: String(text ?? "").length > LONGEST })
    if (this.#messages.length > MOST_MESSAGES) this.#messages.splice(FIRST_MESSAGES, 1)
  }

  /** The messages as a list; of many, the first and the last ones. */
  get details() {
    const left = this.count - this.#messages.length
    const items = this.#messages.map(({ direction, bytes, binary, time, text, isCut }) => h("li", null,
      h("span", { class: "note" }, `${direction === "out" ? "→ sent" : "← received"} ${sizeOf(bytes)} after ${took(time)}${binary ? ", binary frame" : ""}`),
      h("pre", { tabindex: "0" }, text, isCut ? "…" : "")))
    if (left) items.splice(FIRST_MESSAGES, 0, h("li", { class: "note" }, `${left.toLocaleString()} messages are not kept`))
    return h("ol", { class: "wire" }, items)
  }
}

/** The row of a call in the table, which opens its messages. */
class Row {
  #cells = {}
  #isOpen = false

  constructor(exchange) {
    this.exchange = exchange
    this.open = button("", () => this.#toggle(), { class: "quiet", "aria-expanded": "false" })
    this.open.append(h("span", { class: "name" }, shown(exchange.title, 80)), h("span", { class: "note" }, exchange.direction === "in" ? " from the server" : ""))
    for (const key of ["state", "messages", "sent", "received", "time"]) this.#cells[key] = h("td", { class: key === "state" ? null : "number" })
    this.bar = h("span", { class: "timing", "aria-hidden": "true" }, h("span", { class: "waited" }), h("span", { class: "receiving" }))
    const { state, ...others } = this.#cells
    this.node = h("tr", null, h("td", null, this.open), h("td", { class: "note" }, clock(exchange.at)), state, Object.values(others), h("td", { class: "bar" }, this.bar))
    this.more = h("tr", { hidden: true }, h("td", { colspan: "8" }))
  }

  #toggle() {
    this.#isOpen = !this.#isOpen
    this.open.setAttribute("aria-expanded", String(this.#isOpen))
    this.more.hidden = !this.#isOpen
    this.show()
  }

  /** Show the exchange as it is now; `longest` is the time that fills the bar. */
  show(longest) {
    const { state, count, bytes, time, waited, isCall } = this.exchange
    const texts = { state, messages: String(count), sent: bytes.out ? sizeOf(bytes.out) : "–", received: bytes.in ? sizeOf(bytes.in) : "–", time: isCall && count > 1 ? took(time) : "–" }
    for (const [key, text] of Object.entries(texts)) if (this.#cells[key].textContent !== text) this.#cells[key].textContent = text
    this.#cells.state.className = state === "failed" ? "error" : "note"
    if (longest && isCall && count > 1) {
      const [first, second] = this.bar.children
      first.style.width = `${(100 * waited) / longest}%`
      second.style.width = `${(100 * (time - waited)) / longest}%`
      this.bar.title = `waiting ${took(waited)}, receiving ${took(time - waited)}`
    }
    if (this.#isOpen) this.more.firstChild.replaceChildren(this.exchange.details)
  }
}

/** The view: a row for each call, newest first. */
export class Wire {
  #body = h("tbody")
  #rows = []
  #calls = new Map() // that run, by who made them and their id
  #changed = new Set()
  #isDue = false
  #isPaused = false
  #empty = h("p", { class: "empty" }, "No messages yet. Call a method.")
  #filter = h("input", { type: "search", placeholder: "Filter by method", "aria-label": "Filter by method", oninput: () => this.#draw(true) })
  totals = { in: 0, out: 0, messages: 0 }

  constructor() {
    const pause = h("input", { type: "checkbox", onchange: () => (this.#isPaused = pause.checked) })
    const heads = ["Method", "At", "State", "Messages", "Sent", "Received", "Time", "Waiting, receiving"]
    const table = h("table", null, h("thead", null, h("tr", null, heads.map((each, at) => h("th", { scope: "col", class: at > 2 && at < 7 ? "number" : null }, each)))), this.#body)
    this.node = h("section", null, h("h2", null, "Wire"),
      h("div", { class: "tools" }, this.#filter, h("label", null, pause, " Pause"), button("Clear", () => this.#clear())),
      this.#empty, h("div", { class: "wide wires", tabindex: "0", role: "region", "aria-label": "calls and messages" }, table))
    // What came while another view was open is drawn when this one is.
    new MutationObserver(() => this.node.isConnected && this.#due()).observe(document.getElementById("main"), { childList: true })
  }

  /** A message went or came. */
  take(message) {
    this.totals[message.direction] += message.bytes
    this.totals.messages++
    if (!this.#isPaused) this.#keep(message)
  }

  #keep(message) {
    const text = String(message.text ?? "")
    const { id, method, kind } = headOf(text)
    const { direction } = message
    const other = direction === "in" ? "out" : "in"
    const own = `${direction} ${jsonText(id)}`
    const theirs = `${other} ${jsonText(id)}`
    const isBatch = text.startsWith("[")
    const isOwn = kind === "notification" && /^\$\/(cancelRequest|credit|end)$/.test(method) // of the one who made the call
    const known = kind === "request" || id == null ? null : this.#calls.get(isOwn ? own : theirs)
    const row = known ?? this.#add(new Exchange(isBatch ? "batch" : method ?? "reply", direction, kind === "request"))
    if (kind === "request") this.#calls.set(own, row)
    if (known && (kind === "reply" || kind === "error")) {
      row.exchange.state = kind === "error" ? "failed" : "done"
      this.#calls.delete(theirs)
    }
    row.exchange.add(message)
    this.#changed.add(row)
    this.#due()
  }

  #add(exchange) {
    const row = new Row(exchange)
    this.#rows.unshift(row)
    for (const old of this.#rows.splice(MOST_CALLS)) {
      old.node.remove()
      old.more.remove()
      for (const [key, each] of this.#calls) if (each === old) this.#calls.delete(key)
    }
    this.#body.prepend(row.node, row.more)
    return row
  }

  #due() {
    if (this.#isDue || !this.node.isConnected) return
    this.#isDue = true
    requestAnimationFrame(() => this.#draw())
  }

  #draw(isAll) {
    this.#isDue = false
    const longest = Math.max(1, ...this.#rows.map(({ exchange }) => (exchange.isCall && exchange.time) || 0))
    const word = this.#filter.value.toLowerCase()
    this.#empty.hidden = this.#rows.length > 0
    const isLonger = longest !== this.longest
    this.longest = longest
    for (const row of isAll || isLonger ? this.#rows : this.#changed) row.show(longest)
    for (const row of this.#rows) {
      row.node.classList.toggle("filtered", !row.exchange.title.toLowerCase().includes(word))
      row.more.classList.toggle("filtered", row.node.classList.contains("filtered"))
    }
    this.#changed.clear()
  }

  #clear() {
    this.#rows = []
    this.#calls.clear()
    this.#changed.clear()
    this.#body.replaceChildren()
    this.#draw(true)
  }
}
