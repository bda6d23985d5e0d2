// Arrays as .npy files, as JSON, and as numbers.

import { NdArray } from "../rpcstream.js"

const KINDS = {
  b1: Uint8Array, u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
  u8: BigUint64Array, i8: BigInt64Array, f2: globalThis.Float16Array, f4: Float32Array, f8: Float64Array,
}
export const DTYPES = ["<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"]
const NAMES = { b: "bool", i: "int", u: "uint", f: "float", c: "complex", M: "datetime", m: "timedelta" }
/** A dtype as numpy names it: `<f4` is float32. */
export const nameOf = (dtype) => (/^[<>|=]b1$/.test(dtype) ? "bool" : String(dtype).replace(/^[<>|=]?([iufc])(\d+)$/, (_, kind, size) => `${NAMES[kind]}${8 * size}`))
const key = (dtype) => dtype.slice(-2)

/** Whether items are numbers: no complex numbers, dates or durations. */
export const isNumeric = (array) => !/[cMm]\d/.test(array.dtype)

/** The items as a typed array of numbers or BigInt; null where they are none. */
export function numbersOf(array) {
  if (!isNumeric(array)) return null
  const kind = KINDS[key(array.dtype)]
  return kind && array.data instanceof kind ? array.data : Float32Array.from(array.values()) // floats of 8 or 16 bits
}

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
