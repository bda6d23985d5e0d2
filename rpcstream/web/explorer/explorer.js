// The page: the list of methods, the form of one of them, its calls and their results, and the other views.

import { Client, NdArray, RpcError } from "../rpcstream.js"
import { lostBanner } from "./banner.js"
import { callCard, foldCards } from "./call.js"
import { WAYS } from "./copy.js"
import { button, exact, h, icon, iconButton, jsonText, parseJson, shown } from "./dom.js"
import { methodForm } from "./forms.js"
import { History, kept } from "./history.js"
import { codePanel, copyText, markdown } from "./markup.js"
import { makePalette } from "./palette.js"
import { ask, Events, Hub } from "./panels.js"
import { picturesIn } from "./pictures.js"
import { Invalid, isRich, steps } from "./schemas.js"
import { signature } from "./signature.js"
import { badges, startView } from "./start.js"
import { paint } from "./theme.js"
import { tokenDialog } from "./token.js"
import { Wire } from "./wire.js"

const STEP = 200
const at = (id) => document.getElementById(id)
const [list, main, search, state] = ["list", "main", "search", "state"].map(at)
const base = new URL(".", location.href.replace(/[?#].*/, ""))
const callsAt = new URL(`.${document.documentElement.dataset.calls}`, base)

let client = null
let document_ = { methods: [] }
let methods = new Map()
let token = sessionStorage.getItem("rpc-token") ?? ""
let view = null // of the method that is shown
let limit = STEP
let groups = [] // of the list: pairs of a name and methods
let follow = null

const wire = new Wire()
const history = new History()
const events = new Events(() => client)
const hub = new Hub(() => client, () => later(load))
const banner = lostBanner()

let waiting = 0
function later(work) {
  clearTimeout(waiting)
  waiting = setTimeout(work, 300)
}

// -- the connection ---------------------------------------------------------------------------------------------------

function connect() {
  follow?.abort()
  client?.close()
  delete state.dataset.wasOpen
  client = new Client(callsAt.href.replace(/^http/, "ws"), {
    token: token || undefined, reconnect: { longest: 10_000 }, timeout: 0, binary: "first", limits: { maxValues: 10_000_000, maxPngPixels: 0 },
    onMessage: (message) => wire.take(message),
    onRetry: (wait) => state.dataset.wasOpen && banner.waits(wait),
    onState: (name) => {
      const isBack = name === "open" && state.dataset.wasOpen
      Object.assign(state.dataset, { state: name, ...(name === "open" && { wasOpen: "yes" }) })
      state.textContent = name
      if (name !== "connecting") banner.hide()
      if (isBack) later(load) // it may be another server than before
    },
    // Requests are asked of the person; what wants no answer stands among the messages only.
    methods: (name) => name.startsWith("rpc.") ? undefined : (params, { id, signal }) =>
      id === undefined ? null : ask(at("asked"), name, params, RpcError, signal),
  })
  load()
}

async function load() {
  const asked = client
  try {
    const found = await asked.call("rpc.discover", undefined, { timeout: 60_000 })
    if (asked !== client) return
    document_ = found
    methods = new Map((Array.isArray(found.methods) ? found.methods : []).filter((each) => typeof each?.name === "string").map((each) => [each.name, each]))
    const { title = "", version = "" } = found.info ?? {}
    document.title = shown(title, 80)
    at("title").textContent = shown(version === "0" ? title : `${title} ${version}`) // "0": it was given none
    const isHub = methods.has("rpc.clients")
    document.querySelector('a[href="#/hub"]').hidden = !isHub
    if (isHub && follow?.client !== asked) {
      follow = Object.assign(new AbortController(), { client: asked })
      hub.follow(follow.signal)
    }
    showList()
    route()
  } catch (error) {
    if (asked !== client) return
    const isUnknown = error.code === -32005 || error.status === 401
    const text = isUnknown && !token ? "This server asks for a token" : shown(error.data?.reason ?? error.message, 200)
    if (isUnknown) client.close() // the server would close it soon, again and again
    if (isUnknown && !token) state.dataset.state = "asks"
    state.textContent = text
    if (isUnknown) tokens.ask(text, token)
  }
}

const tokens = tokenDialog(callsAt.host, (given) => {
  token = given
  sessionStorage.setItem("rpc-token", token)
  connect()
})
at("token").onclick = () => tokens.ask("", token)

// -- the list of methods ----------------------------------------------------------------------------------------------

const isBuiltIn = ({ name }) => name.startsWith("rpc.")

function groupOf(method) {
  const tag = method.tags?.[0]?.name
  if (isBuiltIn(method)) return "rpc"
  if (typeof tag === "string") return tag
  const dot = method.name.indexOf(".")
  return dot > 0 ? method.name.slice(0, dot) : ""
}

function showList() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean)
  const isMatch = (each) => words.every((word) => `${each.name} ${String(each.summary ?? "").slice(0, 300)}`.toLowerCase().includes(word))
  const found = new Map()
  let [count, own] = [0, 0]
  groups = []
  for (const each of methods.values()) {
    if (!isMatch(each)) continue
    count++
    if (!isBuiltIn(each)) own++
    const group = groupOf(each)
    if (!found.has(group)) found.set(group, [])
    found.get(group).push(each)
  }
  const order = [...found].sort(([a], [b]) => (a === "rpc") - (b === "rpc") || (a < b ? -1 : 1))
  at("found").textContent = words.length ? `${count.toLocaleString()} found` : `${own.toLocaleString()} ${own === 1 ? "method" : "methods"}`
  list.replaceChildren()
  let left = limit
  for (const [group, members] of order) {
    if (left <= 0) break
    const shownOnes = members.slice(0, left)
    left -= shownOnes.length
    groups.push([group, shownOnes])
    const [heading, items] = [h("h2", null, nameOf(group)), h("ul", null, shownOnes.map((each) => h("li", null, link(each))))]
    if (group === "rpc" && order.length > 1) list.append(h("details", { open: words.length > 0 }, h("summary", null, heading), items))
    else list.append(...(order.length > 1 ? [heading, items] : [items]))
  }
  if (count > limit) list.append(button(`More (${(count - limit).toLocaleString()})`, () => {
    limit += STEP
    showList()
    list.querySelectorAll("a")[limit - STEP]?.focus()
  }))
  if (view === start) showStart()
  mark()
}

const nameOf = (group) => (group === "rpc" ? "Built-in methods" : shown(group || "Methods", 60))

const hrefOf = (name, params) => `#/method/${encodeURIComponent(name.toWellFormed())}${params ? `?${encodeURIComponent(params)}` : ""}`
const link = (method) => h("a", { href: hrefOf(method.name), class: method.deprecated ? "old" : null, title: shown(String(method.summary ?? ""), 200) || null }, shown(method.name))

function mark() {
  for (const each of document.querySelectorAll("nav a")) {
    const isHere = view ? each.getAttribute("href") === view.href : location.hash.startsWith(each.getAttribute("href")) && each.getAttribute("href") !== "#/"
    if (isHere) each.setAttribute("aria-current", "page")
    else each.removeAttribute("aria-current")
  }
}

search.oninput = () => {
  limit = STEP
  showList()
}

// -- one method -------------------------------------------------------------------------------------------------------

/** Values for a link: JSON, with small arrays as lists; others are left out. */
function linkOf(values) {
  const text = JSON.stringify(values, (_, value) => {
    if (typeof value === "bigint") return exact(value)
    if (value instanceof NdArray) return value.size <= 500 && !/[cMm]/.test(value.dtype) ? value.toArray() : undefined
    return isRich(value) ? undefined : value
  })
  return text.length < 8000 ? text : ""
}

/** The summary of a method and its description, which programs of others begin with the summary again. */
function documentationOf({ summary, description }) {
  const [first, rest] = [summary, description].map((text) => (typeof text === "string" ? text : ""))
  return rest.startsWith(first) ? rest : `${first}\n\n${rest}`.trimEnd()
}

/** How calls are made from elsewhere: the address for clients, and the one for HTTP. */
function addresses() {
  const isRoot = callsAt.pathname === "/" && callsAt.protocol === "http:"
  return { address: isRoot ? callsAt.host : callsAt.href, url: callsAt.href, hasToken: Boolean(token) }
}

function methodView(method) {
  const documentation = documentationOf(method)
  const form = methodForm(method, document_.components?.schemas)
  const outputs = h("section", { "aria-label": "results" }, h("p", { class: "empty" }, "Call the method to see its answer here."))
  const status = h("p", { class: "error", role: "alert" })
  const isStream = Boolean(method["x-stream"])
  const wants = h("input", { type: "checkbox", checked: isStream })
  const errors = Array.isArray(method.errors) ? method.errors : []
  const declared = errors.filter((each) => typeof each?.code === "number" && (each.code < -32999 || each.code > -32000))
  const credit = h("input", { type: "number", min: 1, max: 16, value: "16", title: "Items that the server may send before this page has shown them" })
  const go = h("button", { class: "main", "aria-keyshortcuts": "Control+Enter" }, icon("play"), " Call")
  const textIn = (way) => WAYS[way]({ method: method.name, described: method, schemas: document_.components?.schemas, params: form.draft(), ...addresses(), isStream: isStream && wants.checked })
  const code = codePanel(Object.keys(WAYS), textIn, "the call as text", iconButton("link", "", () => copyLink(), { "aria-label": "Copy a link", title: "Copy a link to this form" }))
  const asking = h("section", { class: "ask", "aria-label": "method" },
    h("h2", null, h("span", { class: "name" }, shown(method.name, 300)), " ", badges(method)),
    signature(method, document_.components?.schemas),
    typeof method["x-deprecated"] === "string" && h("p", { class: "error" }, `Deprecated: ${shown(method["x-deprecated"], 300)}`),
    Array.isArray(method["x-clients"]) && h("p", { class: "note" }, `Offered by ${shown(method["x-clients"].join(", "))}`),
    documentation && markdown(documentation),
    h("form", { novalidate: true, onsubmit: (event) => {
      event.preventDefault()
      call()
    }, oninput: changed, onchange: changed }, form.node,
      h("div", { class: "tools call" }, go, h("kbd", null, "Ctrl ⏎"), ...examples(method, form, () => refreshSoon())),
      isStream && h("details", { class: "options" }, h("summary", null, "Stream"), h("div", { class: "tools" }, h("label", null, wants, " Item by item"), h("label", null, "Credit ", credit)))),
    status,
    typeof method.result?.description === "string" && method.result.description && h("div", { class: "returns" }, h("h3", null, "Returns"), markdown(method.result.description)),
    declared.length > 0 && h("div", { class: "returns" }, h("h3", null, "Errors"), h("ul", null, declared.slice(0, 50).map(({ code: number, message }) => h("li", null, h("code", null, String(number)), ` ${shown(message, 200)}`)))))
  const answer = h("section", { class: "answer", "aria-label": "answer" }, code.node, outputs)
  const node = h("article", { class: "method" }, asking, answer)
  let isDue = false
  function changed() {
    status.textContent = ""
    refreshSoon()
  }
  function refreshSoon() {
    if (!isDue) setTimeout(() => {
      isDue = false
      code.refresh()
    }, 60)
    isDue = true
  }

  function read() {
    status.textContent = ""
    try {
      const values = form.values()
      return { values, params: form.params(values) }
    } catch (error) {
      if (!(error instanceof Invalid)) throw error
      form.fail(error.path, error.message)
      status.textContent = `Not called: ${shown(error.path.join("."), 100)}: ${shown(error.message, 300)}`
      foldCards(outputs)
      return null
    }
  }

  function copyLink() {
    const given = read()
    if (!given) return
    const link = hrefOf(method.name, linkOf(given.values))
    globalThis.history.replaceState(null, "", link)
    copyText(`${base.href.replace(/\/$/, "")}/docs${link}`, code.said)
  }

  const actions = [
    { text: `Call ${method.name}`, more: "Ctrl+Enter", icon: "play", run: call },
    { text: "Copy a link to this form", icon: "link", run: copyLink },
    ...Object.keys(WAYS).map((way) => ({ text: `Copy the call as ${way}`, icon: "copy", run: () => copyText(textIn(way), code.said) })),
    { text: "Reset the form", icon: "close", run: resetForm },
  ]

  async function call() {
    const given = read()
    if (!given) return
    const pictures = await picturesIn(given.values)
    const card = callCard({ client, wire, method, params: given.params }, { values: given.values, pictures, isStream: isStream && wants.checked, credit: Number(credit.value) || 16 }, (error) => {
      const text = error.data?.reason ?? error.message
      const path = steps(error.data?.path)
      if (!path.length && error.data?.parameter !== undefined) path.push(error.data.parameter)
      if (path.length) form.fail(path, String(text))
    }, (outcome, result) => {
      foldCards(outputs, outputs.querySelector(".card"))
      history.add({ method: method.name, link: hrefOf(method.name, linkOf(given.values)), outcome, params: kept(given.values), ...(result !== undefined && { result: kept(result) }) })
    })
    outputs.querySelector(".empty")?.remove()
    if (answer.firstChild !== outputs) answer.prepend(outputs) // from the first call on, the answer comes before the code
    foldCards(outputs)
    outputs.prepend(card)
    if (outputs.children.length > 10) outputs.lastChild.remove()
  }

  return { node, form: { set(values) {
    form.set(values)
    refreshSoon()
  } }, call, actions, href: hrefOf(method.name) }
}

/** The view of a method; one with a form for anything where its description makes no sense. */
function viewOf(method) {
  try {
    return methodView(method)
  } catch (error) {
    const plain = methodView({ name: method.name, params: [{ name: "params", "x-rest": "named" }] })
    plain.node.prepend(h("p", { class: "error" }, `Its description cannot be read: ${shown(error.message, 200)}`))
    return plain
  }
}

function examples(method, form, onSet) {
  const all = Array.isArray(method.examples) ? method.examples.slice(0, 8) : []
  return all.filter((each) => Array.isArray(each?.params)).map((each) => button(`Example: ${shown(each.name ?? "", 40)}`, () => {
    form.set(Object.fromEntries(each.params.map((one) => [one?.name, one?.value])))
    onSet()
  }))
}

// -- which view -------------------------------------------------------------------------------------------------------

const VIEWS = { events, hub, wire, history }
const start = { href: "#/", call() {}, form: { set() {} } }

/** Show the form of the method again as it was at first. */
function resetForm() {
  const { href } = view
  view = null
  globalThis.history.replaceState(null, "", href)
  route()
}

/** What the command palette offers: actions, and then methods. */
function offers() {
  const go = (text, hash) => ({ text, icon: "link", run: () => (location.hash = hash) })
  const isHub = methods.has("rpc.clients")
  const offered = [...methods.values()].toSorted((a, b) => isBuiltIn(a) - isBuiltIn(b)).map(({ name, summary }) => ({ text: name, more: String(summary ?? ""), icon: "play", isMethod: true, run: () => (location.hash = hrefOf(name)) }))
  const stop = document.querySelector(".stop")
  return [
    ...(stop ? [{ text: "Stop the call", more: "Escape", icon: "close", run: () => stop.click() }] : []),
    ...(view?.actions ?? []),
    go("Start page", "#/"), go("Events", "#/events"), ...(isHub ? [go("Hub", "#/hub")] : []), go("Wire", "#/wire"), go("History", "#/history"),
    { text: "Enter a token", icon: "key", run: () => at("token").click() },
    { text: at("theme").title, icon: "moon", run: () => at("theme").click() },
    { text: "Search the list of methods", more: "/", icon: "search", run: () => search.focus() },
    ...offered,
  ]
}

function showStart() {
  const schemas = document_.components?.schemas
  main.replaceChildren(startView({ info: document_.info, groups, count: methods.size, schemas, hrefOf, ...addresses() }))
}

function route() {
  const [, name, rest = ""] = /^#\/(\w*)\/?(.*)$/s.exec(location.hash) ?? []
  if (Object.hasOwn(VIEWS, name)) {
    view = null
    if (main.firstChild !== VIEWS[name].node) main.replaceChildren(VIEWS[name].node)
    if (name === "hub") hub.refresh()
    return mark()
  }
  const [path, query] = rest.split("?")
  let wanted = ""
  let values = null
  try {
    wanted = decodeURIComponent(path)
    values = query ? parseJson(decodeURIComponent(query)) : null
  } catch {}
  const method = methods.get(wanted)
  if (!wanted) {
    view = start
    showStart()
  } else if (!method) {
    view = null
    main.replaceChildren(h("p", { class: "empty" }, `There is no method ${shown(wanted)} here.`))
  } else if (view?.href !== hrefOf(wanted) || view.described !== jsonText(method, 0, Infinity)) {
    view = Object.assign(viewOf(method), { name: wanted, described: jsonText(method, 0, Infinity) })
    main.replaceChildren(view.node)
  }
  if (view && values && typeof values === "object") view.form.set(values)
  mark()
}

addEventListener("hashchange", () => {
  route()
  main.scrollTop = 0
})

// -- keys, paste, colours ---------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)
  const hasDialog = document.querySelector("dialog[open]:not(.palette)")
  if (event.key === "k" && (event.ctrlKey || event.metaKey) && !hasDialog) {
    event.preventDefault()
    palette.open()
  } else if (event.key === "/" && !isTyping) {
    event.preventDefault()
    search.focus()
  } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    if (!event.target.closest("#asked, dialog")) view?.call()
  } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) document.querySelector(".stop")?.click()
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (event.target === search || list.contains(event.target))) {
    const links = [...list.querySelectorAll("a")]
    const next = links.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)
    event.preventDefault()
    ;(next < 0 ? search : links[next])?.focus()
  }
})

document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])]
  const place = document.activeElement?.closest?.(".drop") ?? main.querySelector(".drop")
  const isText = event.target.matches("textarea, input") && event.clipboardData.types.includes("text/plain") // of a spreadsheet, with a picture of it
  if (!files.length || !place || isText) return
  event.preventDefault()
  place.dispatchEvent(new CustomEvent("take", { detail: files }))
})
// A file that is dropped beside its place must not replace this page.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault())

const palette = makePalette(offers)
at("token").append(icon("key"))
at("find").append(icon("search"))
at("find").onclick = palette.open
document.body.append(palette.node, tokens.node)
at("page").before(banner.node)

paint(localStorage.getItem("rpc-theme"))

connect()
