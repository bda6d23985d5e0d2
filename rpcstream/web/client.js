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
const ATTACHED_MAX = 64 // payloads of a frame that we send; more are sent as text
const FRAME_TYPE = "application/x-rpcstream"
const LINES_TYPE = "application/x-ndjson"
const HEADER = /^@(\d{1,12})((?: \d{1,12}){1,256}) {0,7}\n/
const HEADER_MAX = 4096
const WINDOW = 16 // items of a stream that are permitted at once
const REPEATS = 5 // of a call that the server has not begun, as it said
const BACKOFF = { first: 100, longest: 30_000, factor: 2 }
const NO_WEBSOCKET =
  "there is no WebSocket here (Node.js before 22): give one as the option WebSocket, such as that of the package ws, " +
  "run node --experimental-websocket, or take an http: address"
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

/** There is no connection: it could not be made, or it was lost before the reply. `executed` false: not begun. */
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

const shown = (value) => JSON.stringify(`${value}`.slice(0, 60))

function rpcError(error, method) {
  const { code, message, data } = error ?? {}
  return new RpcError(typeof code === "number" ? code : -32603, `${message ?? "the reply is no reply"}`, data, method)
}

/** What a call rejects with for the error of its reply. The server may notice before the client that its time is over. */
function failure(error, { method, timeout, late, until }) {
  const known = rpcError(error, method)
  // A method may have a shorter time limit of its own, which is an error of the server.
  const isOwn = known.data?.timeout < 0.9 * timeout && until - performance.now() > 100 * timeout
  return known.code === -32003 && timeout > 0 && !isOwn ? late() : known
}

/** The error object for what a function threw. Only the text of an RpcError is told; that of others may be private. */
function errorOf(error) {
  if (error instanceof RpcError) return error.toJSON()
  console.error(error)
  return { code: -32603, message: "Internal error" }
}

// -- arrays, images and other rich values -----------------------------------------------------------------------------

const Half = globalThis.Float16Array ?? Uint16Array
const TYPES = {
  b1: Uint8Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array,
  i8: BigInt64Array, u8: BigUint64Array, f2: Half, f4: Float32Array, f8: Float64Array, c8: Float32Array,
  c16: Float64Array, M8: BigInt64Array, m8: BigInt64Array,
}
const NAMES = {
  bool: "|b1", int8: "|i1", uint8: "|u1", int16: "<i2", uint16: "<u2", int32: "<i4", uint32: "<u4", int64: "<i8",
  uint64: "<u8", float16: "<f2", float32: "<f4", float64: "<f8", complex64: "<c8", complex128: "<c16",
}
/** Bits of exponent and fraction, bias; "ieee" has infinities, "fn" has none, "fnuz" no negative zero either. */
const SMALL_FLOATS = {
  float16: [5, 10, 15, "ieee"], bfloat16: [8, 7, 127, "ieee"], float8_e3m4: [3, 4, 3, "ieee"],
  float8_e4m3: [4, 3, 7, "ieee"], float8_e4m3b11fnuz: [4, 3, 11, "fnuz"], float8_e4m3fn: [4, 3, 7, "fn"],
  float8_e4m3fnuz: [4, 3, 8, "fnuz"], float8_e5m2: [5, 2, 15, "ieee"], float8_e5m2fnuz: [5, 2, 16, "fnuz"],
  float8_e8m0fnu: [8, 0, 127, "e8m0"],
}
const DTYPE = /^([<>|])([biufcmM])(\d{1,2})(\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?$/
const bytesOf = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
const product = (numbers) => numbers.reduce((all, each) => all * each, 1)

/** What a dtype is here: its form on the wire, the typed array, its numbers and bytes an item, which small float. */
function dtypeOf(text) {
  const name = Object.hasOwn(NAMES, text) ? NAMES[text] : text
  const dtype = `${name}`.replace(/^datetime64/, "<M8").replace(/^timedelta64/, "<m8")
  if (Object.hasOwn(SMALL_FLOATS, dtype)) {
    const type = dtype === "bfloat16" ? Uint16Array : Uint8Array
    return { dtype, type, each: 1, bytes: type.BYTES_PER_ELEMENT, float: dtype }
  }
  const [, order, kind, size, unit = ""] = DTYPE.exec(dtype) ?? []
  const type = Object.hasOwn(TYPES, kind + size) ? TYPES[kind + size] : undefined
  if (!type || (order === "|") !== (size === "1") || (unit && !"mM".includes(kind)))
    throw new TypeError(`dtype ${shown(text)} is not one that goes over the wire`)
  const float = kind === "f" && type === Uint16Array ? "float16" : undefined
  const wire = order === ">" ? `<${dtype.slice(1)}` : dtype
  return { dtype: wire, kind, type, each: kind === "c" ? 2 : 1, bytes: +size, float, isSwapped: order === ">" }
}

/** The number of a float of 8 or 16 bits. */
function smallFloat(bits, [exponentBits, fractionBits, bias, kind]) {
  if (kind === "e8m0") return bits === 255 ? NaN : 2 ** (bits - bias)
  const one = 1 << fractionBits
  const [fraction, top] = [bits & (one - 1), (1 << exponentBits) - 1]
  const exponent = (bits >> fractionBits) & top
  const sign = bits >> (exponentBits + fractionBits) ? -1 : 1
  if (kind === "fnuz" && sign < 0 && !exponent && !fraction) return NaN
  if (kind === "fn" && exponent === top && fraction === one - 1) return NaN
  if (kind === "ieee" && exponent === top) return fraction ? NaN : sign * Infinity
  return sign * (exponent ? fraction + one : fraction) * 2 ** (Math.max(exponent, 1) - bias - fractionBits)
}

/** The bits of the float16 next to a number, ties to even. */
function toHalf(number) {
  const [size, sign] = [Math.abs(number), number < 0 || Object.is(number, -0) ? 0x8000 : 0]
  if (Number.isNaN(number)) return 0x7e00
  if (size >= 65520) return sign | 0x7c00
  const exponent = Math.max(-14, Math.floor(Math.log2(size)))
  return sign | (size * 2 ** (10 - exponent) + 2 ** 52 - 2 ** 52 + (exponent + 14) * 1024)
}

/** A copy of bytes in which each unit of so many bytes is turned around. */
function swapped(bytes, unit) {
  const made = bytes.slice()
  for (let at = 0; at < made.length; at += unit) made.subarray(at, at + unit).reverse()
  return made
}

/** A complex number. */
export class Complex {
  constructor(real, imag) {
    Object.assign(this, { real, imag })
  }
}

/** An array of numpy: `dtype` and `shape`, and in `data` the items in C order in a typed array. */
export class NdArray {
  constructor(dtype, shape, data) {
    const type = dtypeOf(dtype)
    if (!Array.isArray(shape) || shape.length > 64 || !shape.every((each) => Number.isSafeInteger(each) && each >= 0))
      throw new TypeError("the shape of an array is a list of whole numbers")
    if (type.isSwapped || !(data instanceof type.type) || data.length !== product(shape) * type.each)
      throw new TypeError(`the data of ${type.dtype} [${shape}] is no ${type.type.name} of that many items`)
    Object.assign(this, { dtype: type.dtype, shape: [...shape], data })
  }

  /** An array of a typed array, or of a number or (nested) lists of numbers, by default of "<f8". */
  static from(values, dtype, shape) {
    if (ArrayBuffer.isView(values)) return new NdArray(dtype ?? dtypeOfView(values), shape ?? [values.length], values)
    const { dtype: wire, type, each, float } = dtypeOf(dtype ?? "<f8")
    if (float && float !== "float16") throw new TypeError(`of ${wire} give the bits, as a ${type.name}`)
    const lengths = []
    for (let inner = values; Array.isArray(inner); inner = inner[0]) lengths.push(inner.length)
    const flat = [values].flat(65)
    if (flat.length !== product(lengths)) throw new TypeError("the lists are not all of one length")
    const convert = type.name.startsWith("Big") ? BigInt : float ? (item) => toHalf(+item) : Number
    const items = each === 2 ? flat.flatMap((item) => [item.real ?? item, item.imag ?? 0]) : flat
    return new NdArray(wire, shape ?? lengths, type.from(items, convert))
  }

  /** Number of items. */
  get size() {
    return product(this.shape)
  }

  /** All items in a flat list: numbers, BigInt for 64 bits, booleans, or `Complex`. */
  values() {
    const { kind, each, float } = dtypeOf(this.dtype)
    const data = [...this.data]
    if (kind === "b") return data.map(Boolean)
    if (float) return data.map((bits) => smallFloat(bits, SMALL_FLOATS[float]))
    return each === 1 ? data : Array.from({ length: this.size }, (_, i) => new Complex(data[2 * i], data[2 * i + 1]))
  }

  /** The items as nested lists; the one of an array without dimensions alone. */
  toArray() {
    let lists = this.values()
    for (const size of this.shape.slice(1).reverse()) {
      const inner = lists
      lists = Array.from({ length: size && inner.length / size }, (_, i) => inner.slice(i * size, (i + 1) * size))
    }
    return this.shape.length ? lists : lists[0]
  }
}

function dtypeOfView(view) {
  const name = view.constructor.name.replace(/^Big|Clamped|Array$/g, "").toLowerCase()
  if (!Object.hasOwn(NAMES, name)) throw new TypeError(`a ${view.constructor.name} has no form on the wire`)
  return NAMES[name]
}

/** The array of a tagged object. */
function arrayOf({ dtype, shape }, bytes) {
  const { dtype: wire, type, bytes: size, isSwapped } = dtypeOf(dtype)
  if (bytes.length % size) throw new TypeError("the data of an array is no whole number of items")
  const unit = type.BYTES_PER_ELEMENT
  const own = isSwapped ? swapped(bytes, unit) : bytes.byteOffset % unit ? bytes.slice() : bytes
  return new NdArray(wire, shape, new type(own.buffer, own.byteOffset, own.length / unit))
}

/** An image: a Blob of its file. Of raw pixels a PNG file, where PNG has their mode and they are not too many. */
export class RpcImage extends Blob {
  constructor(format, bytes, mode, size, maxPngPixels = Infinity) {
    const isRaw = format === "raw"
    const isPng = isRaw && hasPng(mode, size, bytes) && product(size) <= maxPngPixels
    const type = isPng ? "image/png" : isRaw ? "application/octet-stream" : `image/${format}`
    super(isPng ? atOnce(pngOf(mode, size, bytes)) : [bytes], { type })
    const more = isRaw ? { mode, width: size[0], height: size[1], pixels: bytes } : { file: bytes }
    Object.assign(this, { format, ...more })
  }

  /** The PNG file of raw pixels, made in slices. */
  async toPng() {
    const { mode, width, height, pixels, type } = this
    if (type === "image/png") return this
    if (!pixels || !hasPng(mode, [width, height], pixels)) throw new TypeError(`no PNG file of ${mode ?? type}`)
    return new Blob(await inSlices(pngOf(mode, [width, height], pixels)), { type: "image/png" })
  }
}

const SLICE = 12 // ms

/** Run a generator to its end in slices, between which a page answers to its user; gives what it returns. */
export async function inSlices(work) {
  for (;;) {
    const end = performance.now() + SLICE
    do {
      const { value, done } = work.next()
      if (done) return value
    } while (performance.now() < end)
    await sleep(0)
  }
}

/** Run a generator to its end; gives what it returns. */
function atOnce(work) {
  for (;;) {
    const { value, done } = work.next()
    if (done) return value
  }
}

const PNG_MODES = { 1: [1, 0, 1], L: [8, 0, 8], LA: [8, 4, 16], RGB: [8, 2, 24], RGBA: [8, 6, 32], "I;16": [16, 0, 16] }
const word = (number) => [number >>> 24, number >>> 16, number >>> 8, number] // of 32 bits, for a Uint8Array

/** Whether pixels can be a PNG file. Throws TypeError where they are not of their size. */
function hasPng(mode, size, pixels) {
  const [width, height] = Array.isArray(size) ? size : []
  if (![width, height].every((side) => Number.isInteger(side) && side >= 0 && side < 2 ** 31))
    throw new TypeError("the size of an image is [width, height]")
  if (!Object.hasOwn(PNG_MODES, mode)) return false
  if (rowSize(mode, width) * height !== pixels.length)
    throw new TypeError(`the pixels of ${mode} [${size}] have another size`)
  return pixels.length > 0
}

const rowSize = (mode, width) => Math.ceil((width * PNG_MODES[mode][2]) / 8)

/** Work for `inSlices`: the parts of an uncompressed PNG file (RFC 1950, 1951, 2083) of pixels. */
function* pngOf(mode, [width, height], pixels) {
  const [depth, color] = PNG_MODES[mode]
  const row = rowSize(mode, width)
  const lines = new Uint8Array((row + 1) * height) // each with its filter, which is none
  for (let y = 0; y < height; y++) {
    const line = pixels.subarray(y * row, (y + 1) * row)
    lines.set(depth === 16 ? swapped(line, 2) : line, y * (row + 1) + 1)
    yield
  }
  const data = [[0x78, 1]]
  let [low, high] = [1, 0]
  for (let at = 0; at < lines.length; at += 65535) {
    const block = lines.subarray(at, at + 65535)
    const length = block.length
    data.push([+(at + length === lines.length), length, length >> 8, ~length, ~length >> 8], block)
    for (let i = 0; i < length; low %= 65521, high %= 65521)
      for (const end = Math.min(i + 3800, length); i < end; i++) high += low += block[i]
    yield
  }
  data.push([high >> 8, high, low >> 8, low])
  const head = yield* chunk("IHDR", [[...word(width), ...word(height), depth, color, 0, 0, 0]])
  const rest = [...(yield* chunk("IDAT", data)), ...(yield* chunk("IEND", []))]
  return [[0x89, 0x50, 0x4e, 0x47, 13, 10, 26, 10], ...head, ...rest].map(asBytes)
}

function* chunk(name, parts) {
  const whole = [[...name].map((letter) => letter.charCodeAt()), ...parts].map(asBytes)
  const length = whole.reduce((sum, each) => sum + each.length, -4)
  let crc = -1
  for (const each of whole) {
    crc = crc32(crc, each)
    yield
  }
  return [word(length), ...whole, word(~crc)]
}

/** A list as bytes; large arrays are not copied. */
const asBytes = (list) => (list instanceof Uint8Array ? list : Uint8Array.from(list))

let crcTable

function crc32(crc, bytes) {
  crcTable ??= Int32Array.from({ length: 256 }, (_, n) => {
    for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1
    return n
  })
  const table = crcTable
  for (let i = 0; i < bytes.length; i++) crc = table[(crc ^ bytes[i]) & 255] ^ (crc >>> 8)
  return crc
}

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

// -- JSON and frames --------------------------------------------------------------------------------------------------

function toBase64(bytes) {
  if (bytes.toBase64) return bytes.toBase64()
  if (globalThis.Buffer) return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString("base64")
  let text = ""
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000))
  return btoa(text)
}

function fromBase64(text) {
  if (text instanceof Uint8Array) return text // came in a frame
  if (typeof text !== "string" || text.length % 4 || /[^A-Za-z0-9+/=]/.test(text)) throw new TypeError("no base64")
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text)
  if (globalThis.Buffer) return new Uint8Array(Buffer.from(text, "base64"))
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0))
}

// Integers beyond 2^53 pass JSON.parse and JSON.stringify as texts that begin so; a peer cannot know this prefix.
const MARK = `${Array.from(crypto.getRandomValues(new Uint32Array(4)), String)}:`
const MARKED = new RegExp(`"${MARK}(-?[\\d.]+)"`, "g")
// A member may have any name, `__proto__` too.
const put = (object, key, value) =>
  Object.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true })

/** Apply a function to the items or members of a tree, in place. */
function change(tree, replace) {
  for (const key of Array.isArray(tree) ? tree.keys() : Object.keys(tree)) {
    const made = replace(tree[key], key)
    if (made !== tree[key]) put(tree, key, made)
  }
  return tree
}

/** The place behind the string of a JSON text that begins before this place. */
function endOfString(text, start) {
  for (let at = start; ; at++) {
    at = text.indexOf('"', at)
    if (at < 0) return text.length
    let slashes = 0
    while (text.charCodeAt(at - 1 - slashes) === 92) slashes += 1
    if (slashes % 2 === 0) return at + 1
  }
}

/** Throw where a text has more strings, commas and brackets than this, before memory is taken for its values. */
function checkValues(text, most) {
  let count = 0
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === 34) at = endOfString(text, at + 1) - 1
    else if (code !== 44 && code !== 91 && code !== 123) continue
    if (++count > most) throw new TypeError("a message has too many values")
  }
}

/** A JSON text with its integers beyond 2^53 as marked strings. */
function marked(text) {
  const parts = []
  // `at` is outside of strings, `quote` the next one behind it
  let [copied, at, quote] = [0, 0, text.indexOf('"')]
  // bounded, since the stack of a regular expression is
  const integers = /-?\d{16,4301}/g
  for (let found; (found = integers.exec(text)); ) {
    const [{ index }, [integer]] = [found, found]
    while (quote >= 0 && quote < index) {
      at = endOfString(text, quote + 1)
      quote = text.indexOf('"', at)
    }
    if (at > index) integers.lastIndex = at // it stood in a string
    const isPart = /[\d.eE+-]/.test(text.charAt(index - 1)) || /[.eE]/.test(text.charAt(index + integer.length))
    if (at > index || isPart || /^-?0/.test(integer) || Number.isSafeInteger(+integer)) continue
    if (integer.length > 4300) throw new TypeError("an integer has too many digits")
    parts.push(text.slice(copied, index), `"${MARK}${integer}"`)
    copied = index + integer.length
  }
  return parts.join("") + text.slice(copied)
}

/** The value of a text from the other end. Throws where it is not JSON, or over the limits. */
function parse(text, payloads, limits) {
  if (text.length > limits.maxValues) checkValues(text, limits.maxValues)
  // not the fraction of a float
  const isBig = /(?:^|[^\d.])\d{16}/.test(text)
  const tree = JSON.parse(isBig ? marked(text) : text)
  if (!isBig && !payloads.length) return tree
  const unused = new Set(payloads)
  const revive = (value, depth) => {
    if (typeof value === "string") return isBig && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value
    if (value === null || typeof value !== "object") return value
    if (depth > limits.maxDepth) throw new TypeError("a message is nested too deep")
    if (payloads.length && Object.hasOwn(value, "$bin")) {
      if (!unused.delete(payloads[value.$bin])) throw new TypeError("a payload is missing")
      return payloads[value.$bin]
    }
    return change(value, (each) => revive(each, depth + 1))
  }
  const value = revive(tree, 0)
  if (unused.size) throw new TypeError("a payload has no place")
  return value
}

const INFINITIES = { inf: Infinity, "-inf": -Infinity }
const NUMBERS = { nan: NaN, ...INFINITIES }
const TABLES = ["arrow", "polars", "pandas"]

/** A part of a message with its tagged objects as arrays, images, bytes... `streams` gives a stream by its name. */
function decoded(value, limits, streams, depth = 0) {
  if (value === null || typeof value !== "object" || value instanceof Uint8Array) return value
  if (depth > limits.maxDepth) throw new TypeError("a message is nested too deep")
  const tag = Object.hasOwn(value, "$type") ? value.$type : undefined
  if (tag === "ndarray") return arrayOf(value, fromBase64(value.data))
  if (tag === "image")
    return new RpcImage(`${value.format}`, fromBase64(value.data), value.mode, value.size, limits.maxPngPixels)
  if (tag === "bytes") return fromBase64(value.data)
  if (tag === "complex") return new Complex(...[value.real, value.imag].map((part) => INFINITIES[part] ?? Number(part)))
  if (tag === "float" && Object.hasOwn(NUMBERS, value.value)) return NUMBERS[value.value]
  if (tag === "stream" && streams) return streams(value.id)
  const isTable = TABLES.includes(tag) // whose data is a stream of Arrow
  return change(value, (each, key) =>
    isTable && key === "data" ? fromBase64(each) : decoded(each, limits, streams, depth + 1),
  )
}

/** "nan", "inf" or "-inf". */
const wordOf = (number) => `${number}`.toLowerCase().replace("inity", "")

/** Values on their way out: a tree for JSON.stringify, with large payloads and streams of items put aside. */
class Outgoing {
  payloads = []
  streams = [] // [name, async iterable]
  isLarge = false // a payload could travel in a frame
  #found = new Map() // file -> [type, bytes], stream -> list, where these must be awaited
  #waiting = []
  #isMarked = false
  #hasBin = false // a member has the name $bin, which only frames may have

  /** `nameStream` names a stream; without it streams are collected. */
  constructor(takesFrames, nameStream) {
    Object.assign(this, { takesFrames, nameStream })
  }

  /** The tree of a value; a promise of it where files must be read first. Throws TypeError for what has no form. */
  tree(value) {
    const made = this.#tree(value, 0)
    const waiting = this.#waiting
    const mixes = this.payloads.length && (this.#hasBin || this.payloads.length > ATTACHED_MAX)
    if (!waiting.length && !mixes) return made
    Object.assign(this, { payloads: [], streams: [], takesFrames: this.takesFrames && !mixes })
    this.#waiting = []
    return waiting.length ? Promise.all(waiting).then(() => this.tree(value)) : this.tree(value)
  }

  #tree(value, depth) {
    if (depth > LIMITS.maxDepth) throw new TypeError(`a value is nested deeper than ${LIMITS.maxDepth}`)
    if (typeof value === "bigint" || Object.is(value, -0)) {
      this.#isMarked = true
      return MARK + (typeof value === "bigint" ? value : "-0.0")
    }
    if (typeof value === "number" && !Number.isFinite(value)) return { $type: "float", value: wordOf(value) }
    if (["function", "symbol"].includes(typeof value)) throw new TypeError(`a ${typeof value} cannot be sent`)
    if (value === null || typeof value !== "object") return value
    const inner = (each) => this.#tree(each, depth + 1)
    if (Array.isArray(value)) return value.map(inner)
    const rich = this.#rich(value, inner)
    if (rich !== undefined) return rich
    const made = {}
    for (const [key, each] of value instanceof Map ? value : Object.entries(value)) {
      this.#hasBin ||= key === "$bin"
      const isTable = key === "data" && each instanceof Uint8Array && typeof value.$type === "string"
      put(made, key, isTable ? this.#payload(each) : inner(each))
    }
    return made
  }

  #rich(value, inner) {
    if (value instanceof NdArray) {
      const { dtype, shape, data } = value
      return { $type: "ndarray", dtype, shape, data: this.#payload(bytesOf(data)) }
    }
    if (value instanceof Uint8Array) return { $type: "bytes", data: this.#payload(value) }
    if (value instanceof ArrayBuffer) return inner(new Uint8Array(value))
    if (ArrayBuffer.isView(value)) return inner(NdArray.from(value))
    if (value instanceof Complex) {
      const [real, imag] = [value.real, value.imag].map((part) =>
        inner(Number.isFinite(part) ? part : wordOf(part)),
      )
      return { $type: "complex", real, imag }
    }
    if (value instanceof RpcImage) return this.#image(value.format, value.pixels ?? value.file, value)
    if (isA("ImageData", value)) return this.#image("raw", bytesOf(value.data), { mode: "RGBA", ...sizeOf(value) })
    if (value instanceof Blob || DRAWABLE.some((name) => isA(name, value))) {
      const [type, bytes] = this.#awaited(value, readFile) ?? ["", ""]
      return type.startsWith("image/") ? this.#image(type.slice(6), bytes) : inner(bytes)
    }
    if (typeof value.toJSON === "function") return inner(value.toJSON())
    if (value instanceof Set) return inner([...value])
    if (!value[Symbol.asyncIterator]) return undefined
    if (!this.nameStream) return inner(this.#awaited(value, collect) ?? null)
    const id = this.nameStream()
    this.streams.push([id, value])
    return { $type: "stream", id }
  }

  /** What reading a value gave; undefined where that is still to be awaited. */
  #awaited(value, read) {
    if (!this.#found.has(value)) this.#waiting.push(read(value).then((found) => this.#found.set(value, found)))
    return this.#found.get(value)
  }

  #image(format, bytes, { mode, width, height } = {}) {
    const raw = format === "raw" ? { mode, size: [width, height] } : {}
    return { $type: "image", format, ...raw, data: this.#payload(bytes) }
  }

  #payload(bytes) {
    this.isLarge ||= bytes.length >= ATTACHED_MIN
    const isAttached = this.takesFrames && bytes.length >= ATTACHED_MIN
    return isAttached ? { $bin: this.payloads.push(bytes) - 1 } : toBase64(bytes)
  }

  /** The message: its JSON, and what is sent, which is a frame where there are payloads. */
  message(tree) {
    let text = JSON.stringify(tree)
    if (this.#isMarked) text = text.replace(MARKED, "$1")
    if (!this.payloads.length) return { text, data: text }
    const json = new TextEncoder().encode(`${text}\n`)
    const header = `@${json.length} ${this.payloads.map((each) => each.length).join(" ")}`
    const start = header.length + 8 - ((header.length + json.length) % 8) // with blanks and the line end
    const places = []
    let end = start + json.length
    for (const each of this.payloads) {
      places.push((end += (8 - (end % 8)) % 8))
      end += each.length
    }
    const data = new Uint8Array(end)
    data.set(new TextEncoder().encode(`${header.padEnd(start - 1)}\n`))
    data.set(json, start)
    this.payloads.forEach((each, i) => data.set(each, places[i]))
    return { text, data }
  }
}

const sizeOf = ({ width, height }) => ({ width, height })
const textOf = (bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)

async function collect(items) {
  const list = []
  for await (const item of items) list.push(item)
  return list
}

/** JSON and payloads of a binary frame (docs/reference/wire.md, "Binary frames"); throws where it is none. */
function readFrame(data) {
  const header = HEADER.exec(String.fromCharCode(...data.subarray(0, HEADER_MAX)))
  if (header === null) throw new TypeError("a binary message is no frame")
  const start = header[0].length
  let at = start + Number(header[1])
  const text = textOf(data.subarray(start, at))
  const payloads = []
  for (const size of header[2].trim().split(" ").map(Number)) {
    if (payloads.length) at += (8 - (payloads.at(-1).length % 8)) % 8
    payloads.push(data.subarray(at, at + size))
    at += size
  }
  if (at !== data.length || payloads.some((each) => !each.length)) throw new TypeError("a frame has another size")
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
  async run(items, send) {
    const iterator = items[Symbol.asyncIterator]()
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

  /** The messages for calls {method, isNotification, timeout, items, onProgress, onResult}, and promises of results. */
  enter(calls, trees, stream) {
    const group = []
    const replies = calls.map(() => undefined)
    const messages = calls.map((call, i) => {
      const { method, timeout, items } = call
      const message = { jsonrpc: "2.0", id: undefined, method, params: trees[i], timeout, stream }
      if (items) message.stream = items.window
      if (call.isNotification) return message
      const id = (message.id = ++this.lastId)
      group.push(id)
      replies[i] = new Promise((settle, fail) => Object.assign(call, { id, settle, fail, group, senders: [] }))
      replies[i].catch(() => {})
      this.pending.set(id, call)
      return message
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
    if (!Object.hasOwn(message, "result")) return this.finish(id, failure(error, call))
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
    if (out.isLarge) this.askForFrames()
  }

  #cancel(id, error) {
    if (!this.pending.has(id)) return
    this.finish(id, error)
    this.send({ method: "$/cancelRequest", params: { id } })
  }

  /** Ask once whether the other end reads binary frames. */
  async askForFrames() {
    if (this.#hasAsked || !this.client.binary) return
    this.#hasAsked = true
    try {
      const call = { method: "rpc.hello", params: { binary: 1 } }
      const [reply] = await this.begin([call], new AbortController().signal)
      this.#takesFrames = (await reply)?.binary === 1
    } catch {
      // A server that does not know the method reads no frames.
    }
  }

  #upload(name, items, call) {
    const sender = new ItemSender()
    this.#senders.set(name, sender)
    call.senders.push(sender)
    const end = (error) => {
      this.#senders.delete(name)
      if (!sender.isStopped) this.send({ method: "$/end", params: { stream: name, error } })
    }
    const send = (value) => this.send({ method: "$/item", params: { stream: name, value } })
    const fail = (error) => end(errorOf(error))
    sender.run(items, send).then(() => end(), fail)
  }

  #receive(data) {
    if (this.isLost) return undefined
    this.hasReceived = true
    let message
    try {
      let [text, payloads] = [data, []]
      const size = data.byteLength ?? data.length
      if (size > this.client.limits.maxMessageSize) throw new TypeError("a message is too large")
      if (typeof data !== "string") {
        const bytes = new Uint8Array(data)
        if (bytes[0] === 64) ({ text, payloads } = readFrame(bytes))
        else text = textOf(bytes)
      }
      this.client.show("in", text, data)
      message = parse(text, payloads, this.client.limits)
      if (typeof data === "string" && data.length > ATTACHED_MIN && data.includes('"data":"')) this.askForFrames()
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
    const { limits } = this.client
    const { id, stream, value } = params
    const isNamed = stream !== undefined // a stream among the arguments of a call
    const serving = this.#serving.get(keyOf(id))
    switch (method) {
      case "$/progress":
        return this.progress(params)
      case "$/event":
        return this.client.event(this, params.topic, decoded(value, limits))
      case "$/item": {
        const items = isNamed ? this.#received.get(stream) : this.pending.get(id)?.items
        if (items === undefined || items.put(decoded(value, limits))) return undefined
        const error = new RpcError(-32600, "the stream has more items than were permitted")
        items.end(error)
        return isNamed ? undefined : this.#cancel(id, error)
      }
      case "$/end":
        return this.#received.get(stream)?.end(params.error && rpcError(params.error))
      case "$/credit":
        return (isNamed ? this.#senders.get(stream) : serving?.sender)?.grant(params.n)
      case "$/cancelRequest":
        return serving?.abort.abort(new RpcError(-32800, "Cancelled"))
      case "$/goAway":
        return this.#leave(params.last)
    }
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

  /** The reply to a request of the other end; undefined for a notification. */
  async #answer(message) {
    const { id, method, stream, timeout } = message
    const isRequest = Object.hasOwn(message, "id")
    const key = isRequest ? keyOf(id) : Symbol(method)
    const [abort, sender, names] = [new AbortController(), new ItemSender(), []]
    const { limits } = this.client
    const isBusy = this.#serving.size >= limits.maxCalls || this.#serving.has(key)
    let timer
    try {
      if (isBusy) throw new RpcError(-32002, "Server busy", { limit: limits.maxCalls })
      this.#serving.set(key, { abort, sender })
      const late = () => abort.abort(new RpcError(-32003, "Deadline exceeded"))
      if (timeout > 0) timer = setTimeout(late, Math.min(timeout * 1000, DAY_MAX))
      const params = decoded(message.params, limits, (name) => this.#receiving(name, names))
      const progress = (value) => this.send({ method: "$/progress", params: { token: id, value } })
      const stopped = new Promise((_, reject) => {
        abort.signal.addEventListener("abort", () => {
          sender.stop()
          reject(abort.signal.reason)
        })
      })
      const work = async () => {
        const result = await this.#perform(method, params, { signal: abort.signal, method, id, progress })
        if (!result?.[Symbol.asyncIterator]) return result
        if (!Number.isInteger(stream) || stream < 0) return collect(result)
        sender.grant(stream)
        return sender.run(result, (value) => this.send({ method: "$/item", params: { id, value } }))
      }
      const result = (await Promise.race([work(), stopped])) ?? null
      await new Outgoing(false).tree(result) // throws where it has no form on the wire
      return isRequest ? { jsonrpc: "2.0", id, result } : undefined
    } catch (error) {
      if (this.isLost) return undefined
      const told = errorOf(error)
      return isRequest ? { jsonrpc: "2.0", id, error: told } : undefined
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
    const find = typeof methods === "function" ? methods : (name) => Object.hasOwn(methods, name) && methods[name]
    const handler = find(method)
    if (typeof handler !== "function") throw new RpcError(-32601, `Method not found: ${shown(method)}`)
    return handler(params, context)
  }

  /** The reading end of a stream that the other end's call has as an argument. */
  #receiving(name, names) {
    if (typeof name !== "string" || this.#received.has(name)) throw new RpcError(-32602, "Invalid params: a stream")
    if (this.#received.size >= this.client.limits.maxCalls) throw new RpcError(-32002, "Server busy")
    const items = new Items(WINDOW, 0, (n) => this.credit({ stream: name }, n))
    names.push(name)
    this.#received.set(name, items)
    return { [Symbol.asyncIterator]: () => ({ next: () => items.next() }) }
  }
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
      const accepted = isLines ? LINES_TYPE : client.binary ? `application/json, ${FRAME_TYPE}` : "application/json"
      const headers = { "Content-Type": isFrame ? FRAME_TYPE : "application/json", Accept: accepted }
      const token = await client.token()
      if (token) headers.Authorization = `Bearer ${token}`
      client.show("out", text, data)
      const response = await fetch(client.url, { method: "POST", headers, body: data, signal: stop })
      if (client.binary && response.headers.get("Accept-Post")?.includes(FRAME_TYPE)) client.postsFrames = true
      if (isFrame && response.status === 415) {
        client.postsFrames = client.binary = false
        return new HttpExchange(client).begin(calls, stop, isBatch)
      }
      const reading = this.#read(response).catch((error) => this.#fail(error, stop))
      if (!isLines) await reading // else the items are read as they come
    } catch (error) {
      this.#fail(error, stop)
    }
    return replies
  }

  #fail(error, stop) {
    const isOurs = error instanceof RpcError || error instanceof ConnectionError
    const failure = isOurs ? error : new ConnectionError(`${this.client.url}: ${error.message}`)
    this.failAll(stop.aborted ? stop.reason : failure)
  }

  async #read(response) {
    const type = response.headers.get("Content-Type") ?? ""
    const isLines = type.startsWith(LINES_TYPE)
    let reason = "no reply to the call"
    for await (const piece of this.#pieces(response, isLines)) {
      if (type.startsWith("application/")) await this.#take(piece, type.startsWith(FRAME_TYPE))
      else reason = textOf(piece).slice(0, 500).trim()
    }
    this.failAll(new ConnectionError(`HTTP ${response.status}: ${reason}`, undefined, response.status))
  }

  /** The body, line by line, or whole. */
  async *#pieces(response, isLines) {
    let [kept, size] = [[], 0]
    const whole = () => {
      const piece = new Uint8Array(size)
      let at = 0
      for (const each of kept) {
        piece.set(each, at)
        at += each.length
      }
      kept = []
      size = 0
      return piece
    }
    const keep = (bytes) => {
      kept.push(bytes)
      size += bytes.length
      if (size > this.client.limits.maxMessageSize + HEADER_MAX) throw new TypeError("a message is too large")
    }
    const reader = response.body?.getReader()
    try {
      for (let read; reader && !(read = await reader.read()).done; ) {
        let rest = read.value
        for (let end; isLines && (end = rest.indexOf(10)) >= 0; rest = rest.subarray(end + 1)) {
          keep(rest.subarray(0, end))
          yield whole()
        }
        keep(rest)
      }
      if (size) yield whole()
    } finally {
      reader?.cancel().catch(() => {})
    }
  }

  async #take(data, isFrame) {
    const { client } = this
    const { text, payloads } = isFrame ? readFrame(data) : { text: textOf(data), payloads: [] }
    if (!text.trim()) return
    client.show("in", text, data)
    const message = parse(text, payloads, client.limits)
    if (Array.isArray(message)) this.replies(message)
    else await this.handle(message)
  }

  async handle(message) {
    const { method, params } = message ?? {}
    if (method === undefined) return this.reply(message ?? {})
    if (method === "$/progress") this.progress(params)
    const items = method === "$/item" ? this.pending.get(params?.id)?.items : undefined
    if (items === undefined) return undefined
    await items.room() // HTTP has no credit: what is not read waits in the connection
    return items.put(decoded(params.value, this.client.limits))
  }
}

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

/** The events of a topic or pattern, as {topic, value}. Ends with its loop, with `return()`, and with the client. */
class Subscription {
  /** Events that were dropped since the reader was too slow. */
  dropped = 0
  /** How often it was made again on a new connection; the events between are missing. */
  reconnects = 0

  constructor(client, pattern, maxQueue, signal) {
    Object.assign(this, { client, pattern, maxQueue })
    this.items = new Items(Infinity, Infinity)
    const end = () => this.return()
    this.forget = () => signal?.removeEventListener("abort", end)
    signal?.addEventListener("abort", end)
    if (signal?.aborted) end()
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
    this.forget()
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

/** The URL for a host and a port: of the WebSocket, or of HTTP where there is no class for one; others as they are. */
function addressOf(url, options) {
  if (!/^([\w.-]+|\[[\da-f:.]+\]):\d+(?=[/?]|$)/i.test(url)) return url
  const scheme = options.WebSocket ?? globalThis.WebSocket ? "ws" : "http"
  return `${scheme}${globalThis.location?.protocol === "https:" ? "s" : ""}://${url}`
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
    this.url = new URL(addressOf(url, options) ?? new URL("/", here).href.replace(/^http/, "ws"), here)
    if (!/^(wss?|https?):$/.test(this.url.protocol))
      throw new TypeError(`an address is HOST:PORT, or begins with ws:, wss:, http: or https:, got ${shown(url)}`)
    const { token, binary = true, methods = {}, reconnect = false, timeout = 60_000, retries = 3, ...rest } = options
    this.#options = rest
    this.token = typeof token === "function" ? token : () => token
    this.isHttp = this.url.protocol.startsWith("http")
    this.reconnect = reconnect && !this.isHttp ? { ...BACKOFF, ...reconnect } : undefined
    this.state = "closed"
    Object.assign(this, { binary, methods, timeout, retries, limits: { ...LIMITS, ...rest.limits } })
  }

  /** Call a method; gives its result. Rejects with RpcError, ConnectionError, CallTimeout, or the signal's reason. */
  call(method, params, options = {}) {
    const call = { method, params, onProgress: options.onProgress }
    return this.#run(call, options, async (peer, signal) => (await peer.begin([call], signal))[0])
  }

  /** Send a notification, which has no reply. Resolves when it is sent. */
  notify(method, params, options = {}) {
    const call = { method, params, isNotification: true }
    return this.#run(call, options, async (peer, signal) => void (await peer.begin([call], signal)))
  }

  /**
   * Send several calls as one message: `[method, params]`, or `[method, params, { notify: true }]`. Gives a list with
   * the result of each, or its RpcError (which is not thrown); undefined for a notification.
   */
  async batch(entries, options = {}) {
    if (!entries.length) return [] // an empty array is no batch (JSON-RPC 2.0, section 6)
    const calls = entries.map(([method, params, more]) => ({ method, params, isNotification: more?.notify === true }))
    return this.#run({ method: "a batch" }, { idempotent: false, ...options }, async (peer, signal) => {
      const settled = await Promise.allSettled(await peer.begin(calls, signal, true))
      const lost = settled.find(({ reason }) => reason && !(reason instanceof RpcError))
      if (lost) throw lost.reason
      return settled.map(({ value, reason }) => reason ?? value)
    })
  }

  /** The items of a method that streams: `for await (const item of client.stream("count", [10]))`. */
  stream(method, params, options = {}) {
    const { credit = WINDOW, onCredit, onProgress, timeout = 0 } = options
    const isWhole = Number.isSafeInteger(credit) && credit >= 1
    if (!isWhole) throw new RangeError("the credit of a stream is a whole number from 1")
    const stop = this.#stopper(method, { ...options, timeout })
    const call = { method, params, onProgress }
    const tellCredit = (n) => tell(onCredit, n)
    const begin = (stream) =>
      this.#perform(call, { idempotent: false, ...options }, stop, async (peer) => {
        call.items = new Items(credit, credit, (n) => peer.credit?.({ id: call.id }, n), tellCredit)
        await peer.begin([call], stop.signal)
        tellCredit(credit)
        const first = await call.items.next()
        stream.items = call.items
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
    const isAscii = typeof data !== "string" || !/[^\0-\x7f]/.test(data)
    const bytes = data.byteLength ?? (isAscii ? data.length : new TextEncoder().encode(data).length)
    const binary = typeof data !== "string" && new Uint8Array(data)[0] === 64
    const isSecret = direction === "out" && text.includes('"rpc.authenticate"')
    const told = isSecret ? text.replace(/"token":"(?:[^"\\]|\\.)*"/, '"token":"…"') : text
    tell(onMessage, { direction, text: told, bytes, binary })
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
    const call = { method: "rpc.subscribe", params: { topic: pattern } }
    try {
      await this.#run(call, { idempotent: true }, async (peer, signal) => {
        call.onResult = () => Object.assign(entry, { on: peer, hasBegun: true })
        if (entry.on !== peer) await (await peer.begin([call], signal))[0]
      })
    } catch (error) {
      this.part(subscription)
      throw error
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
      tell(this.#options.onRetry, pause)
      await Promise.race([sleep(pause), new Promise((resolve) => (this.#wake = resolve))])
    }
  }

  async #dial() {
    const { connectTimeout = 10_000, keepalive, onConnect } = this.#options
    const Socket = this.#options.WebSocket ?? globalThis.WebSocket
    if (Socket === undefined) throw new TypeError(NO_WEBSOCKET)
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
        // Node.js: without onclose
        socket.onerror = ({ message }) => fail(message || "no connection, or it failed")
        stop.signal.addEventListener("abort", () => fail("no connection in time"))
      })
      if (token) await call("rpc.authenticate", { token })
      if (this.binary === "first") await connection.askForFrames()
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
    stop.late = () => new CallTimeout(`${method}: no reply within ${timeout} ms`)
    const end = () => stop.abort(stop.late())
    const timer = timeout > 0 && timeout < Infinity ? setTimeout(end, Math.min(timeout, DAY_MAX)) : undefined
    signal?.addEventListener("abort", abort)
    if (signal?.aborted) abort()
    stop.until = timer && performance.now() + timeout
    stop.end = () => {
      clearTimeout(timer)
      signal?.removeEventListener("abort", abort)
    }
    return stop
  }

  async #run(call, options, run) {
    const stop = this.#stopper(call.method, options)
    try {
      return await this.#perform(call, options, stop, (peer) => run(peer, stop.signal))
    } finally {
      stop.end()
    }
  }

  /** Run what a call does with a connection, and again where that is safe. */
  async #perform(call, options, stop, run) {
    for (let count = 0; ; count++) {
      let peer
      try {
        stop.signal.throwIfAborted()
        peer = await raced(this.#peer(), stop.signal)
        if (options.timeout > 0 && stop.until) {
          const timeout = Math.max(1, stop.until - performance.now()) / 1000
          Object.assign(call, { timeout, until: stop.until, late: stop.late })
        }
        return await run(peer)
      } catch (error) {
        const isLast = stop.signal.aborted || this.isClosed || call.isOnce
        if (isLast || !(await raced(this.#mayRepeat(error, call, options, count, peer), stop.signal))) throw error
      }
      await raced(sleep(count && Math.min(25 * 2 ** count, 1000)), stop.signal)
    }
  }

  /** Whether a call is made again that failed so; `peer` is undefined where there was no connection. */
  async #mayRepeat(error, { method }, { idempotent }, count, peer) {
    const isLoss = error instanceof ConnectionError || error.code === -32007
    if (peer === undefined) return isLoss && count > 0 && count < this.retries
    const { executed } = error.data ?? error
    if ((isLoss || error.code === -32800) && executed === false) return count < Math.max(this.retries, REPEATS)
    return isLoss && count < this.retries && (idempotent ?? this.#isIdempotent(method))
  }

  /** Whether the server declares a method idempotent; false where it does not say. */
  async #isIdempotent(method) {
    if (method === "rpc.discover") return true
    const declared = ({ methods }) => methods.filter((each) => each?.["x-idempotent"] === true)
    this.#idempotent ??= this.discover().then(declared)
    try {
      return (await this.#idempotent).some(({ name }) => name === method)
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
