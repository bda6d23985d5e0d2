// Arrays: .npy files, JSON, statistics, and drawings.
// A drawing has one pixel of the canvas for each item, so that it is exact; the style sheet makes it larger.

import { NdArray } from "../rpcstream.js"
import { drawLines, lineCanvas, short, statistics } from "./chart.js"
import { button, h, save, sizeOf } from "./dom.js"
import { overlay } from "./pictures.js"

const KINDS = {
  b1: Uint8Array, u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
  u8: BigUint64Array, i8: BigInt64Array, f2: globalThis.Float16Array, f4: Float32Array, f8: Float64Array,
}
export const DTYPES = ["<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"]
const NAMES = { b: "bool", i: "int", u: "uint", f: "float", c: "complex", M: "datetime", m: "timedelta" }
/** A dtype as numpy names it: `<f4` is float32. */
const nameOf = (dtype) => (/^[<>|=]b1$/.test(dtype) ? "bool" : String(dtype).replace(/^[<>|=]?([iufc])(\d+)$/, (_, kind, size) => `${NAMES[kind]}${8 * size}`))
const MOST_PIXELS = 4096 * 4096
const key = (dtype) => dtype.slice(-2)
export const isDrawn = (array) => Boolean(KINDS[key(array.dtype)]) && array.data instanceof KINDS[key(array.dtype)]

/** Nested lists, as JSON with NaN and Infinity, as an array. Throws an Error that says what is wrong. */
export function fromLists(text, dtype) {
  const lists = JSON.parse(text.replace(/-?Infinity|NaN/g, '"$&"'))
  const isFloat = /f\d$/.test(dtype)
  for (const each of [lists].flat(64)) {
    const number = typeof each === "string" ? Number(each) : each
    if (!["number", "boolean"].includes(typeof number)) throw Error("the items are numbers")
    if (!isFloat && !Number.isInteger(Number(number))) throw Error(`${number} is no item of ${dtype}`)
  }
  return NdArray.from(lists, dtype)
}

/** The array of a .npy file (NEP 1). */
export async function readNpy(file) {
  const bytes = new Uint8Array(await file.arrayBuffer())
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw Error(`${file.name}: no .npy file`)
  const view = new DataView(bytes.buffer)
  const start = bytes[6] > 1 ? 12 : 10
  const end = start + (bytes[6] > 1 ? view.getUint32(8, true) : view.getUint16(8, true))
  const head = new TextDecoder().decode(bytes.subarray(start, end))
  const dtype = /'descr':\s*'([^']+)'/.exec(head)?.[1]
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(head)?.[1] ?? "").split(",").filter((each) => each.trim()).map(Number)
  const make = KINDS[key(dtype ?? "")]
  if (!make || dtype[0] === ">") throw Error(`${file.name}: arrays of ${dtype ?? "several fields"} are not read here`)
  const count = shape.reduce((a, b) => a * b, 1)
  let data = new make(bytes.buffer.slice(end, end + count * make.BYTES_PER_ELEMENT))
  if (data.length !== count) throw Error(`${file.name}: it has too few bytes for its shape`)
  if (head.includes("'fortran_order': True") && shape.length > 1) data = transposed(data, shape)
  return new NdArray(dtype, shape, data)
}

/** Items in Fortran order, put in C order. */
function transposed(data, shape) {
  const made = new data.constructor(data.length)
  for (let at = 0; at < data.length; at++) {
    let rest = at
    let from = 0
    for (let axis = shape.length - 1, step = data.length; axis >= 0; axis--) {
      step /= shape[axis]
      from += (rest % shape[axis]) * step
      rest = Math.floor(rest / shape[axis])
    }
    made[at] = data[from]
  }
  return made
}

export function npy({ dtype, shape, data }) {
  const tuple = `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`
  const head = `{'descr': '${dtype}', 'fortran_order': False, 'shape': ${tuple}, }`
  const padded = head.padEnd(Math.ceil((head.length + 11) / 64) * 64 - 11) + "\n"
  const lead = new Uint8Array([0x93, ...new TextEncoder().encode("NUMPY"), 1, 0, padded.length & 255, padded.length >> 8])
  return new Blob([lead, padded, data], { type: "application/octet-stream" })
}

// Colours from the least to the greatest value, between which is interpolated; NaN is transparent.
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]

/** Draw `height` rows of `width` items, with 1, 3 or 4 channels; with `isMask` zeros are transparent. */
function draw(canvas, data, height, width, channels, { least, greatest }, isMask) {
  const step = Math.max(1, Math.ceil(Math.sqrt((height * width) / MOST_PIXELS)))
  canvas.width = Math.ceil(width / step)
  canvas.height = Math.ceil(height / step)
  const image = new ImageData(canvas.width, canvas.height)
  const isFloat = data.constructor.name.startsWith("Float")
  const scale = isFloat && greatest <= 1 ? 255 : 1
  const span = greatest - least || 1
  let to = 0
  for (let row = 0; row < height; row += step) {
    for (let column = 0; column < width; column += step, to += 4) {
      const at = (row * width + column) * channels
      if (channels > 1) {
        for (let channel = 0; channel < 3; channel++) image.data[to + channel] = Number(data[at + channel]) * scale
        image.data[to + 3] = channels === 4 ? Number(data[at + 3]) * scale : 255
        continue
      }
      const value = Number(data[at])
      const place = Math.min(1, Math.max(0, (value - least) / span)) * (STOPS.length - 1)
      const stop = Math.min(STOPS.length - 2, Math.floor(place)) || 0
      for (let channel = 0; channel < 3; channel++) {
        const from = STOPS[stop][channel]
        image.data[to + channel] = Math.floor(from + (STOPS[stop + 1][channel] - from) * (place - stop) + 0.5)
      }
      image.data[to + 3] = Number.isNaN(value) || (isMask && !value) ? 0 : 255
    }
  }
  canvas.getContext("2d", { willReadFrequently: true }).putImageData(image, 0, 0)
}

/** What there is to see of an array. `env.pictures` are those that a mask may lie over. */
export function arrayView(array, env) {
  const { dtype, shape, data } = array
  const size = shape.reduce((a, b) => a * b, 1)
  const facts = [`${nameOf(dtype)} (${shape.join(", ")})`, sizeOf(data.byteLength)]
  const node = h("figure", { class: "array" })
  const tools = h("div", { class: "tools" }, button("Save .npy", () => save("array.npy", npy(array))))
  if (isDrawn(array) && size > 0) {
    const numbers = statistics(data)
    const { least, greatest, mean, nans } = numbers
    if (nans < size) facts.push(`${short(least)} to ${short(greatest)}`, `mean ${short(mean)}`)
    if (nans) facts.push(`${nans} NaN`)
    const channels = shape.length >= 3 && [3, 4].includes(shape.at(-1)) ? shape.at(-1) : 1
    const [height, width] = channels > 1 ? shape.slice(-3) : shape.slice(-2)
    if (shape.length === 1 && size > 1) {
      const canvas = lineCanvas()
      node.append(canvas)
      requestAnimationFrame(() => drawLines(canvas, { "": data }))
    } else if (shape.length > 1) {
      const what = channels > 1 ? "picture" : "heat map"
      const label = `${what}, ${width} by ${height}, from ${short(least)} to ${short(greatest)}`
      const canvas = h("canvas", { class: "pixels", role: "img", "aria-label": label })
      const each = height * width * channels
      let [layer, isMask] = [0, false]
      const show = () => draw(canvas, data.subarray(layer * each, (layer + 1) * each), height, width, channels, numbers, isMask)
      show()
      canvas.style.width = `${width * Math.max(1, Math.floor(320 / width))}px` // a whole number of pixels for each item
      node.append(...overlay(canvas, width, height, env, (isOver) => {
        isMask = isOver && /[biu]\d$/.test(dtype)
        show()
      }))
      if (size > each) {
        const number = h("input", { type: "number", min: 0, max: size / each - 1, value: "0", oninput: () => {
          const wanted = Number(number.value)
          if (!Number.isInteger(wanted) || wanted < 0 || wanted >= size / each) return
          layer = wanted
          show()
        } })
        tools.append(h("label", null, `Layer (of ${size / each}) `, number))
      }
    }
  }
  if (size <= 10_000) tools.append(values(array))
  node.append(h("figcaption", null, facts.join(" · ")), tools)
  return node
}

/** The items as nested lists, when they are asked for. */
function values(array) {
  const text = h("pre", { tabindex: "0" })
  const fill = () => (text.textContent ||= listText(array.toArray()))
  return h("details", { ontoggle: fill }, h("summary", null, "Values"), text)
}

function listText(list, indent = 1) {
  if (!Array.isArray(list)) return String(list)
  const end = Array.isArray(list[0]) ? `,\n${" ".repeat(indent)}` : ", "
  return `[${list.map((each) => listText(each, indent + 1)).join(end)}]`
}
