// Editors of files: pictures, arrays and bytes, which are dropped, pasted, chosen, or taken with the camera.

import { NdArray } from "../rpcstream.js"
import { DTYPES, fromLists, nameOf, readNpy } from "./arrays.js"
import { button, h, icon, jsonText, shown, sizeOf } from "./dom.js"
import { factsOf, picturePlaceTools, thumbnail } from "./photos.js"
import { asStored } from "./pictures.js"
import { Invalid } from "./schemas.js"

const FORMATS = ["image/png", "image/jpeg", "image/webp", "image/gif"]
const MOST_FILES = 100
const MOST_BYTES = 48e6

/** A place for pictures, with the camera, the clipboard and thumbnails. */
function picturePlace(text, isMany, take) {
  const thumbs = h("div", { class: "thumbs" })
  const video = h("div")
  const tools = picturePlaceTools(video)
  return { thumbs, ...filePlace(text, { accept: FORMATS.join(), isMany, tools }, (files) => (files.forEach(checkFormat), take(files)), video, thumbs) }
}

/** A place for files: to choose, drop or paste them. `take` gets a list of them; what it throws is shown. */
export function filePlace(text, { accept, isMany = false, tools = [] }, take, ...more) {
  const state = h("p", { role: "status" })
  const file = h("input", { type: "file", accept, multiple: isMany, class: "hidden" })
  const got = async (given) => {
    const files = [...(given ?? [])].slice(0, isMany ? MOST_FILES : 1)
    if (!files.length) return
    try {
      state.textContent = ""
      await take(files)
      node.dispatchEvent(new Event("change", { bubbles: true }))
    } catch (error) {
      state.textContent = shown(error.message, 300)
    }
  }
  file.onchange = () => got(file.files)
  const node = h("div", { class: "drop",
    ondragover: (event) => (event.preventDefault(), node.classList.add("over")),
    ondragleave: () => node.classList.remove("over"),
    ondrop: (event) => {
      event.preventDefault()
      node.classList.remove("over")
      got(event.dataTransfer.files)
    },
    ontake: (event) => got(event.detail),
  }, h("div", { class: "drop-head" }, h("p", null, icon("upload"), ` ${text}: drop, paste or `, button(isMany ? "choose files" : "choose a file", () => file.click(), { class: "quiet" }), file),
    tools.map((each) => each(got, state))), state, ...more)
  return { node, state, file, got }
}

/** Editors that hold a value which is no text; `describe` says what it is. */
function held(what) {
  let value
  return { get: () => { if (value === undefined) throw new Invalid(`${what} is expected`); return value }, set: (given) => (value = given), has: () => value !== undefined }
}

function checkFormat({ name = "this file", type }) {
  if (!FORMATS.includes(type)) throw Error(`${shown(name, 60)}: expected a PNG, JPEG, WebP or GIF file. Convert it, or call the method from Python.`)
}

export function checkSize(file) {
  if (file.size > MOST_BYTES) throw Error(`${shown(file.name ?? "this file", 60)} has more than ${sizeOf(MOST_BYTES)}: choose a smaller one`)
}

export const FILE_EDITORS = {
  image: (schema, env, level, { name, drawing } = {}) => {
    const value = held("a picture")
    const place = picturePlace("Picture (PNG, JPEG, WebP or GIF)", false, async ([file]) => {
      await show(file)
      place.state.textContent = `${shown(file.name ?? "picture", 60)} · ${await factsOf(file)}`
    })
    async function show(file) {
      checkSize(file)
      value.set(file)
      if (drawing?.kind !== "mask") env.shelf?.put(name, file)
      place.thumbs.replaceChildren(await thumbnail(file))
    }
    return { node: place.node, input: place.file, get: value.get, set: (given) => given instanceof Blob && place.got([given]), release: () => env.shelf?.put(name, null) }
  },
  pictures: () => {
    let all = []
    const place = picturePlace("Pictures (PNG, JPEG, WebP or GIF)", true, async (files) => {
      files.forEach(checkSize)
      await add(files)
    })
    async function add(files) {
      const kept = files.slice(0, MOST_FILES - all.length)
      all = [...all, ...kept]
      place.thumbs.append(...await Promise.all(kept.map((file) => thumbnail(file, remove))))
      tell()
    }
    function tell() {
      place.state.textContent = `${all.length} ${all.length === 1 ? "picture" : "pictures"} · ${sizeOf(all.reduce((sum, each) => sum + each.size, 0))}`
    }
    function remove(file, node) {
      all = all.filter((each) => each !== file)
      node.remove()
      tell()
      place.node.dispatchEvent(new Event("change", { bubbles: true }))
      place.file.focus()
    }
    const set = (given) => {
      all = []
      place.thumbs.replaceChildren()
      add((Array.isArray(given) ? given : []).filter((each) => each instanceof Blob))
    }
    return { node: place.node, input: place.file, get: () => all, set, where: ([at]) => (typeof at === "number" ? `picture ${at + 1}: ` : "") }
  },
  bytes: () => {
    const value = held("a file")
    const text = h("textarea", { rows: 1, "aria-label": "or text", placeholder: "or text, sent as UTF-8", oninput: () => value.set(new TextEncoder().encode(text.value)) })
    const place = filePlace("File", {}, async ([file]) => {
      value.set(new Uint8Array(await file.arrayBuffer()))
      place.state.textContent = `${shown(file.name, 60)} · ${sizeOf(file.size)}`
    }, text)
    return { node: place.node, input: place.file, get: value.get, set: (given) => given instanceof Uint8Array && value.set(given) }
  },
  ndarray: (schema) => {
    const wanted = [schema["x-ndarray"]?.dtype ?? schema.properties?.dtype?.enum].flat()[0]
    const dtypes = [...new Set([...DTYPES.filter((each) => each === wanted || each.slice(1) === wanted), ...DTYPES])]
    const dtype = h("select", { "aria-label": "dtype" }, dtypes.map((each) => h("option", { value: each }, nameOf(each))))
    const text = h("textarea", { rows: 2, spellcheck: "false", placeholder: "[[1, 2], [3, 4]]", oninput: () => hold(undefined, "") })
    let array
    const hold = (given, name) => {
      array = given
      place.state.textContent = given ? `${shown(name, 60)} ${given.dtype} (${given.shape.join(", ")})` : ""
    }
    const place = filePlace("File (.npy) or picture", { accept: ".npy,image/*" }, async ([file]) => {
      hold(file.type.startsWith("image/") ? await pixelsOf(file) : await readNpy(file), file.name)
      text.value = ""
    }, h("div", { class: "row" }, dtype, text))
    place.file.setAttribute("aria-label", "file of the array")
    return { node: place.node, input: text, isBlank: () => !array && !text.value.trim(),
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
  const bitmap = await createImageBitmap(await asStored(file))
  const canvas = h("canvas", { width: bitmap.width, height: bitmap.height })
  const context = canvas.getContext("2d")
  context.drawImage(bitmap, 0, 0)
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height)
  const isOpaque = data.every((each, at) => at % 4 !== 3 || each === 255)
  const channels = isOpaque ? 3 : 4
  const items = isOpaque ? data.filter((_, at) => at % 4 !== 3) : data
  return new NdArray("|u1", [bitmap.height, bitmap.width, channels], Uint8Array.from(items))
}

