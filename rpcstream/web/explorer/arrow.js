// Tables in the stream format of Apache Arrow, which frames of pandas and polars have on the wire: read where they are
// looked at, row by row (see "Arrow columnar format" in the documentation of Apache Arrow).

export const FRAMES = ["arrow", "polars", "pandas"]
/** Whether a value is a table as the client has it: its kind, and a stream of Arrow. */
export const isFrame = (value) => FRAMES.includes(value?.$type) && value.data instanceof Uint8Array

const text = new TextDecoder()
const SECOND = { 0: 1, 1: 1e3, 2: 1e6, 3: 1e9 } // units in a second: seconds, milli-, micro- and nanoseconds
// A stream may lie: these keep what is made of it small.
const MOST_ROWS = 10_000_000
const MOST_FIELDS = 10_000
const BELOW = "a size in it is below 0"
const MOST_DEPTH = 3 // of lists in lists
const MOST_ITEMS = [10_000, 20, 20, 20] // of a list, by its depth

/** A table of a FlatBuffer: fields by their number. */
class Flat {
  constructor(view, at) {
    const offsets = at - view.getInt32(at, true)
    Object.assign(this, { view, at, offsets, size: view.getUint16(offsets, true) })
  }

  #place(field) {
    const slot = 4 + 2 * field
    const offset = slot < this.size ? this.view.getUint16(this.offsets + slot, true) : 0
    return offset && this.at + offset
  }

  number(field, kind = "Int32", other = 0) {
    const place = this.#place(field)
    return place ? Number(this.view[`get${kind}`](place, true)) : other
  }

  #target(field) {
    const place = this.#place(field)
    return place && place + this.view.getUint32(place, true)
  }

  table(field) {
    const place = this.#target(field)
    return place ? new Flat(this.view, place) : null
  }

  string(field) {
    const place = this.#target(field)
    return place ? text.decode(new Uint8Array(this.view.buffer, this.view.byteOffset + place + 4, this.view.getUint32(place, true))) : ""
  }

  /** The items of a vector: `each` gets the place of an item. */
  list(field, size, each) {
    const place = this.#target(field)
    return place ? Array.from({ length: this.view.getUint32(place, true) }, (_, at) => each(place + 4 + at * size)) : []
  }

  tables(field) {
    return this.list(field, 4, (place) => new Flat(this.view, place + this.view.getUint32(place, true)))
  }
}

/** The messages of a stream: their head, its kind, and their body. */
function* messages(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  for (let at = 0; at + 8 <= view.byteLength;) {
    const size = view.getInt32(at + 4, true)
    if (view.getUint32(at, true) !== 0xffffffff || size <= 0) return
    const head = new DataView(bytes.buffer, bytes.byteOffset + at + 8, size)
    const message = new Flat(head, head.getUint32(0, true))
    const length = message.number(3, "BigInt64")
    if (length < 0) throw Error(BELOW)
    const start = at + 8 + size
    yield { kind: message.number(1, "Uint8"), head: message.table(2), body: bytes.subarray(start, start + length) }
    at = start + length
  }
}

const integers = (bits, isSigned) => `${bits === 64 ? "Big" : ""}${isSigned ? "Int" : "Uint"}${bits}`
const reader = (kind, size) => (buffer) => {
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength)
  return (row) => view[`get${kind}`](row * size, true)
}
const exactly = (big) => (typeof big === "bigint" && Number.isSafeInteger(Number(big)) ? Number(big) : big)

/** A moment or a date, as ISO 8601 writes it. */
function isoOf(value, perSecond, isDate) {
  const date = new Date((Number(value) / perSecond) * 1000)
  return Number.isNaN(date.getTime()) ? String(value) : isDate ? date.toISOString().slice(0, 10) : date.toISOString().replace(/\.000Z$|Z$/, "").replace("T", " ")
}

const bitAt = (buffer) => (row) => Boolean((buffer[row >> 3] >> (row & 7)) & 1)

/** Strings or bytes: their offsets of `bits`, and the data. Not more than `most` bytes of one are read. */
function slices(offsets, data, bits, make) {
  const at = reader(integers(bits, true), bits / 8)(offsets)
  return (row, most) => {
    const [start, end] = [Number(at(row)), Number(at(row + 1))]
    return make(data.subarray(start, Math.min(end, start + most))) + (end - start > most ? "…" : "")
  }
}

/** The bytes that each of some parts may have of `most`, which are enough for a word. */
const shareOf = (most, parts) => Math.max(100, most / parts)

/** Lists, with offsets of `bits`. */
const listType = (bits, depth) => ({ type: "list", buffers: 1, read: ([items], offsets) => {
  const at = reader(integers(bits, true), bits / 8)(offsets)
  return (row, most) => {
    const [start, end] = [Number(at(row)), Number(at(row + 1))]
    const length = Math.min(MOST_ITEMS[depth], end - start)
    return Array.from({ length }, (_, index) => items(start + index, shareOf(most, length)))
  }
} })

const bytesText = (bytes) => [...bytes.subarray(0, 32)].map((each) => each.toString(16).padStart(2, "0")).join("")

// For each number of a type in the schema: its name, how many buffers it has after the validity, and how they are read.
const TYPES = {
  1: () => ({ type: "null", none: true, buffers: 0, read: () => () => null }),
  2: (type) => {
    const [bits, isSigned] = [type.number(0), type.number(1, "Uint8")]
    return { type: `${isSigned ? "" : "u"}int${bits}`, buffers: 1, read: (_, data) => reader(integers(bits, isSigned), bits / 8)(data) }
  },
  3: (type) => {
    const bits = [16, 32, 64][type.number(0, "Int16")]
    return { type: `float${bits}`, buffers: 1, read: (_, data) => reader(`Float${bits}`, bits / 8)(data) }
  },
  4: () => ({ type: "bytes", buffers: 2, read: (_, offsets, data) => slices(offsets, data, 32, bytesText) }),
  5: () => ({ type: "text", buffers: 2, read: (_, offsets, data) => slices(offsets, data, 32, (bytes) => text.decode(bytes)) }),
  6: () => ({ type: "bool", buffers: 1, read: (_, data) => bitAt(data) }),
  8: (type) => {
    const isDays = type.number(0, "Int16", 1) === 0
    return { type: "date", buffers: 1, read: (_, data) => {
      const at = isDays ? reader("Int32", 4)(data) : reader("BigInt64", 8)(data)
      return (row) => isoOf(at(row), isDays ? 1 / 86_400 : 1000, true)
    } }
  },
  10: (type) => ({ type: type.string(1) ? `time, ${type.string(1)}` : "time", buffers: 1, read: (_, data) => {
    const [at, unit] = [reader("BigInt64", 8)(data), SECOND[type.number(0, "Int16")]]
    return (row) => isoOf(at(row), unit, false)
  } }),
  12: (_, children, depth) => listType(32, depth),
  13: (_, children) => ({ type: "object", buffers: 0, read: (parts) => (row, most) => Object.fromEntries(children.map(({ name }, at) => [name, parts[at](row, shareOf(most, parts.length))])) }),
  18: (type) => ({ type: "seconds", buffers: 1, read: (_, data) => {
    const [at, unit] = [reader("BigInt64", 8)(data), SECOND[type.number(0, "Int16", 1)]]
    return (row) => Number(at(row)) / unit
  } }),
  19: () => ({ type: "bytes", buffers: 2, read: (_, offsets, data) => slices(offsets, data, 64, bytesText) }),
  20: () => ({ type: "text", buffers: 2, read: (_, offsets, data) => slices(offsets, data, 64, (bytes) => text.decode(bytes)) }),
  21: (_, children, depth) => listType(64, depth),
}

/** A column of the schema; `budget.left` more are read. */
function fieldOf(flat, budget, depth = 0) {
  if (budget.left-- <= 0 || depth > MOST_DEPTH) throw Error("its columns are too many or nested too deep")
  const children = flat.tables(5).map((each) => fieldOf(each, budget, depth + 1))
  const make = TYPES[flat.number(2, "Uint8")]
  if (!make) throw Error(`columns of type ${flat.number(2, "Uint8")} are not shown`)
  const dictionary = flat.table(4)
  const field = { name: flat.string(0), children, ...make(flat.table(3), children, depth) }
  if (!dictionary) return field
  const index = dictionary.table(1)
  return { ...field, dictionary: dictionary.number(0, "BigInt64"), index: index ? TYPES[2](index) : { buffers: 1, read: (_, data) => reader("Int32", 4)(data) } }
}

function fieldsOf(schema) {
  const budget = { left: MOST_FIELDS }
  return schema.tables(1).map((each) => fieldOf(each, budget))
}

/** Takes nodes and buffers of a batch in their order. */
class Batch {
  constructor(head, body) {
    if (head.table(3)) throw Error("compressed tables are not shown")
    const at = (place) => Number(head.view.getBigInt64(place, true))
    this.count = head.number(0, "BigInt64")
    if (this.count < 0) throw Error(BELOW)
    this.nodes = head.list(1, 16, (place) => ({ length: at(place), nulls: at(place + 8) }))
    this.buffers = head.list(2, 16, (place) => body.subarray(at(place), at(place) + at(place + 8)))
  }

  /** A function that gives the values of a column. */
  column(field, dictionaries) {
    const { nulls } = this.nodes.shift()
    const isValid = field.none ? null : bitAt(this.buffers.shift())
    const kind = field.index ?? field
    const own = this.buffers.splice(0, kind.buffers)
    const parts = field.index ? [] : field.children.map((each) => this.column(each, dictionaries))
    const at = kind.read(parts, ...own)
    const value = field.index ? (row, most) => dictionaries.get(field.dictionary)?.(Number(at(row)), most) : at
    return (row, most) => (nulls && isValid && !isValid(row) ? null : exactly(value(row, most)))
  }
}

/** The table of a stream, as `tableView` shows it. Throws where something in it is not known here. */
export function readTable(bytes) {
  const dictionaries = new Map()
  const parts = []
  let fields = []
  let count = 0
  for (const { kind, head, body } of messages(bytes)) {
    if (kind === 1) fields = fieldsOf(head)
    else if (kind === 2) {
      const id = head.number(0, "BigInt64")
      const field = fields.find((each) => each.dictionary === id)
      dictionaries.set(id, new Batch(head.table(1), body).column({ ...field, index: undefined }, dictionaries))
    } else if (kind === 3) {
      const batch = new Batch(head, body)
      parts.push({ start: count, columns: fields.map((field) => batch.column(field, dictionaries)) })
      count += batch.count
    }
  }
  if (count > MOST_ROWS) throw Error("the table has too many rows")
  const at = (row, column, most) => {
    const part = parts.findLast((each) => each.start <= row)
    try {
      return part.columns[column](row - part.start, most)
    } catch {
      return null // its data ends before this row
    }
  }
  return { count, columns: fields.map(({ name, type, index }, column) => (
    { name: /^__index_level_\d+__$/.test(name) ? "index" : name, type: index ? "category" : type, at: (row, most = Infinity) => at(row, column, most) })) }
}
