// Values as they are shown: pictures, arrays, tables, trees that open on demand.

import { NdArray } from "../rpcstream.js"
import { arrayView, isDrawn } from "./arrays.js"
import { drawLines, lineCanvas, liveChart, short } from "./chart.js"
import { button, h, jsonText, lazily, longText, save, shown, sizeOf } from "./dom.js"
import { pictureView } from "./pictures.js"

const isPlain = (value) => typeof value === "object" && value !== null && !Array.isArray(value) && !isRich(value)
const isRich = (value) => value instanceof Blob || value instanceof NdArray || value instanceof Uint8Array
const isNumber = (value) => typeof value === "number" || typeof value === "bigint"

const isShort = (value) =>
  typeof value === "object" && value !== null && Object.keys(value).length < 30 && Object.values(value).every((each) => typeof each !== "object") && jsonText(value).length < 60

/** A node that shows a value. `env.pictures`: what masks may lie over. */
export function valueView(value, env = {}, level = 0) {
  if (value instanceof Blob) return value.type.startsWith("image/") ? pictureView(value, env) : bytesView(value)
  if (value instanceof NdArray) return arrayView(value, env)
  if (value instanceof Uint8Array) return bytesView(new Blob([value]))
  if (typeof value === "string") return longText(value, "pre")
  if (level > 1 && isShort(value)) return h("code", null, jsonText(value))
  if (Array.isArray(value)) return listView(value, env, level)
  if (isPlain(value) && level === 0 && isScores(value)) return barsView(value)
  if (isPlain(value)) return branch(`{${Object.keys(value).length}}`, Object.entries(value), env, level)
  if (level === 0 && value != null) return h("p", { class: "scalar" }, isNumber(value) ? numberNode(value) : h("code", null, String(value)))
  return h("code", null, value === undefined ? "null" : String(value))
}

/** A number with four digits, and all of them on hover. */
const numberNode = (value) => h("span", { class: "value", title: String(value) }, short(value))

/** Numbers by name, such as the probabilities of labels. */
function isScores(value) {
  const all = Object.values(value)
  return all.length > 1 && all.length <= 60 && all.every((each) => typeof each === "number" && each >= 0) && Object.keys(value).every((key) => key.length < 100)
}

function barsView(value) {
  const entries = Object.entries(value)
  const greatest = Math.max(...entries.map(([, each]) => each))
  const isShare = greatest <= 1 && entries.some(([, each]) => each % 1)
  const node = h("div", { class: "bars" })
  for (const [name, each] of entries) {
    const text = isShare ? `${(100 * each).toFixed(1)} %` : short(each)
    node.append(h("span", null, shown(name)), h("meter", { min: 0, max: isShare ? 1 : greatest || 1, value: String(each), "aria-label": shown(name) }, text), h("span", { class: "value", title: String(each) }, text))
  }
  return node
}

/** An item of a stream, on one line. */
function itemNode(value) {
  if (isNumber(value)) return h("code", null, numberNode(value))
  const entries = isPlain(value) ? Object.entries(value) : []
  if (!entries.length || entries.length > 8 || !entries.every(([, each]) => typeof each === "number")) return h("code", null, jsonText(value, 0, 500))
  return h("span", { class: "numbers" }, entries.map(([name, each]) => h("span", null, h("span", { class: "note" }, `${shown(name, 40)} `), numberNode(each))))
}

/** A value in a cell of a table. */
function cell(value, env, level) {
  if (isNumber(value)) return h("td", { class: "number" }, numberNode(value))
  if (typeof value === "string" && value.length < 300) return h("td", null, value)
  return h("td", null, valueView(value, env, level + 2))
}

function bytesView(blob) {
  const text = h("pre", { tabindex: "0" })
  blob.slice(0, 256).arrayBuffer().then((head) => {
    text.textContent = [...new Uint8Array(head)].map((each) => each.toString(16).padStart(2, "0")).join(" ") + (blob.size > 256 ? " …" : "")
  })
  return h("figure", null, text, h("figcaption", null, sizeOf(blob.size)), button("Save", () => save("result.bin", blob)))
}

function listView(value, env, level) {
  if (value.length > 0 && value.slice(0, 100).every(isPlain)) return tableView(value, env, level)
  const all = branch(`[${value.length}]`, value.map((each, at) => [at, each]), env, level)
  if (value.length < 3 || !value.every(isNumber)) return all
  const canvas = lineCanvas()
  requestAnimationFrame(() => drawLines(canvas, { "": value }))
  return h("div", null, canvas, h("pre", { tabindex: "0" }, jsonText(value.slice(0, 200)), value.length > 200 ? " …" : ""))
}

function tableView(list, env, level) {
  const keys = [...new Set(list.slice(0, 200).flatMap((each) => Object.keys(each)))].slice(0, 40)
  const body = h("tbody")
  const row = (each) => h("tr", null, keys.map((key) => isPlain(each) && Object.hasOwn(each, key) ? cell(each[key], env, level) : h("td")))
  const [, more] = lazily(body, list, row, 50)
  const head = h("thead", null, h("tr", null, keys.map((key) => h("th", { scope: "col" }, shown(key)))))
  return h("div", null, h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "table" }, h("table", null, head, body)), more)
}

/** The members of a list or an object, made when it is opened. */
function branch(text, members, env, level) {
  const leaf = (value) => (typeof value === "object" && value !== null) || String(value).length > 200
  const item = ([key, value]) => {
    const view = valueView(value, env, level + 1)
    return leaf(value) ? h("li", null, h("span", { class: "key" }, shown(key)), view) : h("li", null, h("span", { class: "key" }, shown(key)), " ", h("code", null, jsonText(value)))
  }
  const node = h("details", { class: "tree", ontoggle: () => fill() }, h("summary", null, text))
  let isFilled = false
  function fill() {
    if (isFilled || !node.open) return
    isFilled = true
    const list = h("ul")
    node.append(...lazily(list, members, item))
  }
  node.open = level < 2 && members.length > 0 && members.length <= 100
  fill()
  return node
}

const MOST_ITEMS = 100

/** The items of a stream as they come: how many, the last ones, and a line where they are numbers. */
export function streamView(env) {
  const status = h("p", { class: "note" })
  const list = h("ol", { class: "items", tabindex: "0", "aria-label": "items" })
  const node = h("div", null, status, list)
  const chart = liveChart()
  node.insertBefore(chart.node, list)
  const started = performance.now()
  let [count, last, newest, isDue, isThinned] = [0, null, null, false, false]
  function draw() {
    isDue = false
    const rate = count / (performance.now() - started) * 1000
    status.textContent = `${count.toLocaleString()} items${credit} · ${short(rate)} items/s${isThinned ? ` · the last ${MOST_ITEMS} are listed` : ""}`
    while (list.children.length > MOST_ITEMS) list.firstChild.remove()
    if (isFollowed) list.scrollTop = list.scrollHeight
    chart.draw()
    if (newest === null) return
    if (!last) node.insertBefore((last = h("div")), list)
    last.replaceChildren(valueView(newest, env))
    newest = null
  }
  let isFollowed = true // until the reader scrolls up
  for (const kind of ["wheel", "touchmove", "keydown"]) list.addEventListener(kind, () =>
    requestAnimationFrame(() => (isFollowed = list.scrollTop + list.clientHeight > list.scrollHeight - 40)))
  let credit = ""
  const due = () => {
    if (!isDue) requestAnimationFrame(draw)
    isDue = true
  }
  return {
    node,
    add(value) {
      count++
      chart.add(value)
      if (value instanceof Blob || (value instanceof NdArray && isDrawn(value) && value.data.length > 1)) {
        newest = value // pictures and arrays: the newest one alone, in one place
      } else list.append(h("li", { value: String(count) }, itemNode(value)))
      isThinned ||= list.children.length > MOST_ITEMS
      if (list.children.length > 300) list.firstChild.remove()
      due()
    },
    credit(left) {
      credit = ` · credit ${left}`
      due()
    },
    get count() {
      return count
    },
  }
}
