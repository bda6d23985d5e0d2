// Tables of texts as a stream of Apache Arrow, which methods take: the opposite of arrow.js.

const BATCH = 2000 // rows that are written at once
const utf8 = new TextEncoder()
const isDay = (text) => !text.startsWith("0000") && !Number.isNaN(Date.parse(text)) && new Date(text).toISOString().startsWith(text)
const isMoment = (text, zone) => zone.test(text) && isDay(text.slice(0, 10)) && !Number.isNaN(Date.parse(text.replace(" ", "T")))
const MOMENT = String.raw`^\d{4}-\d\d-\d\d[T ](?!24)\d\d:\d\d(:\d\d(\.\d{1,3})?)?`
const [NAIVE, ZONED] = ["$", String.raw`(Z|[+-]\d\d:\d\d)$`].map((end) => new RegExp(MOMENT + end))
const moments = (cells, zone) => [BigInt64Array.from(cells, (each) => BigInt(each === null ? 0 : Date.parse(each.trim().replace(" ", "T") + zone)))]

const isInt = (text) => /^-?(0|[1-9]\d{0,18})$/.test(text) && BigInt.asIntN(64, text) === BigInt(text)
const FLOAT = /^[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i

/** Whether a text is a number that 64 bits hold: not an integer that would be rounded, and not too large. */
function isFloat(text) {
  if (/^nan$/i.test(text)) return true
  const number = Number(text)
  return FLOAT.test(text) && Number.isFinite(number) && (/[.e]/i.test(text) || BigInt(number) === BigInt(text))
}

/** Bits, of which each byte has eight, the lowest first. */
function bits(cells, isSet) {
  const made = new Uint8Array(Math.ceil(cells.length / 8))
  cells.forEach((each, at) => (made[at >> 3] |= Number(isSet(each)) << (at & 7)))
  return made
}

/** Texts: where each of them begins, and all of them. */
function texts(cells) {
  const all = cells.map((each) => utf8.encode(each ?? ""))
  const offsets = new Int32Array(cells.length + 1)
  all.forEach((each, at) => (offsets[at + 1] = offsets[at] + each.length))
  return [offsets, joined(all)]
}

/**
 * The types of columns: `is` tells whether a text is one, `id` and `fields` are the type in Arrow, and `write` makes
 * the buffers of cells, which are texts, or null where there is nothing.
 */
export const COLUMNS = {
  int: { is: isInt, id: 2, fields: [64, 1], write: (cells) => [BigInt64Array.from(cells, (each) => BigInt(each ?? 0))] },
  float: { is: isFloat, id: 3, fields: [2], write: (cells) => [Float64Array.from(cells, Number)] },
  bool: { is: (text) => /^(true|false)$/i.test(text), id: 6, fields: [], write: (cells) => [bits(cells, (each) => /true/i.test(each))] },
  date: { is: (text) => text.length === 10 && isDay(text), id: 8, fields: [0], write: (cells) => [Int32Array.from(cells, (each) => (each === null ? 0 : Date.parse(each.trim()) / 86_400_000))] },
  time: { is: (text) => isMoment(text, NAIVE), id: 10, fields: [1], write: (cells) => moments(cells, "Z") },
  "time, UTC": { is: (text) => isMoment(text, ZONED), id: 10, fields: [1, string("UTC")], write: (cells) => moments(cells, "") },
  text: { is: () => true, id: 5, fields: [], write: texts },
}

function joined(parts) {
  const made = new Uint8Array(parts.reduce((sum, each) => sum + each.length, 0))
  let at = 0
  for (const each of parts) {
    made.set(each, at)
    at += each.length
  }
  return made
}

/** A FlatBuffer that is written forwards: what a table refers to stands behind it. */
class Flat {
  bytes = []

  get end() {
    return this.bytes.length
  }

  pad() {
    while (this.end % 8) this.bytes.push(0)
  }

  number(value, size, at = this.end) {
    for (let index = 0; index < size; index++) this.bytes[at + index] = Math.floor(value / 256 ** index) % 256
  }

  /** Write something, and its place in the reference at `at`. */
  refer(at, write) {
    this.pad()
    this.number(write(this) - at, 4, at)
  }
}

// What these give writes to a FlatBuffer, and returns the place to refer to.

/** A table. Its fields are numbers, things to refer to, or null where there is none; each takes 8 bytes. */
const table = (...fields) => (flat) => {
  const start = flat.end
  for (const each of [4 + 2 * fields.length, 8 + 8 * fields.length, ...fields.map((field, slot) => (field === null ? 0 : 8 + 8 * slot))]) flat.number(each, 2)
  flat.pad()
  const at = flat.end
  flat.number(at - start, 8)
  for (const each of fields) flat.number(typeof each === "number" ? each : 0, 8)
  fields.forEach((each, slot) => typeof each === "function" && flat.refer(at + 8 + 8 * slot, each))
  return at
}

function string(text) {
  return (flat) => {
    const at = flat.end
    const data = utf8.encode(text)
    flat.number(data.length, 4)
    for (const each of data) flat.bytes.push(each)
    flat.bytes.push(0)
    return at
  }
}

const list = (items) => (flat) => {
  const at = flat.end
  flat.number(items.length, 4)
  for (const _ of items) flat.number(0, 4)
  items.forEach((each, index) => flat.refer(at + 4 + 4 * index, each))
  return at
}

/** Pairs of numbers of 8 bytes, which begin at a multiple of 8. */
const pairs = (items) => (flat) => {
  flat.number(0, 4)
  flat.number(items.length, 4)
  for (const each of items.flat()) flat.number(each, 8)
  return flat.end - 16 * items.length - 4
}

const bytesOf = ({ buffer, byteOffset, byteLength }) => new Uint8Array(buffer, byteOffset, byteLength)

/** A message without its body. */
function message(kind, head, bodySize) {
  const flat = new Flat()
  flat.number(0, 4)
  flat.refer(0, table(4, kind, head, bodySize))
  flat.pad()
  return [bytesOf(Uint32Array.of(0xffffffff, flat.end)), Uint8Array.from(flat.bytes)]
}

/** The message and the body of a part of the rows. */
function batch(columns, start) {
  const [nodes, buffers, body] = [[], [], []]
  let [count, size] = [0, 0]
  function add(array) {
    const bytes = bytesOf(array)
    const rest = -bytes.length & 7
    buffers.push([size, bytes.length])
    body.push(bytes, new Uint8Array(rest))
    size += bytes.length + rest
  }
  for (const { type, cells } of columns) {
    const part = cells.slice(start, start + BATCH)
    const nulls = part.filter((each) => each === null).length
    count = part.length
    nodes.push([count, nulls])
    add(nulls ? bits(part, (each) => each !== null) : new Uint8Array())
    COLUMNS[type].write(part).forEach(add)
  }
  return [...message(3, table(count, pairs(nodes), pairs(buffers)), size), ...body]
}

/** Work for `inSlices`: the bytes of a stream. A column is `{ name, type, cells }`, with a type of `COLUMNS`; all have as many cells. */
export function* writeTable(columns) {
  const fields = columns.map(({ name, type }) => table(string(name), 1, COLUMNS[type].id, table(...COLUMNS[type].fields), null, list([])))
  const parts = message(1, table(0, list(fields)), 0)
  for (let start = 0; start < columns[0].cells.length; start += BATCH) {
    parts.push(...batch(columns, start))
    yield
  }
  return joined([...parts, bytesOf(Uint32Array.of(0xffffffff, 0))])
}
