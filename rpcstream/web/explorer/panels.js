// The views beside the methods: events, the hub, and questions of the server.

import { button, h, jsonText, lazily, parseJson, save, shown } from "./dom.js"
import { hubMap } from "./hubmap.js"
import { valueView } from "./values.js"

const MOST_EVENTS = 1000
const clock = (time = new Date()) => time.toTimeString().slice(0, 8)

/** Subscriptions, and the log of their events, which is kept while the page is open. */
export class Events {
  #log = []
  #open = new Map()
  #list = h("ul", { class: "plain" })
  #body = h("tbody")
  #count = h("p", { class: "note", role: "status" })

  constructor(client) {
    this.client = client
    const pattern = h("input", { type: "text", id: "pattern", value: ">", spellcheck: "false" })
    const form = h("form", { class: "tools", onsubmit: (event) => {
      event.preventDefault()
      this.subscribe(pattern.value.trim())
    } }, h("label", { for: "pattern" }, "Topic or pattern (* one level, > all below)"), pattern, h("button", { class: "main" }, "Subscribe"))
    const keep = button("Save the log", () => save("events.jsonl", new Blob(this.#log)))
    const clear = button("Clear", () => {
      this.#log = []
      this.#body.replaceChildren()
      this.#tell()
    })
    const head = h("thead", null, h("tr", null, ["Time", "Topic", "Value"].map((each) => h("th", { scope: "col" }, each))))
    const table = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "events" }, h("table", null, head, this.#body))
    this.node = h("section", null, h("h2", null, "Events"), form, this.#list, this.#count, h("div", { class: "tools" }, keep, clear), table)
    this.#tell()
  }

  #tell() {
    this.#count.textContent = `${this.#log.length} events in the log`
  }

  async subscribe(pattern) {
    if (!pattern || this.#open.has(pattern)) return
    const stop = new AbortController()
    const error = h("span", { class: "error" })
    const line = h("li", { class: "row" }, h("span", { class: "name" }, shown(pattern)), button("Stop", () => stop.abort(), { "aria-label": `Stop ${shown(pattern)}` }), error)
    this.#open.set(pattern, stop)
    this.#list.append(line)
    try {
      for await (const { topic, value } of this.client().subscribe(pattern, { signal: stop.signal })) this.#add(topic, value)
      line.remove()
    } catch (failure) {
      if (stop.signal.aborted) line.remove()
      else {
        error.textContent = shown(failure.message, 400)
        line.querySelector("button").onclick = () => line.remove()
      }
    } finally {
      this.#open.delete(pattern)
    }
  }

  #add(topic, value) {
    const entry = { time: new Date().toISOString(), topic, value }
    const text = jsonText(entry, 0, Infinity)
    this.#log.push(`${text.length < 20_000 ? text : jsonText({ ...entry, value: text.slice(0, 20_000) }, 0, Infinity)}\n`)
    if (this.#log.length > MOST_EVENTS) this.#log.shift()
    // Of older events only the text is kept, since their pictures and arrays may be large.
    const older = this.#body.children[20]?.lastChild
    older?.replaceChildren(h("code", null, older.title))
    this.#body.prepend(h("tr", null, h("td", null, clock()), h("td", { class: "name" }, shown(topic)), h("td", { title: jsonText(value, 0, 300) }, valueView(value, {}, 2))))
    if (this.#body.children.length > 200) this.#body.lastChild.remove()
    this.#tell()
  }
}

/** Who is connected to a hub, what they offer, and the calls in flight; asked for while it is shown. */
export class Hub {
  #map = h("div")
  #clients = h("div")
  #totals = h("p", { class: "note" })
  #log = h("ol", { class: "items", tabindex: "0", "aria-label": "events of the hub" })
  #error = h("p", { class: "error" })

  constructor(client, onChange) {
    this.client = client
    this.onChange = onChange
    this.node = h("section", null, h("h2", null, "Hub"), this.#totals, this.#error, this.#map, this.#clients, h("h3", null, "Events of the hub"), this.#log)
    setInterval(() => this.node.isConnected && !document.hidden && this.refresh(), 1500)
  }

  async refresh() {
    try {
      const [clients, stats] = await Promise.all([this.client().call("rpc.clients"), this.client().call("rpc.stats")])
      const flight = clients.reduce((sum, each) => sum + each.in_flight, 0)
      this.#totals.textContent = `${clients.length} connections · ${flight} calls in flight · ${stats.calls_forwarded ?? 0} calls passed on · ${stats.calls_held ?? 0} held`
      this.#map.replaceChildren(hubMap(clients))
      const columns = ["name", "address", "state", "in_flight", "calls_made", "calls_served", "methods"]
      const text = (each, key) => (key === "methods" ? shown(each.methods.join(", "), 300) : shown(each[key] ?? "–"))
      const body = h("tbody")
      const [, more] = lazily(body, clients, (each) => h("tr", null, columns.map((key) => h("td", null, text(each, key)))))
      const head = h("thead", null, h("tr", null, ["Name", "Address", "State", "In flight", "Made", "Served", "Offers"].map((each) => h("th", { scope: "col" }, each))))
      this.#clients.replaceChildren(h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "clients of the hub" }, h("table", null, head, body)), more)
      this.#error.textContent = ""
    } catch (failure) {
      this.#error.textContent = shown(failure.message, 400)
    }
  }

  /** Follow the hub's own events; `onChange` when methods come or go. */
  async follow(signal) {
    try {
      for await (const { topic, value } of this.client().subscribe("rpc.hub.>", { signal })) {
        this.#log.prepend(h("li", null, `${clock()} ${topic.slice(8)} ${jsonText(value, 0, 300)}`))
        if (this.#log.children.length > 200) this.#log.lastChild.remove()
        if (this.node.isConnected) this.refresh()
        this.onChange()
      }
    } catch {} // not permitted, or the connection has ended
  }
}

/** Ask the person for the answer to a call of the server. At most 8 wait; more are refused. */
export function ask(place, method, params, RpcError, signal) {
  if (place.children.length >= 8) throw new RpcError(-32002, "too many questions wait here")
  return new Promise((resolve, reject) => {
    const id = `a${Date.now()}${Math.random()}`
    const text = h("textarea", { id, rows: 1, spellcheck: "false" }, "null")
    const error = h("p", { class: "error" })
    const end = (settle, value) => {
      card.remove()
      settle(value)
    }
    const answer = () => {
      try {
        end(resolve, parseJson(text.value))
      } catch (failure) {
        error.textContent = `not JSON: ${failure.message}`
      }
    }
    const card = h("form", { class: "card", onsubmit: (event) => (event.preventDefault(), answer()) },
      h("h3", null, `The server calls ${shown(method)}`), valueView(params ?? null, {}, 1), h("label", { for: id }, "Your answer, as JSON"), text, error,
      h("div", { class: "tools" }, h("button", { class: "main" }, "Answer"), button("Yes (true)", () => end(resolve, true)), button("No (false)", () => end(resolve, false)),
        button("Refuse", () => end(reject, new RpcError(1, "the person at the explorer refused")))))
    signal?.addEventListener("abort", () => card.remove())
    place.append(card)
  })
}
