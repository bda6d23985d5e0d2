// Signatures of methods as Python writes them, out of JSON Schema.

import { h, jsonText, shown } from "./dom.js"
import { isObject, listOf, nameOfRef, resolve, richKind } from "./schemas.js"

const PLAIN = { integer: "int", number: "float", string: "str", boolean: "bool", null: "None", object: "dict", array: "list" }
const FORMATS = { date: "date", "date-time": "datetime", time: "time", duration: "timedelta", uuid: "UUID", decimal: "Decimal" }
const RICH = { image: "Image", bytes: "bytes", complex: "complex", pandas: "DataFrame", polars: "DataFrame", arrow: "Table" }
const MOST = 6
// A page has thousands of types: not more than a reference in an `allOf` is followed for each.
const near = () => ({ left: 2 })

function arrayText({ dtype, shape }) {
  const kind = [dtype].flat().filter((each) => typeof each === "string").map((each) => each.replace(/^[<>|=]/, ""))
  const names = { f2: "float16", f4: "float32", f8: "float64", b1: "bool" }
  const named = kind.map((each) => names[each] ?? each.replace(/^([iu])(\d)$/, (_, sign, size) => `${sign === "u" ? "u" : ""}int${8 * size}`))
  const dims = Array.isArray(shape) ? `(${shape.map((each) => each ?? "*").join(", ")})` : ""
  const details = [named.slice(0, 3).join("|"), dims].filter(Boolean).join(", ")
  return details ? `ndarray[${details}]` : "ndarray"
}

/** The name of a rich value that a schema describes, whatever forms it has; "" for plain JSON. */
function richText(schema, schemas) {
  if (isObject(schema["x-ndarray"])) return arrayText(schema["x-ndarray"])
  if (isObject(schema["x-image"])) return "Image"
  const tag = [schema, ...listOf(schema.anyOf).slice(0, 10)].map((each) => richKind(each, schemas, near())).find(Boolean) ?? ""
  return Object.hasOwn(RICH, tag) ? RICH[tag] : shown(tag, 40)
}

/** A type, short: `list[int] | None`, `ndarray[float32, (*, 3)]`, the names of classes. */
export function typeText(schema, schemas, depth = 0) {
  if (!isObject(schema) || depth > 5) return "Any"
  const inner = (each) => typeText(each, schemas, depth + 1)
  if (typeof schema.$ref === "string") return richText(resolve(schema, schemas, near()), schemas) || shown(nameOfRef(schema.$ref), 40)
  if (schema["x-ndarray"] || schema["x-image"] || richKind(schema, schemas, near())) return richText(schema, schemas) || "Any"
  const members = schema.anyOf ?? schema.oneOf
  if (Array.isArray(members)) {
    const isRich = members.some((each) => richKind(each, schemas, near()))
    const kept = members.filter((each) => !(isRich && each?.contentEncoding === "base64"))
    const texts = [...new Set(kept.slice(0, 40).map(inner))].filter((each) => each !== "None" || kept.length === 1)
    if (kept.some((each) => each?.type === "null")) texts.push("None")
    return texts.length > MOST ? `${texts.slice(0, MOST).join(" | ")} | …` : texts.join(" | ") || "Any"
  }
  const values = "const" in schema ? [schema.const] : schema.enum
  if (Array.isArray(values)) return values.slice(0, MOST).map((each) => shown(jsonText(each), 24)).join(" | ") + (values.length > MOST ? " | …" : "")
  if (Array.isArray(schema.type)) return schema.type.slice(0, MOST).map((each) => (Object.hasOwn(PLAIN, each) ? PLAIN[each] : "Any")).join(" | ")
  if (schema.type === "string" && schema.contentEncoding === "base64") return "bytes"
  if (schema.type === "string") return Object.hasOwn(FORMATS, schema.format) ? FORMATS[schema.format] : "str"
  if (schema.type === "array" && Array.isArray(schema.prefixItems)) return `tuple[${schema.prefixItems.slice(0, MOST).map(inner).join(", ")}]`
  if (schema.type === "array") return isObject(schema.items) && Object.keys(schema.items).length ? `list[${inner(schema.items)}]` : "list"
  if (schema.type === "object" && !isObject(schema.properties) && isObject(schema.additionalProperties)) return `dict[str, ${inner(schema.additionalProperties)}]`
  return Object.hasOwn(PLAIN, schema.type) ? PLAIN[schema.type] : "Any"
}

/** What stands for a default in a signature; "" if there is none. */
export function defaultText(schema) {
  if (!isObject(schema)) return ""
  if (!("default" in schema)) return shown(String(schema["x-default"] ?? ""), 40)
  const names = { null: "None", true: "True", false: "False" }
  if (schema.type === "number" && Number.isInteger(schema.default)) return schema.default.toFixed(1)
  const text = jsonText(schema.default)
  return shown(names[text] ?? text, 40)
}

/** The type of what a method returns; "" where nothing is said of it. */
function resultText(method, schemas) {
  const schema = method.result?.schema
  if (method["x-stream"] === true) {
    const item = typeText(method["x-item"] ?? schema?.items, schemas)
    return item === "Any" ? "stream" : `stream of ${item}`
  }
  const text = isObject(schema) ? typeText(schema, schemas) : "Any"
  return text === "Any" ? "" : text
}

/** A method like a signature of Python; its name alone where its description makes no sense. */
export function signature(method, schemas) {
  try {
    return h("code", { class: "signature" }, parts(method, schemas))
  } catch {
    return h("code", { class: "signature" }, h("span", { class: "sig-name" }, shown(method.name, 120)), "(…)")
  }
}

function parts(method, schemas) {
  const params = listOf(method.params).filter(isObject).slice(0, 30)
  const nodes = [h("span", { class: "sig-name" }, shown(method.name, 120)), "("]
  let hasStar = false
  params.forEach((param, at) => {
    const rest = param["x-rest"]
    const star = rest === "positional" ? "*" : rest === "named" ? "**" : ""
    if (at) nodes.push(", ")
    if (param["x-keyword"] === true && !hasStar && !star) nodes.push("*, ")
    hasStar ||= param["x-keyword"] === true || star === "*"
    const type = typeText(param.schema, schemas)
    nodes.push(h("span", { class: "sig-part" }, star + shown(param.name ?? "", 60), ...(type === "Any" ? [] : [": ", h("span", { class: "sig-type" }, type)]),
      ...(param.required || star ? [] : [h("span", { class: "sig-default" }, ` = ${defaultText(param.schema) || "…"}`)])))
  })
  nodes.push(")")
  const result = resultText(method, schemas)
  if (result) nodes.push(" → ", h("span", { class: "sig-type" }, result))
  return nodes
}
