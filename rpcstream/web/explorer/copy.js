// A call as a program or a command that makes it. Files that were given stand as names, to be replaced.

import { NdArray } from "../rpcstream.js"
import { isFrame } from "./arrow.js"
import { exact, fileName, jsonText } from "./dom.js"
import { isObject, isRich, kindOf, listOf, withoutNull } from "./schemas.js"

const quote = (text) => JSON.stringify(text)
const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`)
const isName = (name) => /^[A-Za-z_]\w*$/.test(name)
const KEYWORDS = new Set("False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield".split(" "))
// As an item of the command line: without the signs that have a meaning there, such as "-", "=", ":" and "@".
const isItemName = (name) => /^[\p{L}_][\p{L}\p{M}\p{N}_.]*$/u.test(name)

const DEFAULT_ADDRESSES = ["127.0.0.1:8545", "localhost:8545"] // of the command

const READERS = { pandas: ["import pandas as pd", "pd"], polars: ["import polars as pl", "pl"], arrow: ["from pyarrow import csv", "csv"] }

/** The items of a small array of finite numbers, as lists; null for others. */
function lists(array) {
  const isSmall = array.size <= 200 && !/[cMm]/.test(array.dtype) && array.values().every((each) => Number.isFinite(Number(each)))
  return isSmall ? jsonText(array.toArray()) : null
}

function python(value, uses) {
  if (value === null || value === undefined) return "None"
  if (typeof value === "boolean") return value ? "True" : "False"
  if (typeof value === "string") return quote(value)
  if (typeof value !== "object") return String(value)
  if (value instanceof NdArray) {
    uses.add("import numpy as np")
    const text = lists(value)
    return text ? `np.array(${text}, ${quote(value.dtype)})` : 'np.load("array.npy")'
  }
  if (value instanceof Blob) {
    uses.add("from PIL import Image")
    return `Image.open(${quote(value.name ?? "picture.png")})`
  }
  if (value instanceof Uint8Array) return 'open("file.bin", "rb").read()'
  if (isFrame(value)) {
    const [use, name] = READERS[value.$type]
    uses.add(use)
    return `${name}.read_csv("table.csv")`
  }
  if (Array.isArray(value)) return `[${value.map((each) => python(each, uses)).join(", ")}]`
  return `{${Object.entries(value).map(([key, each]) => `${quote(key)}: ${python(each, uses)}`).join(", ")}}`
}

/**
 * An item of the command line. It has no type where the command finds the right one: a file for a parameter that takes
 * one (`kind`), a number, true, false, or null. Text keeps its type, because it must never be read as the name of a file.
 */
function item(key, value, kind) {
  if (value instanceof Blob) return `${key}${kind === "image" ? "" : ":image"}=${value.name ?? "picture.png"}`
  if (["number", "bigint", "boolean"].includes(typeof value) || value === null) return `${key}=${jsonText(value)}`
  if (value instanceof NdArray) return `${key}:ndarray=${lists(value) ?? "array.npy"}`
  if (value instanceof Uint8Array) return `${key}:bytes=@file.bin`
  if (isFrame(value)) return `${key}=table.csv`
  return typeof value === "string" ? `${key}:str=${value}` : `${key}:=${jsonText(value)}`
}

function tagged(_, value) {
  if (typeof value === "bigint") return exact(value)
  const data = (bytes) => (bytes.length > 4096 ? "<base64>" : btoa(String.fromCharCode(...bytes)))
  if (value instanceof Blob) return { $type: "image", format: value.type.split("/")[1], data: "<base64>" }
  if (value instanceof NdArray) {
    const { buffer, byteOffset, byteLength } = value.data
    return { $type: "ndarray", dtype: value.dtype, shape: value.shape, data: data(new Uint8Array(buffer, byteOffset, byteLength)) }
  }
  if (isFrame(value)) return { ...value, data: data(value.data) }
  return value instanceof Uint8Array ? { $type: "bytes", data: data(value) } : value
}

/** The text of a call in a language: "Python", "Command line", "curl" or "JavaScript". */
export const WAYS = {
  Python({ method, params, address, isStream, hasToken }) {
    const uses = new Set(["from rpcstream import Client"])
    const isNamed = !Array.isArray(params)
    const entries = isNamed ? Object.entries(params) : params.map((each) => [null, each])
    const isFit = entries.every(([key]) => key === null || (isName(key) && !KEYWORDS.has(key)))
    const given = isFit ? entries.map(([key, value]) => `${key === null ? "" : `${key}=`}${python(value, uses)}`) : [`**${python(params, uses)}`]
    const isPlain = isName(method) && !KEYWORDS.has(method) && !/^(call|close|stream|submit|notify|subscribe|batch)/.test(method)
    const of = `client${isStream ? ".stream" : ""}`
    const call = isPlain ? `${of}.${method}(${given.join(", ")})` : `${of}${isStream ? "" : ".call"}(${[quote(method), ...given].join(", ")})`
    const use = isStream ? `    for item in ${call}:\n        print(item)` : `    print(${call})`
    const token = hasToken ? ", token=TOKEN" : ""
    return `${[...uses].reverse().join("\n")}\n\nwith Client(${quote(address)}${token}) as client:\n${use}\n`
  },
  "Command line"({ method, params, address, isStream, hasToken, described = {}, schemas }) {
    const kindIn = (each) => (isObject(each?.schema) ? kindOf(withoutNull(each.schema, schemas), schemas)[0] : "any")
    const end = isStream ? "" : { image: "png", ndarray: "npy" }[kindIn(described.result)]
    const options = [...(DEFAULT_ADDRESSES.includes(address) ? [] : ["--uri", address]), ...(end ? ["-o", fileName(method, end)] : []), ...(isStream ? ["--stream"] : []), ...(hasToken ? ["--token-file", "FILE"] : [])]
    const isItems = !Array.isArray(params) && Object.keys(params).every(isItemName)
    const items = isItems ? Object.entries(params).map(([key, value]) => item(key, value, kindIn(listOf(described.params).find((each) => each?.name === key)))) : ["-"]
    const piped = isItems ? "" : `printf %s ${shell(JSON.stringify(params, tagged))} | `
    const words = isItemName(method) ? [method, ...items, ...options] : [...options, "--", method, ...items] // a name may look like an option
    return `${piped}${["rpcstream", ...words].map(shell).join(" ")}\n`
  },
  curl({ method, params, url, isStream, hasToken }) {
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }, tagged)
    const headers = ["Content-Type: application/json", ...(isStream ? ["Accept: application/x-ndjson"] : []), ...(hasToken ? ["Authorization: Bearer TOKEN"] : [])]
    return `curl ${shell(url)} ${headers.map((each) => `-H ${shell(each)}`).join(" ")} -d ${shell(body)}\n`
  },
  JavaScript({ method, params, url, isStream, hasToken }) {
    const token = hasToken ? ", { token: TOKEN }" : ""
    const rich = (Array.isArray(params) ? params : Object.values(params)).some(isRich)
    const note = rich ? "// Give pictures as Blob, arrays as NdArray, bytes as Uint8Array, tables as { $type, data } with the bytes of an Arrow stream.\n" : ""
    const args = `${quote(method)}, ${jsonText(params)}`
    const use = isStream ? `for await (const item of client.stream(${args})) console.log(item)` : `console.log(await client.call(${args}))`
    return `import { Client } from ${quote(new URL("rpcstream.js", url.replace(/[^/]*$/, "")).href)}\n\nconst client = new Client(${quote(url)}${token})\n${note}${use}\nclient.close()\n`
  },
}
