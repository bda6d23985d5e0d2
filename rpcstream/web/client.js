/**
 * A client of rpcstream servers, for browsers and Node.js: JSON-RPC 2.0 by WebSocket or HTTP, with streams, events,
 * arrays and images. One module without dependencies. The types stand in client.d.ts, the protocol in
 * docs/reference/wire.md, examples in docs/how-to/javascript.md.
 *
 *     import { Client, NdArray } from "/rpcstream.js"
 *     const client = new Client("ws://127.0.0.1:8545/")
 *     const sum = await client.call("add", { a: 2, b: 3 })
 *
 * @module rpcstream
 */

const DAY_MAX = 2 ** 31 - 1 // ms; a longer timer of JavaScript fires at once
const ATTACHED_MIN = 4096 // bytes of a payload from which on it travels in a binary frame
const ATTACHED_MAX = 64 // payloads of a frame that we send
const FRAME_TYPE = "application/x-rpcstream"
const HEADER = /^@(\d{1,12})((?: \d{1,12}){1,256}) {0,7}\n/
const HEADER_MAX = 4096
const WINDOW = 16 // items of a stream that are permitted at once
const REPEATS = 5 // of a call that the server has not begun, as it said
const BACKOFF = { first: 100, longest: 30_000, factor: 2 }
const LIMITS = { maxMessageSize: 64 << 20, maxDepth: 128, maxValues: 1_000_000, maxBatch: 1000, maxCalls: 1024 }

// -- errors -----------------------------------------------------------------------------------------------------------

/** The error object of a reply (JSON-RPC 2.0, section 5.1). A method that the server calls throws it to answer so. */
export class RpcError extends Error {
  name = "RpcError"

  constructor(code, message, data, method) {
    super(message)
    Object.assign(this, { code, data, method })
  }

  /** False where the server says that the call was not begun; else undefined. */
  get executed() {
    return this.data?.executed === false || this.data?.no_provider === true ? false : undefined
  }

  toJSON() {
    return { code: this.code, message: this.message, data: this.data }
  }
}

/** There is no connection: it could not be made (`executed` is false), or it was lost before the reply. */
export class ConnectionError extends Error {
  name = "ConnectionError"

  constructor(message, executed, status) {
    super(message)
    Object.assign(this, { executed, status })
  }
}

/** The time of a call was over before its reply. */
export class CallTimeout extends Error {
  name = "CallTimeout"
}

const rpcError = (error, method) => {
  const { code, message, data } = error !== null && typeof error === "object" ? error : {}
  return new RpcError(typeof code === "number" ? code : -32603, `${message ?? "the reply is no reply"}`, data, method)
}

// -- arrays, images and other rich values -----------------------------------------------------------------------------

const Half = globalThis.Float16Array ?? Uint16Array
const TYPES = {
  b1: Uint8Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array,
  i8: BigInt64Array, u8: BigUint64Array, f2: Half, f4: Float32Array, f8: Float64Array, c8: Float32Array,
  c16: Float64Array, M8: BigInt64Array, m8: BigInt64Array,
}
const NAMES = { bool: "|b1", int8: "|i1", uint8: "|u1", complex64: "<c8", complex128: "<c16" }
for (const [kind, sizes] of [["int", [2, 4, 8]], ["uint", [2, 4, 8]], ["float", [2, 4, 8]]])
  for (const size of sizes) NAMES[kind + 8 * size] = `<${kind[0]}${size}`
/** Bits of exponent and fraction, bias; "ieee" has infinities, "fn" has none, "fnuz" no negative zero either. */
const SMALL_FLOATS = {
  float16: [5, 10, 15, "ieee"], bfloat16: [8, 7, 127, "ieee"], float8_e3m4: [3, 4, 3, "ieee"],
  float8_e4m3: [4, 3, 7, "ieee"], float8_e4m3b11fnuz: [4, 3, 11, "fnuz"], float8_e4m3fn: [4, 3, 7, "fn"],
  float8_e4m3fnuz: [4, 3, 8, "fnuz"], float8_e5m2: [5, 2, 15, "ieee"], float8_e5m2fnuz: [5, 2, 16, "fnuz"],
  float8_e8m0fnu: [8, 0, 127, "e8m0"],
}
const DTYPE = /^([<>|])([biufcmM])(\d{1,2})(\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?$/
const SHOWN = (value) => JSON.stringify(`${value}`.slice(0, 60))

/** What a dtype is here: its form on the wire, the typed array, numbers and bytes an item, whether bytes are swapped. */
function dtypeOf(text) {
  const dtype = NAMES[text] ?? `${text}`.replace(/^datetime64/, "<M8").replace(/^timedelta64/, "<m8")
  if (Object.hasOwn(SMALL_FLOATS, dtype) && dtype !== "float16") {
    const type = dtype === "bfloat16" ? Uint16Array : Uint8Array
    return { dtype, kind: "V", type, each: 1, bytes: type.BYTES_PER_ELEMENT, float: dtype }
  }
  const [, order, kind, size, unit = ""] = DTYPE.exec(dtype) ?? []
  const type = Object.hasOwn(TYPES, kind + size) ? TYPES[kind + size] : undefined
  if (type === undefined || (order === "|") !== (size === "1") || (unit && !"mM".includes(kind)))
    throw new TypeError(`dtype ${SHOWN(text)} is not one that goes over the wire`)
  const each = kind === "c" ? 2 : 1
  const float = type === Half && Half === Uint16Array && kind === "f" ? "float16" : undefined
  const wire = `${order === ">" ? "<" : order}${kind}${size}${unit}`
  return { dtype: wire, kind, type, each, bytes: +size, float, isSwapped: order === ">" }
}

/** The number of a float of 8 or 16 bits. */
function smallFloat(bits, [exponentBits, fractionBits, bias, kind]) {
  if (kind === "e8m0") return bits === 255 ? NaN : 2 ** (bits - bias)
  const fraction = bits & ((1 << fractionBits) - 1)
  const top = (1 << exponentBits) - 1
  const exponent = (bits >> fractionBits) & top
  const isNegative = bits >> (exponentBits + fractionBits)
  if (kind === "fnuz" && isNegative && !exponent && !fraction) return NaN
  if (kind === "fn" && exponent === top && fraction === (1 << fractionBits) - 1) return NaN
  if (kind === "ieee" && exponent === top) return fraction ? NaN : isNegative ? -Infinity : Infinity
  const scaled = exponent ? fraction + (1 << fractionBits) : fraction
  return (isNegative ? -1 : 1) * scaled * 2 ** (Math.max(exponent, 1) - bias - fractionBits)
}

/** The bits of the float16 next to a number, ties to even. */
function toHalf(number) {
  if (Number.isNaN(number)) return 0x7e00
  const sign = number < 0 || Object.is(number, -0) ? 0x8000 : 0
  const size = Math.abs(number)
  if (size >= 65520) return sign | 0x7c00
  let exponent = -14
  while (2 ** (exponent + 1) <= size) exponent += 1
  const exact = size * 2 ** (10 - exponent)
  let whole = Math.floor(exact)
  if (exact - whole > 0.5 || (exact - whole === 0.5 && whole % 2)) whole += 1
  return sign | (whole + (exponent + 14) * 1024)
}

/** A complex number. */
export class Complex {
  constructor(real, imag) {
    Object.assign(this, { real, imag })
  }
}

/**
 * An array of numpy. `data` has the items in C order in a typed array: `BigInt64Array` for int64, dates and durations,
 * two numbers an item for complex ones, and for the floats that the engine has no array for (float16 before
 * `Float16Array`, bfloat16, float8) their bits as `Uint16Array` or `Uint8Array`. `values()` gives numbers in any case.
 */
export class NdArray {
  /** @throws {TypeError} the dtype does not go over the wire, or the data is not what dtype and shape say. */
  constructor(dtype, shape, data) {
    const type = dtypeOf(dtype)
    let size = type.each
    for (const length of shape) {
      if (!Number.isSafeInteger(length) || length < 0) throw new TypeError(`a shape has whole numbers, got ${SHOWN(shape)}`)
      size *= length
    }
    if (shape.length > 64 || type.isSwapped || !(data instanceof type.type) || data.length !== size)
      throw new TypeError(`an array of ${type.dtype} and shape [${shape}] needs ${size} items of a ${type.type.name}`)
    Object.assign(this, { dtype: type.dtype, shape: [...shape], data })
  }

  /** An array of a number, of (nested) lists of numbers, or of a typed array; by default of "<f8". */
  static from(values, dtype, shape) {
    if (ArrayBuffer.isView(values)) return new NdArray(dtype ?? dtypeOfView(values), shape ?? [values.length], values)
    const type = dtypeOf(dtype ?? "<f8")
    const found = []
    for (let each = values; Array.isArray(each); each = each[0]) found.push(each.length)
    const flat = values?.flat?.(64) ?? [values]
    if (shape === undefined && flat.length !== found.reduce((product, each) => product * each, 1))
      throw new TypeError("the lists are not all of one length")
    const [isBig, isSmall] = [type.type.name.startsWith("Big"), type.float === "float16"]
    if (type.float && !isSmall) throw new TypeError(`of ${type.dtype} give the bits, as a ${type.type.name}`)
    const convert = (item) => (isBig ? BigInt(item) : isSmall ? toHalf(+item) : +item)
    const items = type.each === 2 ? flat.flatMap((item) => [+(item.real ?? item), +(item.imag ?? 0)]) : flat.map(convert)
    return new NdArray(type.dtype, shape ?? found, type.type.from(items))
  }

  /** Number of items. */
  get size() {
    return this.shape.reduce((product, each) => product * each, 1)
  }

  /** All items in a flat list: numbers, BigInt for 64 bits, booleans, or `Complex`. */
  values() {
    const { kind, each, float } = dtypeOf(this.dtype)
    const data = [...this.data]
    if (kind === "b") return data.map(Boolean)
    if (float) return data.map((bits) => smallFloat(bits, SMALL_FLOATS[float]))
    return each === 1 ? data : Array.from({ length: this.size }, (_, i) => new Complex(data[2 * i], data[2 * i + 1]))
  }

  /** The items as nested lists; that of an array without dimensions alone. */
  toArray() {
    let lists = this.values()
    for (const length of this.shape.slice(1).reverse())
      lists = Array.from({ length: length && lists.length / length }, (_, i) => lists.slice(i * length, (i + 1) * length))
    return this.shape.length ? lists : lists[0]
  }
}

function dtypeOfView(view) {
  if (view instanceof Uint8ClampedArray) return "|u1"
  const name = view.constructor.name.replace(/^Big|Array$/g, "").replace(/Array$/, "").toLowerCase()
  if (!Object.hasOwn(NAMES, name)) throw new TypeError(`a ${view.constructor.name} has no form on the wire`)
  return NAMES[name]
}

/** A tagged array of the wire, with the bytes of its data. */
function arrayOf(dtype, shape, bytes) {
  const { dtype: wire, type, each, bytes: size, isSwapped } = dtypeOf(dtype)
  if (!Array.isArray(shape) || shape.some((length) => !Number.isSafeInteger(length) || length < 0))
    throw new TypeError("the shape of an array is a list of whole numbers")
  const count = shape.reduce((product, length) => product * length, 1)
  if (count * size !== bytes.length) throw new TypeError(`an array of ${wire} and shape [${shape}] has ${bytes.length} bytes`)
  const unit = type.BYTES_PER_ELEMENT
  const own = isSwapped || bytes.byteOffset % unit ? bytes.slice() : bytes
  if (isSwapped) for (let at = 0; at < own.length; at += unit) own.subarray(at, at + unit).reverse()
  return new NdArray(wire, shape, new type(own.buffer, own.byteOffset, count * each))
}

const PNG_COLORS = { 1: [1, 0, 1], L: [8, 0, 8], LA: [8, 4, 16], RGB: [8, 2, 24], RGBA: [8, 6, 32], "I;16": [16, 0, 16] }

/**
 * An image: a `Blob` of its file. One that came as raw pixels is made a PNG file where PNG has its mode (1, L, LA, RGB,
 * RGBA, I;16), and has `mode`, `width`, `height` and `pixels` (Pillow's, row by row); of other files they are undefined.
 */
export class RpcImage extends Blob {
  constructor(format, bytes, mode, size) {
    const isRaw = format === "raw"
    const file = isRaw ? pngOf(mode, size, bytes) : bytes
    super([file ?? bytes], { type: file ? `image/${isRaw ? "png" : format}` : "application/octet-stream" })
    const [width, height] = isRaw ? size : []
    Object.assign(this, { format, mode, width, height, pixels: isRaw ? bytes : undefined, bytes: isRaw ? undefined : bytes })
  }
}

let crcTable

function crc32(bytes) {
  crcTable ??= Uint32Array.from({ length: 256 }, (_, n) => {
    for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1
    return n
  })
  let crc = -1
  for (let i = 0; i < bytes.length; i++) crc = crcTable[(crc ^ bytes[i]) & 255] ^ (crc >>> 8)
  return ~crc >>> 0
}

/** Pixels as a PNG file without compression (RFC 1950, 1951 and 2083); undefined for a mode that PNG has not. */
function pngOf(mode, size, pixels) {
  const [width, height] = Array.isArray(size) ? size : []
  if (![width, height].every((side) => Number.isSafeInteger(side) && side >= 0 && side < 2 ** 31))
    throw new TypeError("the size of an image is [width, height]")
  if (!Object.hasOwn(PNG_COLORS, mode)) return undefined
  const [depth, color, bits] = PNG_COLORS[mode]
  const row = Math.ceil((width * bits) / 8)
  if (row * height !== pixels.length) throw new TypeError(`an image of ${mode}, ${width} x ${height}, has ${pixels.length} bytes`)
  if (!pixels.length) return undefined
  const lines = new Uint8Array((row + 1) * height) // a filter (none) and the row
  for (let y = 0; y < height; y++) lines.set(pixels.subarray(y * row, (y + 1) * row), y * (row + 1) + 1)
  if (depth === 16)
    for (let y = 0; y < height; y++)
      for (let at = y * (row + 1) + 1, end = at + row; at < end; at += 2) [lines[at], lines[at + 1]] = [lines[at + 1], lines[at]]
  const blocks = Math.ceil(lines.length / 65535)
  const packed = new Uint8Array(2 + 5 * blocks + lines.length + 4)
  const view = new DataView(packed.buffer)
  view.setUint16(0, 0x7801)
  let [at, low, high] = [2, 1, 0]
  for (let i = 0; i < blocks; i++) {
    const block = lines.subarray(i * 65535, (i + 1) * 65535)
    packed[at] = +(i === blocks - 1)
    view.setUint16(at + 1, block.length, true)
    view.setUint16(at + 3, ~block.length, true)
    packed.set(block, at + 5)
    at += 5 + block.length
  }
  for (let i = 0; i < lines.length; ) {
    for (const end = Math.min(i + 3800, lines.length); i < end; i++) high += low += lines[i]
    low %= 65521
    high %= 65521
  }
  view.setUint16(at, high)
  view.setUint16(at + 2, low)
  const file = new Uint8Array(8 + 25 + 12 + packed.length + 12)
  const whole = new DataView(file.buffer)
  file.set([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])
  let end = 8
  const chunk = (name, length, fill) => {
    whole.setUint32(end, length)
    for (let i = 0; i < 4; i++) file[end + 4 + i] = name.charCodeAt(i)
    fill(end + 8)
    whole.setUint32(end + 8 + length, crc32(file.subarray(end + 4, end + 8 + length)))
    end += 12 + length
  }
  chunk("IHDR", 13, (to) => {
    whole.setUint32(to, width)
    whole.setUint32(to + 4, height)
    file.set([depth, color], to + 8)
  })
  chunk("IDAT", packed.length, (to) => file.set(packed, to))
  chunk("IEND", 0, () => {})
  return file
}

// -- JSON -------------------------------------------------------------------------------------------------------------

const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/

function toBase64(bytes) {
  if (bytes.toBase64) return bytes.toBase64()
  if (globalThis.Buffer) return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString("base64")
  let text = ""
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000))
  return btoa(text)
}

function fromBase64(text) {
  if (text instanceof Uint8Array) return text // came in a frame
  if (typeof text !== "string" || text.length % 4 || /[^A-Za-z0-9+/=]/.test(text)) throw new TypeError("data is not base64")
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text)
  if (globalThis.Buffer) return new Uint8Array(Buffer.from(text, "base64"))
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0))
}

// Integers beyond 2^53 pass JSON.parse and JSON.stringify as texts that begin so; a peer cannot know this prefix.
const MARK = `${crypto.randomUUID()}:`
const BIG = new RegExp(`"${MARK}(-?[\\d.]+)"`, "g")
const TOKENS = /"[^"\\]*(?:\\[^][^"\\]*)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/g
const VALUES = /"[^"\\]*(?:\\[^][^"\\]*)*"|[,[{]/g

// A member may have any name, `__proto__` too.
const put = (object, key, value) =>
  Object.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true })

/** The value of a text from the other end. Throws where it is not JSON, or over the limits. */
function parse(text, payloads, limits) {
  if (text.length > limits.maxValues) {
    VALUES.lastIndex = 0
    for (let values = 0; VALUES.test(text); ) if (++values > limits.maxValues) throw new TypeError("a message has too many values")
  }
  const hasBig = /\d{16}/.test(text)
  const whole = !hasBig ? text : text.replace(TOKENS, (token) => {
    if (!/^-?\d{16,}$/.test(token)) return token
    if (token.length > 4300) throw new TypeError("an integer has too many digits")
    return Number.isSafeInteger(+token) ? token : `"${MARK}${token}"`
  })
  const tree = JSON.parse(whole)
  if (!hasBig && !payloads.length) return tree
  const used = new Set()
  const revive = (value, depth) => {
    if (typeof value === "string") return hasBig && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value
    if (value === null || typeof value !== "object") return value
    if (depth > limits.maxDepth) throw new TypeError("a message is nested too deep")
    if (Array.isArray(value)) {
      for (let i = 0; i < value.length; i++) value[i] = revive(value[i], depth + 1)
      return value
    }
    if (payloads.length && Object.hasOwn(value, "$bin")) {
      const index = value.$bin
      if (!Number.isInteger(index) || !payloads[index] || used.has(index)) throw new TypeError("a payload is missing")
      used.add(index)
      return payloads[index]
    }
    for (const key of Object.keys(value)) {
      const old = value[key]
      const made = typeof old === "object" || hasBig ? revive(old, depth + 1) : old
      if (made !== old) put(value, key, made)
    }
    return value
  }
  const value = revive(tree, 0)
  if (used.size !== payloads.length) throw new TypeError("a payload has no place")
  return value
}

const INFINITIES = { inf: Infinity, "-inf": -Infinity }
const TABLES = ["arrow", "polars", "pandas"]

/** A part of a message with its tagged objects as arrays, images, bytes... `streams` gives a stream by its name. */
function decoded(value, limits, streams, depth = 0) {
  if (value === null || typeof value !== "object" || value instanceof Uint8Array) return value
  if (depth > limits.maxDepth) throw new TypeError("a message is nested too deep")
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) value[i] = decoded(value[i], limits, streams, depth + 1)
    return value
  }
  const tag = Object.hasOwn(value, "$type") ? value.$type : undefined
  if (tag === "ndarray") return arrayOf(value.dtype, value.shape, fromBase64(value.data))
  if (tag === "image") return new RpcImage(`${value.format}`, fromBase64(value.data), value.mode, value.size)
  if (tag === "bytes") return fromBase64(value.data)
  if (tag === "complex") return new Complex(...[value.real, value.imag].map((part) => INFINITIES[part] ?? Number(part)))
  if (tag === "stream" && streams) return streams(value.id)
  for (const key of Object.keys(value)) {
    const isTable = key === "data" && TABLES.includes(tag) // a stream of Arrow
    const made = isTable ? fromBase64(value[key]) : decoded(value[key], limits, streams, depth + 1)
    if (made !== value[key]) put(value, key, made)
  }
  return value
}

/** Values on their way out: as a tree for JSON.stringify, with large payloads and streams of items put aside. */
class Outgoing {
  payloads = []
  streams = [] // [name, async iterable]
  isLarge = false // it has a payload that could travel in a frame
  #files = new Map()
  #waiting = []
  #hasBig = false
  #isPlain = true // no member has the name $bin, which only frames may have

  /** `nameStream` names a stream; without it (over HTTP) streams are collected. */
  constructor(takesFrames, nameStream) {
    Object.assign(this, { takesFrames, nameStream })
  }

  /** The tree of a value; a promise of it where files must be read first. Throws TypeError for what has no form. */
  tree(value) {
    const made = this.#tree(value, 0)
    const waiting = this.#waiting
    const mixes = this.payloads.length && !this.#isPlain
    if (!waiting.length && !mixes) return made
    Object.assign(this, { payloads: [], streams: [], takesFrames: this.takesFrames && !mixes })
    this.#waiting = []
    return waiting.length ? Promise.all(waiting).then(() => this.tree(value)) : this.tree(value)
  }

  #tree(value, depth) {
    if (depth > LIMITS.maxDepth) throw new TypeError(`a value is nested deeper than ${LIMITS.maxDepth}`)
    if (typeof value === "bigint" || Object.is(value, -0)) {
      this.#hasBig = true
      return MARK + (typeof value === "bigint" ? value : "-0.0")
    }
    if (typeof value === "function" || typeof value === "symbol") throw new TypeError(`a ${typeof value} has no form on the wire`)
    if (value === null || typeof value !== "object") return value
    if (Array.isArray(value)) return value.map((each) => this.#tree(each, depth + 1))
    const rich = this.#rich(value)
    if (rich !== undefined) return rich
    if (typeof value.toJSON === "function") return this.#tree(value.toJSON(), depth + 1)
    if (value instanceof Set) return this.#tree([...value], depth)
    if (value[Symbol.asyncIterator]) return this.#stream(value)
    const made = {}
    for (const [key, each] of value instanceof Map ? value : Object.entries(value)) {
      if (key === "$bin") this.#isPlain = false
      const isTable = key === "data" && each instanceof Uint8Array && typeof value.$type === "string"
      put(made, key, isTable ? this.#payload(each) : this.#tree(each, depth + 1))
    }
    return made
  }

  #rich(value) {
    if (value instanceof NdArray) return { $type: "ndarray", dtype: value.dtype, shape: value.shape, data: this.#payload(bytesOf(value.data)) }
    if (value instanceof Uint8Array) return { $type: "bytes", data: this.#payload(value) }
    if (value instanceof ArrayBuffer) return this.#rich(new Uint8Array(value))
    if (ArrayBuffer.isView(value)) return this.#rich(NdArray.from(value))
    if (value instanceof Complex) return { $type: "complex", real: this.#tree(part(value.real)), imag: this.#tree(part(value.imag)) }
    if (value instanceof RpcImage) return this.#image(value.format, value.pixels ?? value.bytes, value)
    if (isA("ImageData", value)) return this.#image("raw", bytesOf(value.data), { mode: "RGBA", width: value.width, height: value.height })
    if (!(value instanceof Blob) && !DRAWABLE.some((name) => isA(name, value))) return undefined
    const [type, bytes] = this.#files.get(value) ?? []
    if (bytes === undefined) this.#waiting.push(readFile(value).then((file) => this.#files.set(value, file)))
    else if (type.startsWith("image/")) return this.#image(type.slice(6), bytes)
    else return this.#rich(bytes)
    return null
  }

  #image(format, bytes, { mode, width, height } = {}) {
    const raw = format === "raw" ? { mode, size: [width, height] } : {}
    return { $type: "image", format, ...raw, data: this.#payload(bytes) }
  }

  #payload(bytes) {
    if (bytes.length < ATTACHED_MIN) return toBase64(bytes)
    this.isLarge = true
    if (!this.takesFrames || this.payloads.length === ATTACHED_MAX) return toBase64(bytes)
    return { $bin: this.payloads.push(bytes) - 1 }
  }

  #stream(items) {
    if (this.nameStream) {
      const name = this.nameStream()
      this.streams.push([name, items])
      return { $type: "stream", id: name }
    }
    if (!this.#files.has(items)) this.#waiting.push(collect(items).then((list) => this.#files.set(items, list)))
    return this.#files.has(items) ? this.#tree(this.#files.get(items), 1) : null
  }

  /** The message: text, or where large payloads stand in it the bytes of a frame, with its JSON. */
  message(tree) {
    let text = JSON.stringify(tree)
    if (this.#hasBig) text = text.replace(BIG, "$1")
    if (!this.payloads.length) return { text, data: text }
    const json = new TextEncoder().encode(`${text}\n`)
    const sizes = this.payloads.map((each) => each.length)
    let header = `@${json.length} ${sizes.join(" ")}`
    header = `${header.padEnd(header.length + 7 - ((header.length + json.length) % 8))}\n`
    const last = sizes.pop()
    const data = new Uint8Array(header.length + json.length + sizes.reduce((sum, each) => sum + pad8(each), last))
    data.set(new TextEncoder().encode(header))
    data.set(json, header.length)
    let at = header.length + json.length
    for (const each of this.payloads) {
      data.set(each, at)
      at += pad8(each.length)
    }
    return { text, data }
  }
}

const pad8 = (size) => Math.ceil(size / 8) * 8
const part = (number) => (Number.isFinite(number) ? number : { Infinity: "inf", "-Infinity": "-inf", NaN: "nan" }[number])
const bytesOf = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
const DRAWABLE = ["ImageBitmap", "OffscreenCanvas", "HTMLCanvasElement", "HTMLImageElement"]
const isA = (name, value) => typeof globalThis[name] === "function" && value instanceof globalThis[name]

/** The type and the bytes of a file, or of the PNG file of what a browser can draw. */
async function readFile(source) {
  let file = source
  if (!(source instanceof Blob)) {
    const canvas = new OffscreenCanvas(source.naturalWidth ?? source.width, source.naturalHeight ?? source.height)
    canvas.getContext("2d").drawImage(source, 0, 0)
    file = await canvas.convertToBlob()
  }
  return [file.type, new Uint8Array(await file.arrayBuffer())]
}

async function collect(items) {
  const list = []
  for await (const item of items) list.push(item)
  return list
}

/** JSON and payloads of a binary frame (docs/reference/wire.md, "Binary frames"); throws where it is none. */
function readFrame(data) {
  const header = HEADER.exec(String.fromCharCode(...data.subarray(0, HEADER_MAX)))
  if (header === null) throw new TypeError("a binary message is no frame")
  let at = header[0].length + Number(header[1])
  const text = new TextDecoder("utf-8", { fatal: true }).decode(data.subarray(header[0].length, at))
  const payloads = []
  for (const size of header[2].slice(1).split(" ").map(Number)) {
    at += (8 - (payloads.length ? payloads.at(-1).length : 0) % 8) % 8
    payloads.push(data.subarray(at, at + size))
    at += size
  }
  if (at !== data.length || payloads.some((each) => !each.length)) throw new TypeError("a frame has another size than it says")
  return { text, payloads }
}

// -- streams ----------------------------------------------------------------------------------------------------------

/** The reading end of a stream: at most `window` items are permitted or wait; `grant(n)` permits more. */
class Items {
  #waiting = []
  #readers = []
  #end // [error, result]
  #roomy = () => {}

  constructor(window, credit = window, grant = undefined, onCredit = undefined) {
    Object.assign(this, { window, credit, grant, onCredit })
  }

  /** Take an item. False: there was no credit for it. */
  put(value) {
    if (this.#end) return true
    if (this.credit < 1) return false
    this.credit -= 1
    this.onCredit?.(this.credit)
    this.#waiting.push(value)
    this.#settle()
    return true
  }

  /** Drop the oldest items, so that at most `count` wait; tells whether there were more. */
  drop(count) {
    return this.#waiting.splice(0, Math.max(0, this.#waiting.length - count)).length > 0
  }

  /** Wait until there is credit for an item, or none wanted. */
  async room() {
    while (this.credit < 1 && !this.#end) await new Promise((resolve) => (this.#roomy = resolve))
  }

  end(error, result) {
    this.#end ??= [error, result]
    this.#roomy()
    this.#settle()
  }

  next() {
    return new Promise((resolve, reject) => {
      this.#readers.push({ resolve, reject })
      this.#settle()
    })
  }

  #settle() {
    while (this.#readers.length && (this.#waiting.length || this.#end)) {
      const { resolve, reject } = this.#readers.shift()
      if (this.#waiting.length) {
        resolve({ value: this.#waiting.shift(), done: false })
        continue
      }
      const [error, result] = this.#end
      this.#end = []
      if (error) reject(error)
      else resolve({ value: result, done: true })
    }
    const taken = this.credit + this.#waiting.length
    if (this.#end || !this.grant || taken * 2 > this.window) return
    this.credit += this.window - taken
    this.grant(this.window - taken)
    this.onCredit?.(this.credit)
    this.#roomy()
  }
}

/** The sending end of a stream: sends items of an async iterator as they are permitted. */
class ItemSender {
  #credit = 0
  #wake

  grant(n) {
    if (Number.isSafeInteger(n) && n > 0) this.#credit += n
    this.#wake?.()
  }

  /** The iterator is told to end; `run` returns. */
  stop() {
    this.isStopped = true
    this.#wake?.()
  }

  /** Returns what the iterator returned; throws what it throws. */
  async run(iterator, send) {
    try {
      for (;;) {
        while (!this.#credit && !this.isStopped) await new Promise((resolve) => (this.#wake = resolve))
        if (this.isStopped) return undefined
        const { value, done } = await iterator.next()
        if (done) return value
        if (this.isStopped) return undefined
        this.#credit -= 1
        await send(value)
      }
    } finally {
      if (this.isStopped) Promise.resolve(iterator.return?.()).catch(() => {})
    }
  }
}

// -- conversations ----------------------------------------------------------------------------------------------------

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const keyOf = (id) => (typeof id === "bigint" ? `${id}` : JSON.stringify(id))

/** Call a function of the user's; what it throws is no business of the connection. */
function tell(callback, ...values) {
  try {
    callback?.(...values)
  } catch (error) {
    console.error(error)
  }
}

/** The calls that wait for replies, of a connection or of one HTTP request. */
class Calls {
  pending = new Map() // id -> the call, with {settle, fail, group, senders}
  lastId = 0

  constructor(client) {
    this.client = client
  }

  /** The messages for calls {method, params, isNotification, timeout, items, onProgress, onResult}, and their replies. */
  enter(calls, trees, stream) {
    const group = []
    const replies = calls.map(() => undefined)
    const messages = calls.map((call, i) => {
      const { method, isNotification, timeout } = call
      const id = isNotification ? undefined : ++this.lastId
      if (id !== undefined) {
        group.push(id)
        replies[i] = new Promise((settle, fail) => this.pending.set(id, Object.assign(call, { id, settle, fail, group, senders: [] })))
        replies[i].catch(() => {})
      }
      return { jsonrpc: "2.0", id, method, params: trees[i], timeout, stream: call.items ? call.items.window : stream }
    })
    return { messages, replies, group }
  }

  /** End a call, with an error or a result. */
  finish(id, error, result) {
    const call = this.pending.get(id)
    if (call === undefined) return
    this.pending.delete(id)
    for (const sender of call.senders) sender.stop()
    call.items?.end(error, result)
    if (error) return call.fail(error)
    call.onResult?.()
    call.settle(result)
  }

  failAll(error) {
    for (const id of [...this.pending.keys()]) this.finish(id, error)
  }

  reply(message) {
    const { id, error } = message
    const call = this.pending.get(id)
    if (error !== undefined && (id === null || id === undefined)) return this.failAll(rpcError(error))
    if (call === undefined) return undefined // cancelled, or never asked
    if (!Object.hasOwn(message, "result")) return this.finish(id, rpcError(error, call.method))
    let result
    try {
      result = decoded(message.result, this.client.limits)
    } catch (problem) {
      return this.finish(id, problem)
    }
    return this.finish(id, undefined, result)
  }

  /** The replies of a batch. One error alone stands for all calls of a batch that was refused. */
  replies(messages) {
    const group = this.pending.get(messages[0]?.id)?.group ?? []
    for (const message of messages) this.handle(message)
    for (const id of group) this.finish(id, rpcError(messages[0].error))
  }

  progress({ token, value }) {
    const call = this.pending.get(token)
    if (call?.onProgress) tell(call.onProgress, decoded(value, this.client.limits))
  }
}

/** A WebSocket and the conversation on it. Each end may call the other. */
class Connection extends Calls {
  #serving = new Map() // the other end's request, by `keyOf` its id -> {abort, sender}
  #senders = new Map() // name of a stream that goes out -> ItemSender
  #received = new Map() // name of a stream that comes in -> Items
  #names = 0
  #takesFrames = false
  #hasAsked = false
  hasReceived = false

  constructor(client, socket) {
    super(client)
    this.socket = socket
    socket.binaryType = "arraybuffer"
    socket.onmessage = ({ data }) => this.#receive(data)
  }

  /** The connection is over: fail what waits, and tell the client. */
  lose(reason) {
    if (this.isLost) return
    this.isLost = true
    const error = new ConnectionError(reason)
    this.failAll(error)
    for (const { abort } of this.#serving.values()) abort.abort(error)
    for (const items of this.#received.values()) items.end(error)
    this.socket.close()
    this.client.lost(this, error)
  }

  /** Send calls, as a batch or the one alone; gives promises of their results. `stop` (a signal) cancels them. */
  async begin(calls, stop, isBatch) {
    const out = new Outgoing(this.#takesFrames && !isBatch, isBatch ? undefined : () => `s${++this.#names}`)
    let trees = out.tree(calls.map((call) => call.params))
    if (trees instanceof Promise) trees = await trees
    stop.throwIfAborted()
    if (this.isLost || this.isLeaving) throw new ConnectionError("the connection was lost", false)
    calls[0].isOnce = out.streams.length > 0
    const { messages, replies, group } = this.enter(calls, trees)
    stop.addEventListener("abort", () => {
      for (const id of group) this.#cancel(id, stop.reason)
    })
    this.#write(out, isBatch ? messages : messages[0])
    for (const [name, items] of out.streams) this.#upload(name, items, calls[0])
    return replies
  }

  /** Send a message without a reply. */
  async send(message) {
    const out = new Outgoing(this.#takesFrames)
    let tree = out.tree({ jsonrpc: "2.0", ...message })
    if (tree instanceof Promise) tree = await tree
    while (!this.isLost && this.socket.bufferedAmount > 1 << 22) await sleep(5)
    if (!this.isLost) this.#write(out, tree)
  }

  /** Close the connection when nothing comes for so long (ms), not even the reply to a ping. */
  watch(keepalive) {
    let silent = 0
    const timer = setInterval(() => {
      if (this.isLost) return clearInterval(timer)
      silent = this.hasReceived ? 0 : silent + 1
      this.hasReceived = false
      if (silent === 1) this.begin([{ method: "rpc.ping" }], new AbortController().signal).catch(() => {})
      return silent > 1 && this.lose("the server has been silent for too long")
    }, keepalive / 2)
  }

  credit(key, n) {
    this.send({ method: "$/credit", params: { ...key, n } })
  }

  #write(out, tree) {
    const { text, data } = out.message(tree)
    this.client.show("out", text, data)
    this.socket.send(data)
    if (out.isLarge) this.#askForFrames()
  }

  #cancel(id, error) {
    if (!this.pending.has(id)) return
    this.finish(id, error)
    this.send({ method: "$/cancelRequest", params: { id } })
  }

  /** Ask once whether the other end reads binary frames. */
  async #askForFrames() {
    if (this.#hasAsked || !this.client.binary) return
    this.#hasAsked = true
    const call = { method: "rpc.hello", params: { binary: 1 } }
    const [reply] = await this.begin([call], new AbortController().signal)
    reply.then((result) => (this.#takesFrames = result?.binary === 1)).catch(() => {})
  }

  #upload(name, items, call) {
    const sender = new ItemSender()
    this.#senders.set(name, sender)
    call.senders.push(sender)
    const end = (error) => {
      this.#senders.delete(name)
      if (!sender.isStopped) this.send({ method: "$/end", params: { stream: name, error } })
    }
    sender.run(items[Symbol.asyncIterator](), (value) => this.send({ method: "$/item", params: { stream: name, value } }))
      .then(() => end(), (error) => end(errorOf(error)))
  }

  #receive(data) {
    this.hasReceived = true
    let message
    try {
      let [text, payloads] = [data, []]
      if ((data.byteLength ?? data.length) > this.client.limits.maxMessageSize) throw new TypeError("a message is too large")
      if (typeof data !== "string") {
        const bytes = new Uint8Array(data)
        if (bytes[0] === 64) ({ text, payloads } = readFrame(bytes))
        else text = new TextDecoder("utf-8", { fatal: true }).decode(bytes)
      }
      this.client.show("in", text, data)
      message = parse(text, payloads, this.client.limits)
      if (typeof data === "string" && data.length > ATTACHED_MIN && data.includes('"data":"')) this.#askForFrames()
    } catch (error) {
      return this.lose(`the server sent what cannot be read: ${error.message}`)
    }
    if (!Array.isArray(message)) return this.handle(message)
    if (message.some((each) => typeof each?.method === "string")) return this.#serveBatch(message)
    return this.replies(message)
  }

  /** Do what a message says. */
  handle(message) {
    if (message === null || typeof message !== "object") return undefined
    if (typeof message.method !== "string") return this.reply(message)
    if (Object.hasOwn(message, "id") || !message.method.startsWith("$/")) return this.#serve(message)
    try {
      this.#control(message.method, message.params ?? {})
    } catch (error) {
      this.lose(`the server sent what cannot be read: ${error.message}`)
    }
    return undefined
  }

  #control(method, params) {
    const { id, stream } = params
    if (method === "$/progress") this.progress(params)
    else if (method === "$/event") this.client.event(this, params.topic, decoded(params.value, this.client.limits))
    else if (method === "$/item") {
      const items = stream === undefined ? this.pending.get(id)?.items : this.#received.get(stream)
      if (items === undefined || items.put(decoded(params.value, this.client.limits))) return
      const error = new RpcError(-32600, "the stream has more items than were permitted")
      items.end(error)
      this.#cancel(id, error)
    } else if (method === "$/end") this.#received.get(stream)?.end(params.error && rpcError(params.error))
    else if (method === "$/credit") (stream === undefined ? this.#serving.get(keyOf(id))?.sender : this.#senders.get(stream))?.grant(params.n)
    else if (method === "$/cancelRequest") this.#serving.get(keyOf(id))?.abort.abort(new RpcError(-32800, "Cancelled"))
    else if (method === "$/goAway") this.#leave(params.last)
  }

  /** The other end stops: requests behind that with the id `last` were not read, all others will be answered. */
  #leave(last) {
    if (this.isLeaving) return
    this.isLeaving = true
    this.client.leaves(this)
    if (last !== null && typeof last !== "number") return
    const error = new ConnectionError("the server is stopping", false)
    for (const id of [...this.pending.keys()]) if (id > (last ?? 0)) this.finish(id, error)
  }

  async #serve(message) {
    const reply = await this.#answer(message)
    if (reply !== undefined) this.send(reply)
  }

  async #serveBatch(messages) {
    if (messages.length > this.client.limits.maxBatch) return this.lose("the server sent a batch that is too large")
    const replies = (await Promise.all(messages.map((each) => this.#answer(each)))).filter(Boolean)
    const out = new Outgoing(false)
    if (replies.length && !this.isLost) this.#write(out, await out.tree(replies))
  }

  /** The reply to a request of the other end. */
  async #answer(message) {
    const isRequest = Object.hasOwn(message, "id")
    const { id, method, stream } = message
    const key = isRequest ? keyOf(id) : Symbol(method)
    const [abort, sender, names] = [new AbortController(), new ItemSender(), []]
    const isBusy = this.#serving.size >= this.client.limits.maxCalls
    let timer
    try {
      if (isBusy) throw new RpcError(-32002, "Server busy", { limit: this.client.limits.maxCalls })
      this.#serving.set(key, { abort, sender })
      if (message.timeout > 0) timer = setTimeout(() => abort.abort(new RpcError(-32003, "Deadline exceeded")), Math.min(message.timeout * 1000, DAY_MAX))
      const params = decoded(message.params, this.client.limits, (name) => this.#receiving(name, names))
      const progress = (value) => this.send({ method: "$/progress", params: { token: id, value } })
      const stopped = new Promise((_, reject) => {
        abort.signal.addEventListener("abort", () => {
          sender.stop()
          reject(abort.signal.reason)
        })
      })
      stopped.catch(() => {})
      const work = async () => {
        const result = await this.#perform(method, params, { signal: abort.signal, method, id, progress })
        if (!result?.[Symbol.asyncIterator] || result instanceof Blob) return result
        if (!Number.isInteger(stream) || stream < 0) return collect(result)
        sender.grant(stream)
        return sender.run(result[Symbol.asyncIterator](), (value) => this.send({ method: "$/item", params: { id, value } }))
      }
      const result = (await Promise.race([work(), stopped])) ?? null
      await new Outgoing(false).tree(result) // what has no form on the wire throws here
      return isRequest ? { jsonrpc: "2.0", id, result } : undefined
    } catch (error) {
      return isRequest ? { jsonrpc: "2.0", id, error: errorOf(error) } : undefined
    } finally {
      clearTimeout(timer)
      if (!isBusy) this.#serving.delete(key)
      for (const name of names) this.#received.delete(name)
    }
  }

  #perform(method, params, context) {
    if (method === "rpc.ping") return "pong"
    if (method === "rpc.hello") {
      this.#takesFrames ||= this.client.binary && params?.binary === 1
      return { binary: +this.client.binary }
    }
    const { methods } = this.client
    const handler = typeof methods === "function" ? methods(method) : Object.hasOwn(methods, method) ? methods[method] : undefined
    if (typeof handler !== "function") throw new RpcError(-32601, `Method not found: ${SHOWN(method)}`)
    return handler(params, context)
  }

  /** The reading end of a stream that the other end's call has as an argument. */
  #receiving(name, names) {
    if (typeof name !== "string" || this.#received.has(name)) throw new RpcError(-32602, "Invalid params: no name for a stream")
    if (this.#received.size >= this.client.limits.maxCalls) throw new RpcError(-32002, "Server busy")
    const items = new Items(WINDOW, 0, (n) => this.credit({ stream: name }, n))
    names.push(name)
    this.#received.set(name, items)
    const iterator = { next: () => items.next(), return: async () => ({ done: true }), [Symbol.asyncIterator]: () => iterator }
    return iterator
  }
}

/** The error object for what a function threw; the reason stays here, since it may tell of what is no one's business. */
function errorOf(error) {
  if (error instanceof RpcError) return error.toJSON()
  console.error(error)
  return { code: -32603, message: "Internal error" }
}

/** One POST, which carries a call or a batch. */
class HttpExchange extends Calls {
  async begin(calls, stop, isBatch) {
    const { client } = this
    const out = new Outgoing(client.postsFrames && !isBatch)
    const trees = await out.tree(calls.map((call) => call.params))
    const isLines = calls.some((call) => call.items || call.onProgress)
    const { messages, replies } = this.enter(calls, trees, isLines ? null : undefined)
    try {
      const { text, data } = out.message(isBatch ? messages : messages[0])
      const isFrame = typeof data !== "string"
      const token = await client.token()
      const headers = { "Content-Type": isFrame ? FRAME_TYPE : "application/json" }
      headers.Accept = isLines ? "application/x-ndjson" : client.binary ? `application/json, ${FRAME_TYPE}` : "application/json"
      if (token) headers.Authorization = `Bearer ${token}`
      client.show("out", text, data)
      const response = await fetch(client.url, { method: "POST", headers, body: data, signal: stop })
      if (client.binary && response.headers.get("Accept-Post")?.includes(FRAME_TYPE)) client.postsFrames = true
      if (isFrame && response.status === 415) {
        client.postsFrames = client.binary = false
        return new HttpExchange(client).begin(calls, stop, isBatch)
      }
      const reading = this.#read(response).catch((error) => this.#fail(error, stop))
      if (!isLines) await reading // else its items are read as they come
    } catch (error) {
      this.#fail(error, stop)
    }
    return replies
  }

  #fail(error, stop) {
    const isOurs = error instanceof RpcError || error instanceof ConnectionError
    this.failAll(stop.aborted ? stop.reason : isOurs ? error : new ConnectionError(`${this.client.url}: ${error.message}`))
  }

  async #read(response) {
    const type = response.headers.get("Content-Type") ?? ""
    if (type.startsWith("application/x-ndjson")) {
      for await (const line of this.#pieces(response, 10)) await this.#take(line, line)
    } else {
      for await (const body of this.#pieces(response)) {
        if (!type.startsWith("application/")) throw new ConnectionError(`HTTP ${response.status}: ${text(body).slice(0, 500).trim()}`, undefined, response.status)
        const { text: json, payloads } = type.startsWith(FRAME_TYPE) ? readFrame(body) : { text: text(body), payloads: [] }
        await this.#take(json, body, payloads)
      }
    }
    this.failAll(new ConnectionError(`HTTP ${response.status}: no reply to the call`, undefined, response.status))
  }

  /** The body, in pieces that end with this byte, or whole. */
  async *#pieces(response, end) {
    let [kept, size] = [[], 0]
    const whole = () => {
      const piece = new Uint8Array(size)
      for (let at = 0, i = 0; i < kept.length; at += kept[i++].length) piece.set(kept[i], at)
      ;[kept, size] = [[], 0]
      return piece
    }
    const reader = response.body?.getReader()
    try {
      for (let read; reader && !(read = await reader.read()).done; ) {
        let rest = read.value
        for (let at; end !== undefined && (at = rest.indexOf(end)) >= 0; rest = rest.subarray(at + 1)) {
          kept.push(rest.subarray(0, at))
          size += at
          yield whole()
        }
        kept.push(rest)
        size += rest.length
        if (size > this.client.limits.maxMessageSize + HEADER_MAX) throw new TypeError("a message is too large")
      }
      if (size) yield whole()
    } finally {
      reader?.cancel().catch(() => {})
    }
  }

  async #take(json, data, payloads = []) {
    const { client } = this
    const given = typeof json === "string" ? json : text(json)
    if (!given.trim()) return
    client.show("in", given, data)
    const message = parse(given, payloads, client.limits)
    if (Array.isArray(message)) return this.replies(message)
    await this.handle(message)
  }

  async handle(message) {
    const { method, params } = message ?? {}
    if (method === undefined) return this.reply(message)
    if (method === "$/progress") this.progress(params)
    const items = method === "$/item" ? this.pending.get(params?.id)?.items : undefined
    if (items === undefined) return undefined
    await items.room() // HTTP has no credit: what is not read is left to the connection
    items.put(decoded(params.value, this.client.limits))
    return undefined
  }
}

const text = (bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)

// -- the client -------------------------------------------------------------------------------------------------------

/** The items of a call that streams, as they come. Leaving the loop early cancels the call. For one reader. */
class Stream {
  /** What the generator returned; undefined until the stream has ended. */
  result

  constructor(begin, stop) {
    Object.assign(this, { begin, stop })
  }

  [Symbol.asyncIterator]() {
    return this
  }

  async next() {
    if (this.hasEnded) return { value: undefined, done: true }
    try {
      if (this.items === undefined) {
        const isFirst = this.beginning === undefined
        const first = await (this.beginning ??= this.begin(this))
        if (isFirst) return this.#seen(first)
      }
      return this.#seen(await this.items.next())
    } catch (error) {
      this.#end()
      throw error
    }
  }

  #seen(item) {
    if (item.done) {
      this.result = item.value
      this.#end()
    }
    return item
  }

  async return(value) {
    if (!this.hasEnded) {
      this.items?.end()
      this.stop.abort(new RpcError(-32800, "Cancelled"))
      this.#end()
    }
    return { value, done: true }
  }

  #end() {
    this.hasEnded = true
    this.stop.end()
  }
}

/** The events of a topic or pattern, as {topic, value}. Ends when the loop is left, with `return()`, and with the client. */
class Subscription {
  /** Events that were dropped since the reader was too slow. */
  dropped = 0
  /** How often it was made again on a new connection; the events between are missing. */
  reconnects = 0

  constructor(client, pattern, maxQueue, signal) {
    Object.assign(this, { client, pattern, maxQueue })
    this.items = new Items(Infinity, Infinity)
    signal?.addEventListener("abort", () => this.return())
    if (signal?.aborted) this.return()
  }

  /** Wait until the server has confirmed the subscription: all values that are published from then on arrive. */
  begin() {
    return (this.beginning ??= this.client.join(this))
  }

  put(event) {
    this.items.put(event)
    if (this.items.drop(this.maxQueue)) this.dropped += 1
  }

  async next() {
    if (!this.hasEnded) await this.begin()
    return this.items.next()
  }

  async return(value) {
    this.hasEnded = true
    this.items.end()
    this.items.drop(0)
    this.client.part(this)
    return { value, done: true }
  }

  [Symbol.asyncIterator]() {
    return this
  }
}

const matches = (pattern, topic) => {
  if (pattern === topic) return true
  const [wanted, levels] = [pattern.split("."), topic.split(".")]
  if (levels[0] === "rpc" && (wanted[0] === "*" || wanted[0] === ">")) return false
  const isOpen = wanted.at(-1) === ">" && wanted.pop()
  if (isOpen ? levels.length <= wanted.length : levels.length !== wanted.length) return false
  return wanted.every((level, i) => level === "*" || level === levels[i])
}

/** Calls methods of a server. See client.d.ts for all options. */
export class Client {
  #connection
  #connecting
  #topics = new Map() // topic or pattern -> {subscribers, on: the connection that the server confirmed it on}
  #idempotent
  #options
  #wake

  constructor(url, options = {}) {
    const here = globalThis.location?.href
    this.url = new URL(url ?? new URL("/", here).href.replace(/^http/, "ws"), here)
    if (!/^(wss?|https?):$/.test(this.url.protocol)) throw new TypeError(`an address begins with ws:, wss:, http: or https:, got ${SHOWN(url)}`)
    const { token, binary = true, methods = {}, reconnect = false, timeout = 60_000, retries = 3, ...rest } = options
    this.#options = rest
    this.token = typeof token === "function" ? token : () => token
    this.isHttp = this.url.protocol.startsWith("http")
    this.reconnect = reconnect && !this.isHttp ? { ...BACKOFF, ...reconnect } : undefined
    this.state = "closed"
    Object.assign(this, { binary, methods, timeout, retries, limits: { ...LIMITS, ...rest.limits } })
  }

  /** Call a method; gives its result. Rejects with RpcError, ConnectionError, CallTimeout, or the signal's reason. */
  async call(method, params, options = {}) {
    const stop = this.#stopper(method, options)
    const call = { method, params, onProgress: options.onProgress }
    try {
      return await this.#perform(call, options, stop, async (peer) => (await peer.begin([call], stop.signal))[0])
    } finally {
      stop.end()
    }
  }

  /** Send a notification, which has no reply. Resolves when it was sent. */
  async notify(method, params, options = {}) {
    const stop = this.#stopper(method, options)
    const call = { method, params, isNotification: true }
    try {
      await this.#perform(call, options, stop, (peer) => peer.begin([call], stop.signal))
    } finally {
      stop.end()
    }
  }

  /**
   * Send several calls as one message: `[method, params]`, or `[method, params, { notify: true }]`. Gives a list with the
   * result of each, or its RpcError (which is not thrown); undefined for a notification.
   */
  async batch(entries, options = {}) {
    const stop = this.#stopper("batch", options)
    const calls = entries.map(([method, params, { notify = false } = {}]) => ({ method, params, isNotification: notify }))
    try {
      return await this.#perform({}, { idempotent: false, ...options }, stop, async (peer) => {
        const settled = await Promise.allSettled(await peer.begin(calls, stop.signal, true))
        return settled.map(({ value, reason }) => {
          if (reason === undefined || reason instanceof RpcError) return reason ?? value
          throw reason
        })
      })
    } finally {
      stop.end()
    }
  }

  /** The items of a method that streams: `for await (const item of client.stream("count", [10]))`. */
  stream(method, params, options = {}) {
    const { credit = WINDOW, onCredit, onProgress, timeout } = options
    if (!(credit >= 1)) throw new RangeError("a stream needs credit for an item")
    const stop = this.#stopper(method, { ...options, timeout: timeout ?? 0 })
    const call = { method, params, onProgress }
    const begin = (stream) =>
      this.#perform(call, { idempotent: false, ...options }, stop, async (peer) => {
        const items = new Items(credit, credit, (n) => peer.credit?.({ id: call.id }, n), (n) => tell(onCredit, n))
        call.items = items
        await peer.begin([call], stop.signal)
        tell(onCredit, items.credit)
        const first = await items.next()
        stream.items = items
        return first
      })
    return new Stream(begin, stop)
  }

  /** The events of a topic or pattern: `for await (const { topic, value } of client.subscribe("news.>"))`. */
  subscribe(pattern, { signal, maxQueue = 1000 } = {}) {
    if (this.isHttp) throw new TypeError("events need a WebSocket: an address with ws: or wss:")
    return new Subscription(this, `${pattern}`, maxQueue, signal)
  }

  /** Send an event to the subscribers of a topic of a hub; gives how many connections it is sent to. */
  publish(topic, value, { retain = false, ...options } = {}) {
    return this.call("rpc.publish", { topic, value, retain }, options)
  }

  /** The OpenRPC document of the server's methods. */
  discover(options) {
    return this.call("rpc.discover", undefined, options)
  }

  /** Connect now, which the first call does otherwise. */
  async connect() {
    await this.#peer()
  }

  /** Close the connection. Calls that wait fail, subscriptions end, and the client makes no connection any more. */
  close() {
    this.isClosed = true
    this.#wake?.()
    for (const { subscribers } of this.#topics.values()) for (const each of subscribers) each.items.end()
    this.#topics.clear()
    this.#connection?.lose("the client was closed")
  }

  // -- for the classes above ------------------------------------------------------------------------------------------

  show(direction, text, data) {
    const { onMessage } = this.#options
    if (onMessage === undefined) return
    const bytes = data.byteLength ?? new TextEncoder().encode(data).length
    const binary = typeof data !== "string" && new Uint8Array(data)[0] === 64
    const isSecret = direction === "out" && text.includes('"rpc.authenticate"')
    tell(onMessage, { direction, text: isSecret ? text.replace(/"token":"(?:[^"\\]|\\.)*"/, '"token":"…"') : text, bytes, binary })
  }

  event(connection, topic, value) {
    if (typeof topic !== "string") return
    for (const [pattern, { subscribers, on }] of this.#topics)
      if (on === connection && matches(pattern, topic)) for (const each of subscribers) each.put({ topic, value })
  }

  async join(subscription) {
    const { pattern } = subscription
    const entry = this.#topics.get(pattern) ?? { subscribers: new Set() }
    this.#topics.set(pattern, entry)
    entry.subscribers.add(subscription)
    const stop = this.#stopper("rpc.subscribe", {})
    try {
      const call = { method: "rpc.subscribe", params: { topic: pattern } }
      await this.#perform(call, { idempotent: true }, stop, async (peer) => {
        call.onResult = () => Object.assign(entry, { on: peer, hasBegun: true })
        if (entry.on !== peer) await (await peer.begin([call], stop.signal))[0]
      })
    } catch (error) {
      this.part(subscription)
      throw error
    } finally {
      stop.end()
    }
  }

  part(subscription) {
    const { pattern } = subscription
    const entry = this.#topics.get(pattern)
    if (!entry?.subscribers.delete(subscription) || entry.subscribers.size) return
    this.#topics.delete(pattern)
    if (entry.on && !entry.on.isLost) entry.on.send({ method: "rpc.unsubscribe", params: { topic: pattern } })
  }

  leaves(connection) {
    if (this.#connection !== connection) return
    this.#connection = undefined
    this.#again()
  }

  lost(connection, error) {
    for (const [pattern, entry] of this.#topics) {
      if (entry.on !== connection) continue
      entry.on = undefined
      if (this.reconnect && !this.isClosed) continue
      this.#topics.delete(pattern)
      for (const each of entry.subscribers) each.items.end(error)
    }
    if (this.#connection !== connection) return
    this.#connection = undefined
    this.#tellState("closed")
    this.#again()
  }

  // -- connections and repetitions ------------------------------------------------------------------------------------

  #again() {
    if (this.reconnect && !this.isClosed) this.#peer().catch(() => {})
  }

  #tellState(state) {
    if (this.state === state) return
    this.state = state
    tell(this.#options.onState, state)
  }

  /** The connection, made where there is none. */
  async #peer() {
    if (this.isClosed) throw new ConnectionError("the client is closed", false)
    if (this.isHttp) return new HttpExchange(this)
    return this.#connection ?? (this.#connecting ??= this.#open().finally(() => (this.#connecting = undefined)))
  }

  async #open() {
    for (let failures = 0; ; failures++) {
      this.#tellState("connecting")
      try {
        return await this.#dial()
      } catch (error) {
        if (!this.reconnect || this.isClosed || error instanceof RpcError) {
          this.#tellState("closed")
          throw error
        }
      }
      const { first, longest, factor } = this.reconnect
      const pause = Math.min(first * factor ** Math.min(failures, 60), longest) * (0.5 + 0.5 * Math.random())
      await Promise.race([sleep(pause), new Promise((resolve) => (this.#wake = resolve))])
    }
  }

  async #dial() {
    const { connectTimeout = 10_000, keepalive, onConnect } = this.#options
    const Socket = this.#options.WebSocket ?? globalThis.WebSocket
    if (Socket === undefined) throw new TypeError("there is no WebSocket here (Node.js before 22): give one as the option WebSocket, run node --experimental-websocket, or take an http: address")
    const token = await this.token()
    const socket = new Socket(this.url)
    const connection = new Connection(this, socket)
    const stop = this.#stopper(`${this.url}`, { timeout: connectTimeout })
    const call = async (method, params) => (await connection.begin([{ method, params }], stop.signal))[0]
    try {
      await new Promise((resolve, reject) => {
        const fail = (reason) => {
          connection.lose(reason)
          reject(new ConnectionError(`${this.url}: ${reason}`, false))
        }
        socket.onopen = resolve
        socket.onclose = ({ code, reason }) => fail(`the connection was closed (${code}${reason && `, ${reason}`})`)
        socket.onerror = () => {} // onclose follows
        stop.signal.addEventListener("abort", () => fail("no connection in time"))
      })
      if (token) await call("rpc.authenticate", { token })
      await onConnect?.({ call })
      await Promise.all([...this.#topics].map(([topic, entry]) => this.#resume(topic, entry, connection, stop)))
      if (this.isClosed || connection.isLost) throw new ConnectionError("the connection was lost", false)
    } catch (error) {
      connection.lose(error.message)
      throw error
    } finally {
      stop.end()
    }
    this.#connection = connection
    if (keepalive) connection.watch(keepalive)
    this.#tellState("open")
    return connection
  }

  /** Subscribe on a new connection to what a lost one was subscribed to. */
  async #resume(topic, entry, connection, stop) {
    if (!entry.hasBegun) return
    const call = { method: "rpc.subscribe", params: { topic }, onResult: () => (entry.on = connection) }
    try {
      await (await connection.begin([call], stop.signal))[0]
      for (const each of entry.subscribers) each.reconnects += 1
    } catch (error) {
      if (!(error instanceof RpcError)) throw error
      this.#topics.delete(topic)
      for (const each of entry.subscribers) each.items.end(error)
    }
  }

  /** A signal that ends a call: by the signal of its options, or by its time-out. */
  #stopper(method, { signal, timeout = this.timeout }) {
    const stop = new AbortController()
    const abort = () => stop.abort(signal.reason)
    const late = () => stop.abort(new CallTimeout(`${method}: no reply within ${timeout} ms`))
    const timer = timeout > 0 && timeout < Infinity ? setTimeout(late, Math.min(timeout, DAY_MAX)) : undefined
    signal?.addEventListener("abort", abort)
    if (signal?.aborted) abort()
    stop.until = timer && performance.now() + timeout
    stop.end = () => {
      clearTimeout(timer)
      signal?.removeEventListener("abort", abort)
    }
    return stop
  }

  /** Run what a call does with a connection, and again where that is safe. */
  async #perform(call, options, stop, run) {
    for (let count = 0; ; count++) {
      let peer
      try {
        stop.signal.throwIfAborted()
        peer = await raced(this.#peer(), stop.signal)
        if (options.timeout > 0 && stop.until) call.timeout = Math.max(1, stop.until - performance.now()) / 1000
        return await run(peer)
      } catch (error) {
        if (stop.signal.aborted || this.isClosed || call.isOnce || !(await raced(this.#mayRepeat(error, call, options, count, peer), stop.signal))) throw error
      }
      await raced(sleep(count && Math.min(25 * 2 ** count, 1000)), stop.signal)
    }
  }

  async #mayRepeat(error, { method }, { idempotent }, count, peer) {
    const isLoss = error instanceof ConnectionError || error.code === -32007
    if (peer === undefined) return isLoss && count > 0 && count < this.retries
    if ((isLoss || error.code === -32800) && (error.data ?? error).executed === false) return count < Math.max(this.retries, REPEATS)
    return isLoss && count < this.retries && (idempotent ?? this.#isIdempotent(method))
  }

  /** Whether the server declares a method idempotent; false where it does not say. */
  async #isIdempotent(method) {
    if (method === "rpc.discover") return true
    this.#idempotent ??= this.discover().then(({ methods }) => new Set(methods.filter((each) => each?.["x-idempotent"] === true).map((each) => each.name)))
    try {
      return (await this.#idempotent).has(method)
    } catch {
      this.#idempotent = undefined
      return false
    }
  }
}

/** What a promise gives, unless the signal is aborted before. */
function raced(promise, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason)
    signal.addEventListener("abort", abort)
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort))
  })
}
