// What there is to see of an array: a picture, a heat map, lines or points, a histogram, its values and statistics.

import { inSlices, NdArray, RpcImage } from "../rpcstream.js"
import { nameOf, npy, numbersOf } from "./arrays.js"
import { drawLines, lineCanvas, numberNode, short } from "./chart.js"
import { comparison } from "./compare.js"
import { fileName, h, iconButton, save, segments, shown, sizeOf } from "./dom.js"
import { areClasses, classLegend, paint, regionOf, scaleBar } from "./heatmap.js"
import { histogram } from "./histogram.js"
import { probe, zoomButton } from "./pictures.js"
import { arePoints, scatter } from "./scatter.js"
import { isSound, soundView } from "./sound.js"
import { count, describe } from "./statistics.js"

const MOST_VALUES = 10_000 // that are shown as text, and saved as CSV
const MOST_LINES = 8

/** The node of an array. `env.pictures` are those that it may be compared with; a list has `title` in place of a dtype. */
export function arrayView(array, env = {}, title = nameOf(array.dtype)) {
  const { size } = array
  const caption = h("figcaption", null, `${shown(title, 40)} (${array.shape.join(", ")})`)
  const tools = h("div", { class: "tools" })
  const body = h("div")
  const node = h("figure", { class: "array" }, body, caption, tools)
  tools.append(...downloads(array, env.name ?? "array"))
  const numbers = numbersOf(array)
  if (!numbers || !size) {
    caption.append(` · ${sizeOf(array.data.byteLength)}`)
    if (size && size <= MOST_VALUES) tools.append(h("details", null, h("summary", null, "Values"), valuesText(array)))
    return node
  }
  inSlices(describe(numbers)).then((range) => {
    caption.append(...facts(range, size).flatMap((each) => [" · ", each]), ` · ${sizeOf(array.data.byteLength)}`)
    const ways = waysOf({ array, numbers, range, env, size })
    const names = Object.keys(ways)
    const stage = h("div")
    const show = (name) => stage.replaceChildren(...[ways[name]()].flat())
    body.replaceChildren(...(names.length > 1 ? [segments("Show as", names, names[0], show)] : []), stage)
    if (names.length) show(names[0])
  })
  return node
}

/** What is known about the items, as nodes and texts. */
function facts({ least, greatest, mean, deviation, nans }, size) {
  const exactly = (text, value) => h("span", { title: String(value) }, `${text} ${short(value)}`)
  const known = nans < size ? [`${short(least)} to ${short(greatest)}`, exactly("mean", mean), exactly("std", deviation)] : []
  return [...known, ...(nans ? [`${nans.toLocaleString()} NaN`] : [])]
}

/** The ways to look at an array: functions that make nodes, by their names; the best one first. */
function waysOf(given) {
  const { array, numbers, range, env, size } = given
  const { shape, dtype } = array
  const ways = {}
  if (arePoints(shape, dtype)) ways.Scatter = () => scatter(shape, numbers)
  if (shape.length === 1 && size > 1) ways.Line = () => lines({ "": numbers })
  else if (shape.length > 1) {
    const channels = shape.length >= 3 && [3, 4].includes(shape.at(-1)) ? shape.at(-1) : 1
    ways[channels > 1 ? "Picture" : dtype === "|b1" ? "Mask" : areClasses(dtype, range) ? "Classes" : "Heat map"] = () => layers(given, channels)
    if (shape.length === 2 && Math.min(...shape) <= MOST_LINES && Math.max(...shape) > 2) ways.Lines = () => lines(rowsOf(shape, numbers))
  }
  if (range.nans < size && size > 1) ways.Histogram = () => histogram(numbers, dtype, range)
  if (isSound(array)) ways.Sound = () => soundView(array, numbers, env.rate)
  if (size <= MOST_VALUES) ways.Values = () => valuesText(array)
  return ways
}

function lines(series) {
  const canvas = lineCanvas()
  requestAnimationFrame(() => drawLines(canvas, series))
  return canvas
}

/** The lines of a matrix along its longer side, by their numbers. */
function rowsOf([height, width], data) {
  const isWide = width > height
  const row = (at) => (isWide ? data.subarray(at * width, (at + 1) * width) : data.filter((_, index) => index % width === at))
  return Object.fromEntries(Array.from({ length: Math.min(height, width) }, (_, at) => [`${at} `, row(at)]))
}

/** The last two dimensions as a picture, of which one layer is shown. */
function layers({ array, numbers, range, env, size }, channels) {
  const { dtype, shape } = array
  const pictures = env.pictures ?? []
  const [height, width] = channels > 1 ? shape.slice(-3) : shape.slice(-2)
  const each = height * width * channels
  const layerAt = (at) => ({ data: numbers.subarray(at * each, (at + 1) * each), height, width, channels })
  const colours = dtype === "|b1" ? "mask" : areClasses(dtype, range) ? "classes" : "scale"
  const canvas = h("canvas", { class: "pixels", role: "img", "aria-label": `${channels > 1 ? "picture" : "heat map"}, ${width} by ${height}, from ${short(range.least)} to ${short(range.greatest)}` })
  canvas.style.width = `${width * Math.max(1, Math.floor(320 / width))}px` // a whole number of pixels for each item
  let [layer, isOver, turn] = [layerAt(0), false, 0]
  async function draw() {
    const mine = ++turn
    const image = await inSlices(paint(layer, range, colours, isOver))
    if (mine !== turn) return
    Object.assign(canvas, { width: image.width, height: image.height })
    canvas.getContext("2d", { willReadFrequently: true }).putImageData(image, 0, 0)
  }
  const load = () => ({ width, height, image: canvas, region: regionOf(layer) })
  const isInteger = /[biu]\d$/.test(dtype)
  const first = channels > 1 ? "Side by side" : isInteger && range.least >= 0 ? "Overlay" : "Result"
  const nodes = comparison(canvas, { width, height }, pictures, first, (mode) => {
    isOver = mode === "Overlay" && isInteger && channels === 1
    draw()
  })
  if (!pictures.length) draw()
  const pixel = h("span", { class: "pixel" })
  probe(canvas, load, pixel)
  const bar = h("div", { class: "tools" }, zoomButton(load, { width, height }, pictures), size > each && layerField(size / each, (at) => {
    layer = layerAt(at)
    draw()
  }), pixel)
  return [...nodes, ...(channels > 1 ? [] : [keyOf(numbers, range, colours)]), bar]
}

/** What the colours mean. */
function keyOf(numbers, range, colours) {
  if (colours === "mask" || range.nans === numbers.length) return ""
  if (colours === "scale") return scaleBar(range)
  const place = h("div")
  inSlices(count(numbers, -0.5, range.greatest + 0.5, range.greatest + 1)).then((counts) => place.append(classLegend(counts)))
  return place
}

function layerField(layers, onPick) {
  const number = h("input", { type: "number", min: 0, max: layers - 1, value: "0", oninput: () => {
    const wanted = Number(number.value)
    if (Number.isInteger(wanted) && wanted >= 0 && wanted < layers) onPick(wanted)
  } })
  return h("label", null, `Layer (of ${layers}) `, number)
}

/** Buttons for the natural files of an array. */
function downloads(array, name) {
  const { shape, data } = array
  const files = [iconButton("save", "Save .npy", () => save(fileName(name, "npy"), npy(array)))]
  if (shape.length > 0 && shape.length < 3 && data.length <= MOST_VALUES * 100) files.push(iconButton("save", ".csv", async () => save(fileName(name, "csv"), new Blob(await inSlices(csvRows(array)), { type: "text/csv" })), { "aria-label": "Save .csv" }))
  if (array.dtype === "|b1" && shape.length === 2 && data.length) files.push(iconButton("save", ".png", async () => save(fileName(name, "png"), await maskImage(array).toPng()), { "aria-label": "Save .png" }))
  return files
}

/** A mask as a grey picture of 0 and 255. */
const maskImage = ({ shape: [height, width], data }) => new RpcImage("raw", data.map((each) => each && 255), "L", [width, height], 0)

/** Work for `inSlices`: the rows of an array as lines. */
function* csvRows({ dtype, shape: [height, width = 1], data }) {
  const lines = []
  const each = data.length / height
  for (let row = 0; row < height; row++) {
    lines.push(`${new NdArray(dtype, [width], data.subarray(row * each, (row + 1) * each)).values().join(",")}\n`)
    yield
  }
  return lines
}

/** The items as nested lists. */
const valuesText = (array) => h("pre", { tabindex: "0" }, listNodes(array.toArray()))

function listNodes(list, indent = 1) {
  if (!Array.isArray(list)) return [numberNode(list)]
  const between = Array.isArray(list[0]) ? `,\n${" ".repeat(indent)}` : ", "
  return ["[", ...list.flatMap((each, at) => [...(at ? [between] : []), ...listNodes(each, indent + 1)]), "]"]
}
