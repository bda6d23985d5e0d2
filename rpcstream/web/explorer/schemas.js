// What a JSON Schema describes: its kind, its bounds in words, and an example of it.

import { NdArray } from "../rpcstream.js"
import { FRAMES, isFrame } from "./arrow.js"
import { shown } from "./dom.js"

const MOST_CHOICES = 1000
const MOST_STEPS = 32

export class Invalid extends Error {
  path = []
}

/** The steps of a path such as `$.boxes[0].x`. */
export function steps(path) {
  const found = String(path ?? "").slice(0, 2000).matchAll(/\.([^.[\]]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]/g)
  return [...found].map(([, name, index, quoted]) => name ?? quoted ?? Number(index))
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value)
export const listOf = (value) => (Array.isArray(value) ? value : [])
/** Whether a value is a picture, an array, bytes or a table. */
export const isRich = (value) => value instanceof Blob || value instanceof NdArray || value instanceof Uint8Array || isFrame(value)
/** The name of the schema that a reference names. */
export const nameOfRef = (ref) => String(ref).split("/").pop().replaceAll("~1", "/").replaceAll("~0", "~")

/** Follow references and put the parts of an `allOf` together: as many of both as `steps.left` says. */
export function resolve(schema, schemas, steps = { left: MOST_STEPS }) {
  let found = isObject(schema) ? schema : {}
  for (;;) {
    if (typeof found.$ref === "string") {
      const { $ref, ...more } = found
      const name = nameOfRef($ref)
      const isKnown = steps.left-- > 0 && isObject(schemas) && Object.hasOwn(schemas, name)
      found = { ...(isKnown ? schemas[name] : {}), ...more }
    } else if (Array.isArray(found.allOf)) {
      const { allOf, ...more } = found
      found = {}
      for (const each of allOf) {
        if (steps.left-- <= 0) break
        Object.assign(found, resolve(each, schemas, steps))
      }
      Object.assign(found, more)
    } else return found
  }
}

/** Which rich value a schema stands for: "image", "ndarray", "bytes", ...; "" for plain JSON. */
export function richKind(schema, schemas, steps) {
  if (schema?.["x-ndarray"]) return "ndarray"
  const tag = resolve(schema, schemas, steps).properties?.$type
  return typeof tag?.const === "string" ? tag.const : ""
}

const isPayload = (schema) => schema.type === "string" && schema.contentEncoding === "base64"

/** The choices of a union: nested ones flat, the forms of one rich value as one. */
function choicesOf(schema, schemas) {
  const all = []
  const seen = new Set()
  const add = (each) => {
    if (seen.has(each?.$ref)) return
    if (each?.$ref) seen.add(each.$ref)
    const found = resolve(each, schemas)
    const inner = found.anyOf ?? found.oneOf
    if (Array.isArray(inner) && !found["x-ndarray"]) inner.forEach(add)
    else if (Array.isArray(found.type)) found.type.forEach((type) => all.push({ ...found, type: String(type) }))
    else all.push(found)
  }
  add(schema)
  all.splice(MOST_CHOICES)
  const rich = new Map()
  for (const each of all) {
    const kind = richKind(each, schemas)
    if (kind) rich.set(kind, { ...rich.get(kind), ...each })
  }
  const kinds = new Set()
  return all.filter((each) => {
    if (isPayload(each) && rich.size) return false
    const kind = richKind(each, schemas)
    return !kind || (!kinds.has(kind) && kinds.add(kind))
  })
}

/** The kind of editor that a schema needs, and the schema that it follows. */
export function kindOf(schema, schemas) {
  const choices = choicesOf(schema, schemas)
  if (choices.length > 1) return ["union", choices]
  const found = choices[0] ?? {}
  const rich = richKind(found, schemas)
  if (["image", "ndarray", "bytes"].includes(rich)) return [rich, { ...found, ...resolve(schema, schemas) }]
  if (FRAMES.includes(rich)) return ["table", found]
  if (isPayload(found)) return ["bytes", found]
  if ("const" in found) return ["enum", { ...found, enum: [found.const] }]
  if (found.enum?.length > 0 && Array.isArray(found.enum) && found.enum.length <= MOST_CHOICES) return ["enum", found]
  if (rich) return ["any", found]
  if (found.type === "object") return [isObject(found.properties) ? "object" : "map", found]
  if (found.type === "array") return [listKind(found, schemas), found]
  return [["boolean", "integer", "number", "null", "string"].includes(found.type) ? found.type : "any", found]
}

/** Plain values are typed as lines, pictures are dropped together, other items have a form each. */
function listKind(schema, schemas) {
  if (Array.isArray(schema.prefixItems)) return "tuple"
  const choices = isObject(schema.items) ? choicesOf(schema.items, schemas) : []
  if (choices.length !== 1 || choices[0].type === "array") return "list" // a list may be its own item
  const [kind, found] = kindOf(schema.items, schemas)
  if (kind === "image") return "pictures"
  const isLine = ["integer", "number"].includes(kind) || (kind === "string" && !/^date/.test(found.format))
  return isLine ? "lines" : "list"
}

export const nameOfKind = (kind, schema) =>
  schema.title ? shown(schema.title, 60) : { map: "object", union: "one of several", ndarray: "array", any: "JSON", bytes: "file", lines: "list", pictures: "list" }[kind] ?? kind

/** What a value must be like, in a few words. */
export function constraintsOf(schema) {
  if (Array.isArray(schema.prefixItems)) return ""
  const words = []
  if (typeof schema.minimum === "number" && typeof schema.maximum === "number") {
    words.push(`${schema.minimum} to ${schema.maximum}`)
    schema = { ...schema, minimum: null, maximum: null }
  }
  for (const [key, sign] of Object.entries({ minimum: "≥", exclusiveMinimum: ">", maximum: "≤", exclusiveMaximum: "<",
    multipleOf: "a multiple of", minLength: "at least", maxLength: "up to", minItems: "at least", maxItems: "up to",
    pattern: "pattern" })) if (schema[key] != null) words.push(`${sign} ${schema[key]}${/Length/.test(key) ? " characters" : /Items/.test(key) ? " items" : ""}`)
  return shown(words.filter(Boolean).join(", "), 200)
}

/** The type of an optional value that is null where it is not given: nobody needs to choose null then. */
export function withoutNull(schema, schemas) {
  const found = resolve(schema, schemas)
  const choices = found.default === null ? choicesOf(schema, schemas) : []
  const others = choices.filter((each) => each.type !== "null")
  return others.length === 1 && choices.length === 2 ? { ...others[0], default: null } : schema
}

/** A value of a schema, for programs. */
export function sample(schema, schemas, name, level = 0) {
  const [kind, found] = level > 4 ? ["null"] : kindOf(schema, schemas)
  if (kind === "image") return Object.assign(new Blob([], { type: "image/png" }), { name: `${/^\w{1,40}$/.test(name) ? name : "picture"}.png` })
  if (kind === "bytes") return new Uint8Array()
  if (kind === "table") return { $type: found.properties.$type.const, data: new Uint8Array() }
  if (kind === "ndarray") return NdArray.from([0, 1], "<f4")
  if (kind === "enum") return found.enum[0]
  if (kind === "boolean") return false
  if (kind === "integer" || kind === "number") return [found.minimum, found.default, 1].find((each) => typeof each === "number")
  if (kind === "string") return { date: "2026-01-31", "date-time": "2026-01-31T12:00:00Z" }[found.format] ?? "text"
  if (["list", "lines", "pictures"].includes(kind)) return []
  if (kind === "tuple") return found.prefixItems.slice(0, 20).map((each) => sample(each, schemas, name, level + 1))
  if (kind === "union") return sample(found[0], schemas, name, level + 1)
  if (kind === "object") return Object.fromEntries(listOf(found.required).slice(0, 20).map((each) => [each, sample(found.properties[each], schemas, String(each), level + 1)]))
  return kind === "null" || kind === "any" ? null : {}
}


export function isLike(value, kind, schema) {
  if (kind === "null") return value === null
  if (kind === "enum") return schema.enum.some((each) => each === value)
  if (kind === "boolean") return typeof value === "boolean"
  if (kind === "integer") return Number.isInteger(value) || typeof value === "bigint"
  if (kind === "number") return typeof value === "number"
  if (kind === "string") return typeof value === "string"
  if (["list", "lines", "pictures", "tuple"].includes(kind)) return Array.isArray(value)
  if (kind === "ndarray") return value instanceof NdArray
  if (kind === "table") return isFrame(value)
  if (kind === "image") return value instanceof Blob
  if (kind === "bytes") return value instanceof Uint8Array
  if (kind === "object") return isObject(value) && listOf(schema.required).every((each) => Object.hasOwn(value, each))
  return kind === "any" || isObject(value)
}
