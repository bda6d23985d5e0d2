// What is drawn on a picture: which parameters are boxes or masks, and the board for them.

import { boxesOn } from "./boxes.js"
import { maskOn } from "./mask.js"
import { isObject, kindOf, resolve, withoutNull } from "./schemas.js"

const BOX_WORD = /^(box|bbox|rect|rectangle|roi|region|crop)(es|s)?$/
const CORNERS = [["left", "top", "right", "bottom"], ["left", "upper", "right", "lower"], ["x0", "y0", "x1", "y1"], ["x1", "y1", "x2", "y2"], ["xmin", "ymin", "xmax", "ymax"]]
const SIZES = [["x", "y", "width", "height"], ["x", "y", "w", "h"], ["left", "top", "width", "height"]]
const MASK_DTYPES = ["|b1", "|u1", "|i1", "<f4", "<f8", "<i4"]

/** The pictures of a form, by the names of their parameters: boxes and masks are drawn on the first one. */
class Shelf {
  #all = new Map()
  #listeners = new Set()

  put(name, blob) {
    if (blob) this.#all.set(name, blob)
    else this.#all.delete(name)
    for (const each of this.#listeners) each(this.first)
  }

  /** The name of the first picture, and the picture. */
  get first() {
    return this.#all.entries().next().value
  }

  /** Call a listener with the first picture now, and whenever a picture changes. Gives a function that ends this. */
  follow(listener) {
    this.#listeners.add(listener)
    listener(this.first)
    return () => this.#listeners.delete(listener)
  }
}

/** A shelf for the parameters of a method; null where none is a picture to draw on. */
export function shelfFor(params, schemas) {
  const isPicture = ({ name, schema }) => kindOf(withoutNull(schema, schemas), schemas)[0] === "image" && drawingOf(name, schema, schemas)?.kind !== "mask"
  return params.some(isPicture) ? new Shelf() : null
}

const isNumeric = (schema, schemas) => ["integer", "number"].includes(kindOf(schema, schemas)[0])
const isWhole = (schema, schemas) => kindOf(schema, schemas)[0] === "integer"

/** How four numbers are a box: their names, and whether the last two are a width and a height. */
function fourNumbers(kind, schema, schemas, wantsSize) {
  const keys = wantsSize ? SIZES[0] : CORNERS[0]
  const items = kind === "tuple" ? schema.prefixItems : [schema.items]
  const isFour = kind === "tuple" ? items.length === 4 : kind === "lines" && [4, undefined].includes(schema.maxItems)
  if (!isFour || !items.every((each) => isNumeric(each, schemas))) return null
  return { keys, isSize: wantsSize, isWhole: items.every((each) => isWhole(each, schemas)) }
}

/** The members of an object that are a box. */
function fourMembers(schema, schemas) {
  const has = (keys) => keys.every((key) => Object.hasOwn(schema.properties, key) && isNumeric(schema.properties[key], schemas))
  const keys = [...SIZES, ...CORNERS].find(has)
  if (!keys) return null
  return { keys, isSize: SIZES.includes(keys), isObject: true, isWhole: keys.every((key) => isWhole(schema.properties[key], schemas)) }
}

/** A box of a schema, or null. */
function boxOf(schema, schemas, wantsSize) {
  const [kind, found] = kindOf(schema, schemas)
  if (kind === "object") return fourMembers(found, schemas)
  return ["tuple", "lines"].includes(kind) ? fourNumbers(kind, found, schemas, wantsSize) : null
}

/** Boxes in an array, of shape (4,) or (n, 4). */
function arrayBoxes(schema, isPlural, wantsSize) {
  const { shape, dtype } = schema["x-ndarray"] ?? {}
  const isMany = Array.isArray(shape) ? shape.length === 2 : isPlural
  if (Array.isArray(shape) && ![4, null].includes(shape.at(-1))) return null
  return { kind: "box", isMany, keys: wantsSize ? SIZES[0] : CORNERS[0], isSize: wantsSize, isWhole: /[iu]\d/.test([dtype].flat()[0]) }
}

function maskOf(kind, schema) {
  if (kind === "image") return { kind: "mask", isImage: true }
  const { shape, dtype } = schema["x-ndarray"] ?? {}
  const chosen = dtype == null ? "|b1" : [dtype].flat().find((each) => MASK_DTYPES.includes(each))
  return kind === "ndarray" && chosen && (!Array.isArray(shape) || shape.length === 2) ? { kind: "mask", dtype: chosen } : null
}

/**
 * What is drawn for a parameter; null where nothing is.
 * `x-draw` in its schema says it ("box", "xywh", "mask", or false), or else the last word of its name: `crop_box`, `mask`.
 */
export function drawingOf(name, schema, schemas) {
  const wish = resolve(schema, schemas)["x-draw"]
  const words = String(name).toLowerCase().split(/[_.\s]+/)
  const wantsSize = wish === "xywh" || words.at(-1) === "xywh"
  const word = /^(xywh|xyxy)$/.test(words.at(-1)) ? words.at(-2) ?? "" : words.at(-1)
  if (wish === false) return null
  const plain = withoutNull(schema, schemas)
  const [kind, found] = kindOf(plain, schemas)
  if (wish === "mask" || (wish === undefined && word === "mask")) return maskOf(kind, found)
  if (wish === undefined && !BOX_WORD.test(word)) return null
  if (kind === "ndarray") return arrayBoxes(found, /s$/.test(word), wantsSize)
  const one = boxOf(plain, schemas, wantsSize)
  if (one) return { kind: "box", ...one }
  const many = kind === "list" && isObject(found.items) ? boxOf(found.items, schemas, wantsSize) : null
  return many && { kind: "box", isMany: true, ...many }
}

/** An editor with a board above it, on which the value is drawn. */
export const withDrawing = (editor, drawing, env, name) => (drawing.kind === "mask" ? maskOn : boxesOn)(editor, drawing, env, name)
