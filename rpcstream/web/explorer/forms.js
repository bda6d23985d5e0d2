// Forms out of JSON Schema. An editor is {node, input?, get(), set(value), fail(path, text)}:
// `get` gives the value or throws Invalid with the path of the wrong part; `fail` shows a text at such a path.

import { NdArray } from "../rpcstream.js"
import { DTYPES, fromLists, readNpy } from "./arrays.js"
import { button, h, icon, iconButton, jsonText, longText, parseJson, shown, sizeOf, uid } from "./dom.js"
import { modeOf } from "./pictures.js"
import { defaultText, typeText } from "./signature.js"

const MOST_CHOICES = 1000
const MOST_FIELDS = 500

export class Invalid extends Error {
  path = []
}

/** The steps of a path such as `$.boxes[0].x`. */
export function steps(path) {
  const found = String(path ?? "").slice(0, 2000).matchAll(/\.([^.[\]]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]/g)
  return [...found].map(([, name, index, quoted]) => name ?? quoted ?? Number(index))
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value)
const listOf = (value) => (Array.isArray(value) ? value : [])

/** Follow references, each once, and put the parts of an `allOf` together. */
function resolve(schema, schemas, seen = new Set()) {
  let found = isObject(schema) ? schema : {}
  for (;;) {
    if (typeof found.$ref === "string") {
      const { $ref, ...more } = found
      const name = $ref.split("/").pop().replaceAll("~1", "/").replaceAll("~0", "~")
      const isKnown = isObject(schemas) && Object.hasOwn(schemas, name) && !seen.has(name)
      seen.add(name)
      found = { ...(isKnown ? schemas[name] : {}), ...more }
    } else if (Array.isArray(found.allOf)) {
      const { allOf, ...more } = found
      found = Object.assign({}, ...allOf.map((each) => resolve(each, schemas, seen)), more)
    } else return found
  }
}

/** Which rich value a schema stands for: "image", "ndarray", "bytes", ...; "" for plain JSON. */
function richKind(schema, schemas) {
  if (schema["x-ndarray"]) return "ndarray"
  const tag = resolve(schema, schemas).properties?.$type
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

function kindOf(schema, schemas) {
  const choices = choicesOf(schema, schemas)
  if (choices.length > 1) return ["union", choices]
  const found = choices[0] ?? {}
  const rich = richKind(found, schemas)
  if (["image", "ndarray", "bytes"].includes(rich)) return [rich, { ...found, ...resolve(schema, schemas) }]
  if (isPayload(found)) return ["bytes", found]
  if ("const" in found) return ["enum", { ...found, enum: [found.const] }]
  if (found.enum?.length > 0 && Array.isArray(found.enum) && found.enum.length <= MOST_CHOICES) return ["enum", found]
  if (rich) return ["any", found]
  if (found.type === "object") return [isObject(found.properties) ? "object" : "map", found]
  if (found.type === "array") return [Array.isArray(found.prefixItems) ? "tuple" : "list", found]
  return [["boolean", "integer", "number", "null", "string"].includes(found.type) ? found.type : "any", found]
}

const nameOfKind = (kind, schema) =>
  schema.title ? shown(schema.title, 60) : { map: "object", union: "one of several", ndarray: "array", any: "JSON", bytes: "file" }[kind] ?? kind

/** What a value must be like, in a few words. */
function constraintsOf(schema) {
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

/** An editor for a value of a schema. */
export function makeEditor(schema, env, level = 0) {
  // An object that holds itself, many times and without end, is made in part: the rest is JSON.
  if (env.left === undefined) setTimeout(() => (env.left = undefined))
  env.left = (env.left ?? 2000) - 1
  const [kind, found] = level > 24 || env.left < 0 ? ["any", {}] : kindOf(schema, env.schemas)
  const editor = EDITORS[kind](found, env, level + 1)
  editor.kind = nameOfKind(kind, kind === "union" ? resolve(schema, env.schemas) : found)
  editor.limits = kind === "union" ? "" : constraintsOf({ ...found, ...resolve(schema, env.schemas) })
  return editor
}

/** The type of an optional value that is null where it is not given: nobody needs to choose null then. */
function withoutNull(schema, schemas) {
  const found = resolve(schema, schemas)
  const choices = found.default === null ? choicesOf(schema, schemas) : []
  const others = choices.filter((each) => each.type !== "null")
  return others.length === 1 && choices.length === 2 ? { ...others[0], default: null } : schema
}

const BIG = ["union", "object", "map", "list", "tuple"]

/** A labelled editor with its errors. One that is not required is sent once it was edited, until it is reset. */
function field(name, schema, env, { isRequired, description, level = 0 }) {
  const error = h("p", { class: "error", id: uid(), hidden: true })
  const typed = isRequired ? schema : withoutNull(schema, env.schemas)
  const [kind] = kindOf(typed, env.schemas)
  const isBig = BIG.includes(kind)
  const resolved = resolve(schema, env.schemas)
  const hasDefault = "default" in resolved || "x-default" in resolved
  const typeName = typeText(schema, env.schemas)
  const default_ = hasDefault ? defaultText(resolved) : ""
  const body = h("div", { class: "body", hidden: isBig && !isRequired })
  const open = h("button", { type: "button", class: "quiet", hidden: !isBig || isRequired, "aria-label": `Set ${shown(name, 60)}`, onclick: () => touch() }, "Set")
  const reset = h("button", { type: "button", class: "quiet", hidden: true, "aria-label": `Reset ${shown(name, 60)}`, onclick: () => {
    release()
    node.dispatchEvent(new Event("change", { bubbles: true }))
  } }, "Reset")
  const head = h("span", { class: "name" }, shown(name))
  const label = h(isBig ? "span" : "label", null, head)
  const title = h(isBig ? "legend" : "div", { class: "head" }, label)
  const node = h(isBig ? "fieldset" : "div", { class: "field" }, title, body, error)
  let editor = null
  let isTouched = Boolean(isRequired)
  function build() {
    if (editor) return editor
    editor = makeEditor(typed, env, level)
    if (editor.input) {
      editor.input.id = uid()
      if (!isBig) label.setAttribute("for", editor.input.id)
      editor.input.setAttribute("aria-describedby", error.id)
      if (!isRequired && "placeholder" in editor.input) editor.input.placeholder = default_ || editor.input.placeholder
    }
    body.append(editor.node)
    for (const event of ["input", "change"]) body.addEventListener(event, () => {
      const isEmpty = !isBig && kind !== "string" && editor.input && /^(text|textarea|date|datetime-local)$/.test(editor.input.type) && !editor.input.value && !editor.isHeld?.()
      if (isEmpty && !isRequired) release(true)
      else touch()
      clear()
    })
    return editor
  }
  function note() {
    const { limits } = build()
    title.append(h("span", { class: "note" }, limits ? `${typeName}, ${limits}` : typeName))
    if (default_ && !("placeholder" in (editor.input ?? {}))) title.append(h("span", { class: "note" }, `default ${default_}`))
    title.append(open, reset)
  }
  const text = description ?? resolved.description
  if (text) node.insertBefore(longText(String(text), "p", 300), body)
  /** What is edited is sent. */
  function touch() {
    build()
    isTouched = true
    show()
  }
  /** It is not sent any more; unless `isKept`, the editor shows the default again. */
  function release(isKept) {
    isTouched = Boolean(isRequired)
    if (!isKept && editor && !isRequired) {
      editor.node.remove()
      editor = null
      if (!isBig) build()
      preset()
    }
    clear()
    show()
  }
  function show() {
    body.hidden = isBig && !isTouched
    open.hidden = !isBig || isTouched
    reset.hidden = isRequired || !isTouched
    body.classList.toggle("unsent", !isTouched)
  }
  function clear() {
    error.hidden = true
    editor?.input?.removeAttribute("aria-invalid")
  }
  /** Choices show their default, which texts have as their placeholder. */
  function preset() {
    const isChoice = editor?.input?.tagName === "SELECT"
    if ("default" in resolved && (isChoice || (isBig && editor))) setQuietly(resolved.default)
  }
  function setQuietly(value) {
    try {
      build().set(value)
    } catch {} // a default that its own schema does not take
  }
  if (isRequired || !isBig) {
    note()
    preset()
  } else title.append(h("span", { class: "note" }, typeName), default_ && h("span", { class: "note" }, `default ${default_}`), open, reset)
  show()
  return {
    node,
    get isSent() {
      return isTouched
    },
    get() {
      if (!env.isDraft) clear()
      return build().get()
    },
    /** The value for a program that shows the call: where a required one is missing, an example of it. */
    draft() {
      env.isDraft = true // errors that are shown stay
      try {
        return build().get()
      } catch {
        return sample(schema, env.schemas, name)
      } finally {
        env.isDraft = false
      }
    },
    set(value) {
      if (value === undefined) return release()
      setQuietly(value)
      touch()
    },
    fail(path, message) {
      touch()
      if (path.length && build().fail?.(path, message)) return true
      error.textContent = shown(message, 1000)
      error.hidden = false
      const place = build().input ?? node.querySelector("input, select, textarea, button")
      build().input?.setAttribute("aria-invalid", "true")
      place?.focus()
      return true
    },
  }
}

/** A value of a schema, for programs. */
function sample(schema, schemas, name, level = 0) {
  const [kind, found] = level > 4 ? ["null"] : kindOf(schema, schemas)
  if (kind === "image") return Object.assign(new Blob([], { type: "image/png" }), { name: `${/^\w{1,40}$/.test(name) ? name : "picture"}.png` })
  if (kind === "bytes") return new Uint8Array()
  if (kind === "ndarray") return NdArray.from([0, 1], "<f4")
  if (kind === "enum") return found.enum[0]
  if (kind === "boolean") return false
  if (kind === "integer" || kind === "number") return [found.minimum, found.default, 1].find((each) => typeof each === "number")
  if (kind === "string") return { date: "2026-01-31", "date-time": "2026-01-31T12:00:00Z" }[found.format] ?? "text"
  if (kind === "list") return []
  if (kind === "tuple") return found.prefixItems.slice(0, 20).map((each) => sample(each, schemas, name, level + 1))
  if (kind === "union") return sample(found[0], schemas, name, level + 1)
  if (kind === "object") return Object.fromEntries(listOf(found.required).slice(0, 20).map((each) => [each, sample(found.properties[each], schemas, String(each), level + 1)]))
  return kind === "null" || kind === "any" ? null : {}
}

/** Give the value of an editor; what it throws gets the step that leads there. */
function getAt(step, editor) {
  try {
    return editor.get()
  } catch (error) {
    if (error instanceof Invalid) error.path.unshift(step)
    throw error
  }
}

function input(type, props, read, write = (value) => String(value)) {
  const node = h(type === "textarea" ? "textarea" : "input", { ...(type === "textarea" ? { rows: 1 } : { type }), ...props })
  return { node, input: node, get: () => read(node.value), set: (value) => (node.value = value == null ? "" : write(value)) }
}

function numberOf(text, isWhole) {
  const trimmed = text.trim()
  const isNumber = isWhole ? /^[+-]?\d+$/.test(trimmed) : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(trimmed)
  if (!isNumber) throw new Invalid(isWhole ? "a whole number is expected" : "a number is expected")
  const number = Number(trimmed)
  if (!Number.isFinite(number)) throw new Invalid("JSON has no number of this size")
  return isWhole && !Number.isSafeInteger(number) ? BigInt(trimmed.replace("+", "")) : number
}

function jsonOf(text) {
  try {
    return parseJson(text)
  } catch (error) {
    throw new Invalid(`not JSON: ${error.message}`)
  }
}

/** A number with both bounds can be dragged, too. */
function withSlider(schema, editor, isWhole) {
  const [min, max] = [schema.minimum, schema.maximum]
  if (!(Number.isFinite(min) && Number.isFinite(max) && min < max)) return editor
  const step = isWhole ? 1 : 10 ** Math.floor(Math.log10((max - min) / 50))
  const slider = h("input", { type: "range", min, max, step, "aria-label": "slider", oninput: () => (editor.input.value = slider.value) })
  const follow = () => (slider.value = editor.input.value || String(schema.default ?? min))
  editor.input.addEventListener("input", follow)
  slider.value = String(schema.default ?? min)
  const set = (value) => {
    editor.set(value)
    follow()
  }
  return { ...editor, set, node: h("div", { class: "row slider" }, editor.node, slider) }
}

const WIDGETS = { date: "date", "date-time": "datetime-local" }

/** A place for a file: to choose, drop or paste one. `take` gets it; what it throws is shown. */
function filePlace(text, accept, take, ...more) {
  const state = h("p", { role: "status" })
  const file = h("input", { type: "file", accept, class: "hidden" })
  const got = async (given) => {
    if (!given) return
    try {
      state.textContent = ""
      await take(given)
      node.dispatchEvent(new Event("change", { bubbles: true }))
    } catch (error) {
      state.textContent = shown(error.message, 300)
    }
  }
  file.onchange = () => got(file.files[0])
  const node = h("div", { class: "drop",
    ondragover: (event) => (event.preventDefault(), node.classList.add("over")),
    ondragleave: () => node.classList.remove("over"),
    ondrop: (event) => {
      event.preventDefault()
      node.classList.remove("over")
      got(event.dataTransfer.files[0])
    },
    ontake: (event) => got(event.detail),
  }, h("p", null, icon("upload"), ` ${text}: drop, paste or `, button("choose a file", () => file.click(), { class: "quiet" }), file), state, ...more)
  return { node, state, file, got }
}

function camera(got) {
  const video = h("video", { "aria-label": "camera", playsinline: "", muted: true, hidden: true })
  let stream = null
  const stop = () => {
    stream?.getTracks().forEach((track) => track.stop())
    stream = null
    video.hidden = true
    open.replaceChildren(icon("camera"), " Camera")
  }
  const open = iconButton("camera", "Camera", async () => {
    if (stream) {
      const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight })
      canvas.getContext("2d").drawImage(video, 0, 0)
      stop()
      canvas.toBlob((blob) => got(new File([blob], "camera.png", { type: "image/png" })))
      return
    }
    try {
      if (!navigator.mediaDevices) throw Error("a camera needs https or localhost")
      stream = await navigator.mediaDevices.getUserMedia({ video: true })
      video.srcObject = stream
      video.hidden = false
      await video.play()
      open.textContent = "Take the picture"
    } catch (error) {
      open.textContent = `No camera: ${shown(error.message, 100)}`
    }
  })
  return [open, video]
}

/** Editors that hold a value which is no text; `describe` says what it is. */
function held(what) {
  let value
  return { get: () => { if (value === undefined) throw new Invalid(`${what} is expected`); return value }, set: (given) => (value = given), has: () => value !== undefined }
}

/** Items that are added and removed. */
function rows(makeRow, addText, fixed = 0) {
  const node = h("div", { class: "rows" })
  const all = []
  const add = () => {
    if (all.length >= MOST_FIELDS) return null
    const row = makeRow(all.length)
    if (all.length >= fixed) {
      row.node.append(button("Remove", () => {
        all.splice(all.indexOf(row), 1)
        row.node.remove()
        node.dispatchEvent(new Event("change", { bubbles: true }))
        more.focus()
      }, { "aria-label": "Remove this" }))
    }
    all.push(row)
    node.insertBefore(row.node, more)
    return row
  }
  const more = button(addText, () => add()?.node.querySelector("input, select, textarea, button")?.focus(), { class: "add" })
  node.append(more)
  const clear = () => all.splice(0).forEach((row) => row.node.remove())
  return { node, all, add, clear, more }
}

const EDITORS = {
  boolean: () => {
    const node = h("select", null, h("option", null, "false"), h("option", null, "true"))
    return { node, input: node, get: () => node.value === "true", set: (value) => (node.value = String(Boolean(value))) }
  },
  integer: (schema) => withSlider(schema, input("text", { inputmode: "numeric", autocomplete: "off" }, (text) => numberOf(text, true)), true),
  number: (schema) => withSlider(schema, input("text", { inputmode: "decimal", autocomplete: "off" }, (text) => numberOf(text, false)), false),
  null: () => ({ node: h("span", { class: "note" }, "null"), get: () => null, set() {} }),
  string: (schema) => {
    const type = WIDGETS[schema.format]
    if (!type) return input("textarea", { spellcheck: "false" }, (text) => text)
    const isMoment = type === "datetime-local"
    const step = type === "date" ? null : 1
    return input(type, { step }, (text) => {
      if (!text) throw new Invalid(`a ${schema.format} is expected`)
      return isMoment ? new Date(text).toISOString() : text
    }, (value) => {
      const moment = new Date(value)
      return isMoment && !Number.isNaN(+moment) ? new Date(+moment - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 19) : String(value)
    })
  },
  any: () => input("textarea", { spellcheck: "false", placeholder: "JSON" }, (text) => jsonOf(text || "null"), (value) => jsonText(value)),
  enum: (schema) => {
    const texts = schema.enum.map((each) => jsonText(each))
    const node = h("select", null, schema.enum.map((each, at) =>
      h("option", { value: String(at) }, shown(typeof each === "string" ? each : texts[at], 100))))
    return { node, input: node, get: () => schema.enum[Number(node.value)],
      set: (value) => (node.value = String(Math.max(0, texts.indexOf(jsonText(value))))) }
  },
  union: (choices, env, level) => {
    const kinds = choices.map((each) => kindOf(each, env.schemas))
    const body = h("div")
    const made = new Map()
    const select = h("select", { "aria-label": "type", onchange: () => show() }, kinds.map(([kind, found], at) =>
      h("option", { value: String(at) }, nameOfKind(kind, found))))
    function show() {
      const at = Number(select.value)
      if (!made.has(at)) made.set(at, makeEditor(choices[at], env, level))
      const editor = made.get(at)
      editor.input?.setAttribute("aria-label", "value")
      if (body.firstChild !== editor.node) body.replaceChildren(editor.node) // an input that is put in again loses the focus
      return editor
    }
    show()
    return { node: h("div", { class: "union" }, select, body), get: () => show().get(),
      set(value) {
        const at = kinds.findIndex(([kind, found]) => isLike(value, kind, found))
        select.value = String(Math.max(0, at))
        show().set(value)
      },
      fail: (path, text) => show().fail?.(path, text) }
  },
  object: (schema, env, level) => objectEditor(Object.entries(schema.properties).map(([name, each]) => ({
    name, schema: each, isRequired: listOf(schema.required).includes(name),
  })), env, level),
  map: (schema, env, level) => {
    const list = rows(() => {
      const key = h("input", { type: "text", "aria-label": "name", placeholder: "name" })
      const editor = makeEditor(schema.additionalProperties ?? {}, env, level)
      editor.input?.setAttribute("aria-label", "value")
      return { node: h("div", { class: "row" }, key, editor.node), key, editor }
    }, "Add an entry")
    return { node: list.node, get() {
      const made = Object.create(null)
      for (const { key, editor } of list.all) made[key.value] = getAt(key.value, editor)
      return made
    }, set(value) {
      list.clear()
      for (const [key, each] of Object.entries(value ?? {})) {
        const row = list.add()
        if (!row) break
        row.key.value = key
        row.editor.set(each)
      }
    }, fail: (path, text) => failAt(list.all.find(({ key }) => key.value === String(path[0])), path, text) }
  },
  list: (schema, env, level) => listEditor(() => schema.items ?? {}, 0, env, level),
  tuple: (schema, env, level) => listEditor((at) => schema.prefixItems[at] ?? schema.items ?? {}, schema.prefixItems.length, env, level, !schema.items),
  image: () => {
    const value = held("a picture")
    const preview = h("div")
    const place = filePlace("Picture", "image/*", take)
    async function take(file) {
      if (file.size > 48e6) throw Error("this file is too large")
      value.set(file)
      const image = h("img", { class: "picture small", alt: shown(file.name ?? "the picture", 60), src: URL.createObjectURL(file) })
      preview.replaceChildren(image)
      await image.decode().catch(() => (image.hidden = true))
      URL.revokeObjectURL(image.src)
      const size = image.hidden ? "" : `${image.naturalWidth} × ${image.naturalHeight} · `
      place.state.textContent = `${shown(file.name ?? "picture", 60)} · ${size}${await modeOf(file)} · ${sizeOf(file.size)}`
    }
    place.node.append(...camera(place.got), preview)
    return { node: place.node, input: place.file, get: value.get, set: (given) => given instanceof Blob && take(given) }
  },
  bytes: () => {
    const value = held("a file")
    const text = h("textarea", { rows: 1, "aria-label": "or text", placeholder: "or text, sent as UTF-8", oninput: () => value.set(new TextEncoder().encode(text.value)) })
    const place = filePlace("File", "", async (file) => {
      value.set(new Uint8Array(await file.arrayBuffer()))
      place.state.textContent = `${shown(file.name, 60)} · ${sizeOf(file.size)}`
    }, text)
    return { node: place.node, input: place.file, get: value.get, set: (given) => given instanceof Uint8Array && value.set(given) }
  },
  ndarray: (schema) => {
    const wanted = [schema["x-ndarray"]?.dtype ?? schema.properties?.dtype?.enum].flat()[0]
    const dtypes = [...new Set([...DTYPES.filter((each) => each === wanted || each.slice(1) === wanted), ...DTYPES])]
    const dtype = h("select", { "aria-label": "dtype" }, dtypes.map((each) => h("option", { value: each }, each)))
    const text = h("textarea", { rows: 2, spellcheck: "false", placeholder: "[[1, 2], [3, 4]]", oninput: () => hold(undefined, "") })
    let array
    const hold = (given, name) => {
      array = given
      place.state.textContent = given ? `${shown(name, 60)} ${given.dtype} (${given.shape.join(", ")})` : ""
    }
    const place = filePlace("File (.npy) or picture", ".npy,image/*", async (file) => {
      hold(file.type.startsWith("image/") ? await pixelsOf(file) : await readNpy(file), file.name)
      text.value = ""
    }, h("div", { class: "row" }, dtype, text))
    place.file.setAttribute("aria-label", "file of the array")
    return { node: place.node, input: text, isHeld: () => Boolean(array),
      get() {
        if (array) return array
        if (!text.value.trim()) throw new Invalid("an array is expected")
        try {
          return fromLists(text.value, dtype.value)
        } catch (error) {
          throw new Invalid(error.message)
        }
      },
      set(given) {
        if (given instanceof NdArray) hold(given, "array")
        else text.value = jsonText(given)
      } }
  },
}

/** A picture as an array of bytes, (height, width, 3), or 4 where parts are transparent. */
async function pixelsOf(file) {
  const bitmap = await createImageBitmap(file)
  const canvas = h("canvas", { width: bitmap.width, height: bitmap.height })
  const context = canvas.getContext("2d")
  context.drawImage(bitmap, 0, 0)
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height)
  const isOpaque = data.every((each, at) => at % 4 !== 3 || each === 255)
  const channels = isOpaque ? 3 : 4
  const items = isOpaque ? data.filter((_, at) => at % 4 !== 3) : data
  return new NdArray("|u1", [bitmap.height, bitmap.width, channels], Uint8Array.from(items))
}

const failAt = (row, path, text) => row && (row.fail ? row.fail(path.slice(1), text) : row.editor.fail?.(path.slice(1), text))

function isLike(value, kind, schema) {
  if (kind === "null") return value === null
  if (kind === "enum") return schema.enum.some((each) => each === value)
  if (kind === "boolean") return typeof value === "boolean"
  if (kind === "integer") return Number.isInteger(value) || typeof value === "bigint"
  if (kind === "number") return typeof value === "number"
  if (kind === "string") return typeof value === "string"
  if (kind === "list" || kind === "tuple") return Array.isArray(value)
  if (kind === "ndarray") return value instanceof NdArray
  if (kind === "image") return value instanceof Blob
  if (kind === "bytes") return value instanceof Uint8Array
  if (kind === "object") return isObject(value) && listOf(schema.required).every((each) => Object.hasOwn(value, each))
  return kind === "any" || isObject(value)
}

function listEditor(schemaAt, fixed, env, level, isClosed = false) {
  const list = rows((at) => {
    const item = field(`item ${at + 1}`, schemaAt(at), env, { isRequired: true, level })
    return item
  }, "Add an item", fixed)
  for (let at = 0; at < fixed; at++) list.add()
  list.more.hidden = isClosed
  return { node: list.node, get: () => list.all.map((row, at) => getAt(at, row)),
    set(value) {
      while (list.all.length < value.length && list.add()) continue
      list.all.splice(Math.max(fixed, value.length)).forEach((row) => row.node.remove())
      value.forEach((each, at) => list.all[at]?.set(each))
    },
    fail: (path, text) => failAt(list.all[path[0]], path, text) }
}

/** The fields of an object, or of the parameters of a method, in their order. */
export function objectEditor(members, env, level = 0) {
  const fields = new Map(members.slice(0, MOST_FIELDS).map((each) => [each.name, field(each.name, each.schema, env, { ...each, level })]))
  const node = h("div", { class: "fields" }, [...fields.values()].map((each) => each.node))
  if (members.length > MOST_FIELDS) node.append(h("p", null, `${members.length - MOST_FIELDS} more are not shown`))
  return { node, draft() {
    const made = Object.create(null)
    for (const [name, each] of fields) if (each.isSent) made[name] = each.draft()
    return made
  }, get() {
    const made = Object.create(null)
    for (const [name, each] of fields) if (each.isSent) made[name] = getAt(name, each)
    return made
  }, set(value) {
    for (const [name, each] of fields) each.set(value && Object.hasOwn(value, name) ? value[name] : undefined)
  }, fail: (path, text) => failAt(fields.get(String(path[0])), path, text) }
}

/** The form of a method: its parameters, of which further ones (`x-rest`) are lists or entries. */
export function methodForm(method, schemas) {
  const params = listOf(method.params).filter(isObject).map((each) => ({
    name: String(each.name ?? ""), schema: restSchema(each), isRequired: Boolean(each.required), description: each.description, rest: each["x-rest"],
  }))
  const editor = objectEditor(params, { schemas })
  const rest = (kind) => params.find((each) => each.rest === kind)?.name
  return {
    node: editor.node,
    set: editor.set,
    /** The values by name. */
    values: () => editor.get(),
    /** The params as they are now, with examples for what is missing, for a program that shows the call. */
    draft() {
      const made = editor.draft()
      const given = Object.assign(Object.create(null), made, made[rest("named")])
      delete given[rest("named")]
      const items = given[rest("positional")]
      delete given[rest("positional")]
      if (!items?.length) return given
      return [...params.slice(0, params.findIndex((each) => each.rest === "positional")).map((each) => given[each.name] ?? null), ...items]
    },
    /** The params to send, an object, or an array where there are further positional ones. */
    params(values) {
      const made = Object.assign(Object.create(null), values)
      const [named, positional] = [rest("named"), rest("positional")]
      if (named !== undefined) {
        const more = made[named]
        delete made[named]
        Object.assign(made, more)
      }
      const items = made[positional]
      if (positional !== undefined) delete made[positional]
      if (!items?.length) return made
      const before = params.slice(0, params.findIndex((each) => each.rest === "positional"))
      const gap = before.find((each) => !Object.hasOwn(made, each.name))
      if (gap) editor.fail([gap.name], "it stands before further values, so it must be given")
      if (gap) throw new Invalid("a value is missing")
      if (Object.keys(made).length > before.length) throw new Invalid("further values go by position, so none can go by name")
      return [...before.map((each) => made[each.name]), ...items]
    },
    /** Show an error at the field that its path names; false if there is none. */
    fail(path, text) {
      const at = params.findIndex((each) => each.rest === "positional")
      if (typeof path[0] === "number")
        path = at >= 0 && path[0] >= at ? [params[at].name, path[0] - at, ...path.slice(1)] : [params[path[0]]?.name, ...path.slice(1)]
      return path.length > 0 && Boolean(editor.fail(path, text))
    },
  }
}

function restSchema({ schema, "x-rest": rest }) {
  if (rest === "positional") return { type: "array", items: schema ?? {} }
  return rest === "named" ? { type: "object", additionalProperties: schema ?? {} } : schema ?? {}
}
