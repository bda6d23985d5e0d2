// Values as they are shown: pictures, arrays, tables, bars, and trees.

import { NdArray } from "../rpcstream.js"
import { isNumeric } from "./arrays.js"
import { arrayView } from "./arrayview.js"
import { isFrame, readTable } from "./arrow.js"
import { bytesView, kindOf, textView } from "./bytes.js"
import { liveChart, numberNode, short } from "./chart.js"
import { h, jsonText, lazily, longText, shown } from "./dom.js"
import { isPicture, pictureView } from "./pictures.js"
import { isObject, isRich } from "./schemas.js"
import { tableOf, tableView } from "./table.js"
import { treeView } from "./tree.js"

const MOST_NUMBERS = 1_000_000 // of a list that is drawn
const FOR_CHART = 8 // numbers
const LONG_TEXT = 120 // characters
const MOST_RATIO = 100 // of the largest bar to the smallest

const isPlain = (value) => isObject(value) && !isRich(value)
const isNumber = (value) => typeof value === "number" || typeof value === "bigint"
const isRows = (value) => Array.isArray(value) && value.length > 0 && value.slice(0, 100).every(isPlain)

/** What is better shown by a view of its own than as text in a tree. */
const isSeen = (value) => isRich(value) || (Array.isArray(value) && value.length > 1 && (isRows(value) || value.slice(0, 8).every(isRich)))

/** Whether members of a value have views of their own. */
const isRecord = (value) => Object.keys(value).length <= 100 && Object.values(value).some((each) => isSeen(each) || (isPlain(each) && Object.values(each).slice(0, 20).some(isRich)))

const isShort = (value) =>
  typeof value === "object" && value !== null && Object.keys(value).length < 30 && Object.values(value).every((each) => typeof each !== "object") && jsonText(value).length < 60

/** A node that shows a value. `env.pictures`: what results may be compared with. `level`: how deep it is in the result. */
export function valueView(value, env = {}, level = 0) {
  if (isPicture(value)) return pictureView(value, env)
  if (value instanceof Blob) return bytesView(value)
  if (value instanceof NdArray) return arrayView(value, env)
  if (value instanceof Uint8Array) return bytesOrPicture(value, env)
  if (isFrame(value)) return frameView(value, env, level)
  if (typeof value === "string") return level === 0 && value.length > LONG_TEXT ? textView(value) : longText(value, "pre")
  if (level > 1 && isShort(value)) return h("code", null, jsonText(value))
  if (Array.isArray(value)) return listView(value, env, level)
  if (isPlain(value)) return objectView(value, env, level)
  const node = isNumber(value) ? numberNode(value) : h("code", null, value === undefined ? "null" : String(value))
  return level === 0 && value != null ? h("p", { class: "scalar" }, node) : node
}

function bytesOrPicture(bytes, env) {
  const { type } = kindOf(bytes)
  return type.startsWith("image/") ? pictureView(new Blob([bytes], { type }), env) : bytesView(bytes)
}

const tree = (value, env, level) => treeView(value, (each) => valueView(each, env, level + 1), level > 0)

function objectView(value, env, level) {
  if (level < 2 && isScores(value)) return barsView(value)
  return level < 4 && isRecord(value) ? recordView(Object.entries(value), env, level) : tree(value, env, level)
}

/** Members one below the other, each with its own view. One that is called a rate is that of the sounds beside it. */
function recordView(entries, given, level) {
  const [, rate] = entries.find(([key, each]) => /rate$|^(sr|fs)$/i.test(key) && isNumber(each)) ?? []
  const env = rate === undefined ? given : { ...given, rate: Number(rate) }
  const item = ([key, value]) => h("li", null, h("span", { class: "key" }, shown(key)), " ", isSimple(value) ? valueView(value, env, level + 1) : h("div", null, valueView(value, env, level + 1)))
  return h("div", null, lazily(h("ul", { class: "record" }), entries, item, 50))
}

const isSimple = (value) => typeof value !== "object" && String(value).length < LONG_TEXT

function frameView(value, env, level) {
  try {
    return tableView(readTable(value.data), (each) => cell(each, env, level))
  } catch (error) {
    return h("div", null, h("p", { class: "note" }, `This table cannot be shown: ${shown(error.message, 200)}.`), bytesView(value.data))
  }
}

function listView(value, env, level) {
  if (isRows(value)) return tableView(tableOf(value), (each) => cell(each, env, level))
  if (value.length > 0 && value.every(isPicture)) return h("div", { class: "gallery" }, lazily(h("div"), value, (each) => pictureView(each, env), 24))
  if (value.length >= FOR_CHART && value.length <= MOST_NUMBERS && value.every(isNumber))
    return arrayView(new NdArray("<f8", [value.length], Float64Array.from(value, Number)), env, "list")
  if (value.length && value.length < FOR_CHART && value.every(isNumber)) return h("p", { class: "scalar" }, "[", value.flatMap((each, at) => [at ? ", " : "", numberNode(each)]), "]")
  return level < 4 && isRecord(value) ? recordView(value.map((each, at) => [`${at + 1}: ${typeOf(each)}`, each]), env, level) : tree(value, env, level)
}

/** The type of a member of a list, in a word. */
function typeOf(value) {
  if (isPicture(value)) return "image"
  if (value instanceof NdArray || Array.isArray(value)) return value instanceof NdArray ? "array" : "list"
  if (value instanceof Blob || value instanceof Uint8Array) return "bytes"
  if (isFrame(value)) return "table"
  return value === null ? "null" : typeof value
}

/** Numbers by name, such as the probabilities of labels. */
function isScores(value) {
  const all = Object.values(value)
  if (!all.every((each) => typeof each === "number" && each >= 0)) return false
  const [least, greatest] = [Math.min(...all.filter(Boolean)), Math.max(...all)]
  const isOfOneKind = greatest <= 1 || greatest < MOST_RATIO * least // else the small ones would have no bar
  return all.length > 1 && all.length <= 60 && isOfOneKind && Object.keys(value).every((key) => key.length < 100)
}

/** Bars in the order of the server, which can be sorted. */
function barsView(value) {
  const entries = Object.entries(value)
  const greatest = Math.max(...entries.map(([, each]) => each))
  const isShare = greatest <= 1 && entries.some(([, each]) => each % 1)
  const node = h("div", { class: "bars" })
  const bar = ([name, each]) => {
    const text = isShare ? `${(100 * each).toFixed(1)} %` : short(each)
    return [h("span", null, shown(name)), h("meter", { min: 0, max: isShare ? 1 : greatest || 1, value: String(each), "aria-label": shown(name) }, text), h("span", { class: "value", title: String(each) }, text)]
  }
  const box = h("input", { type: "checkbox", onchange: () => fill() })
  const fill = () => node.replaceChildren(...(box.checked ? entries.toSorted(([, a], [, b]) => b - a) : entries).flatMap(bar))
  fill()
  const isSorted = entries.every(([, each], at) => !at || each <= entries[at - 1][1])
  return h("div", null, node, !isSorted && h("div", { class: "tools" }, h("label", null, box, " Sort by value")))
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
  if (typeof value === "boolean") return h("td", null, String(value))
  if (value === null) return h("td", { class: "note" }, "null")
  if (typeof value === "string" && value.length < 300) return h("td", { class: value.length < 24 ? "short" : null }, value)
  return h("td", null, valueView(value, env, level + 2))
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
    status.textContent = `${count.toLocaleString()} items · ${Number(rate.toPrecision(3)).toLocaleString()} items/s${isThinned ? ` · the last ${MOST_ITEMS} are listed` : ""}`
    while (list.children.length > MOST_ITEMS) list.firstChild.remove()
    if (isFollowed) list.scrollTop = list.scrollHeight
    chart.draw()
    if (newest === null) return
    if (!last) node.insertBefore((last = h("div")), list)
    play(valueView(newest, { name: env.name }), count)
    newest = null
  }
  /** Show the newest picture when it is ready, so that nothing flickers; one that was overtaken is not shown. */
  async function play(view, number) {
    await view.ready
    if (number < played) return
    played = number
    last.replaceChildren(view)
  }
  let played = 0
  let isFollowed = true // until the reader scrolls up
  for (const kind of ["wheel", "touchmove", "keydown"]) list.addEventListener(kind, () =>
    requestAnimationFrame(() => (isFollowed = list.scrollTop + list.clientHeight > list.scrollHeight - 40)))
  const due = () => {
    if (!isDue) requestAnimationFrame(draw)
    isDue = true
  }
  return {
    node,
    add(value) {
      count++
      chart.add(value)
      if (value instanceof Blob || (value instanceof NdArray && isNumeric(value) && value.data.length > 1)) {
        newest = value // pictures and arrays: the newest one alone, in one place
      } else list.append(h("li", { value: String(count) }, itemNode(value)))
      isThinned ||= list.children.length > MOST_ITEMS
      if (list.children.length > 300) list.firstChild.remove()
      due()
    },
  }
}
