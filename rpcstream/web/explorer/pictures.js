// Pictures: their size, their mode and the values of their pixels.

import { comparison } from "./compare.js"
import { h, iconButton, save, shown, sizeOf } from "./dom.js"
import { openZoom, pixelText } from "./zoom.js"

const MOST_SENT = 8
const CHANNELS = { L: 1, LA: 2, RGB: 3, RGBA: 4 }

/** The mode of an image file, as Pillow names it, by the head of the file; "" where that does not say. */
export async function modeOf(blob) {
  if (blob.mode) return blob.mode
  const bytes = new Uint8Array(await blob.slice(0, 65_536).arrayBuffer())
  if (bytes[0] === 0x89) {
    const [depth, colour] = [bytes[24], bytes[25]]
    return { 0: depth === 1 ? "1" : depth === 16 ? "I;16" : "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA" }[colour] ?? ""
  }
  for (let at = 2; bytes[0] === 0xff && at + 9 < bytes.length; at += 2 + bytes[at + 2] * 256 + bytes[at + 3])
    if (bytes[at + 1] >= 0xc0 && bytes[at + 1] <= 0xc2) return { 1: "L", 3: "RGB", 4: "CMYK" }[bytes[at + 9]] ?? ""
  return ""
}

// The orientation in EXIF, up to the number that says how a viewer turns the picture; in either byte order.
const TURNED = /(Exif\0\0|eXIf)(II.{0,999}?\x12\x01\x03\0\x01\0\0\0|MM.{0,999}?\x01\x12\0\x03\0\0\0\x01\0)(?=[\x02-\x08])/s

/** A picture that shows its pixels as they are stored, which is how Pillow gives them to a method: EXIF does not turn it. */
export async function asStored(blob) {
  const found = TURNED.exec(new TextDecoder("latin1").decode(await blob.slice(0, 65_536).arrayBuffer()))
  if (!found) return blob
  const at = found.index + found[0].length
  return new Blob([blob.slice(0, at), "\x01", blob.slice(at + 1)], { type: blob.type })
}

/** The pixels of the last picture that was looked at. Only one is kept: 12 megapixels take 48 MB. */
let latest = {}

/** A picture for `openZoom`. */
export function sourceOf(blob) {
  if (latest.blob !== blob) latest = { blob, source: load(blob) }
  return latest.source
}

async function load(blob) {
  const image = await createImageBitmap(await asStored(blob), { premultiplyAlpha: "none", colorSpaceConversion: "none" })
  const mode = await modeOf(blob)
  const { width, height } = image
  const channels = /^[1LI]/.test(mode) && mode !== "LA" ? 1 : /A$/.test(mode) ? 4 : 3
  return { width, height, image, region: exactRegion(blob, width) ?? ((...box) => drawnRegion(image, channels, ...box)) }
}

/** The values of raw pixels, which the message has. */
function exactRegion({ pixels, mode }, width) {
  const channels = Object.hasOwn(CHANNELS, mode ?? "") ? CHANNELS[mode] : 0
  if (!pixels || !channels) return null
  return () => (x, y) => Array.from(pixels.subarray((y * width + x) * channels, (y * width + x + 1) * channels), String)
}

/** The values of pixels as the browser decodes them: 8 bits for each channel. */
function drawnRegion(image, channels, left, top, width, height) {
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })
  context.drawImage(image, left, top, width, height, 0, 0, width, height)
  const { data } = context.getImageData(0, 0, width, height)
  return (x, y) => {
    const from = ((y - top) * width + x - left) * 4
    return Array.from(data.subarray(from, from + channels), String)
  }
}

/** Show in `output` the value under the pointer, while it is over `node`. `load` gives the source. */
export function probe(node, load, output) {
  let source = null
  node.addEventListener("pointerenter", async () => (source = await Promise.resolve(load()).catch(() => null)))
  node.addEventListener("pointermove", ({ clientX, clientY }) => {
    if (!source) return
    const box = node.getBoundingClientRect()
    const [x, y] = [((clientX - box.left) / box.width) * source.width, ((clientY - box.top) / box.height) * source.height].map(Math.floor)
    if (x >= 0 && y >= 0 && x < source.width && y < source.height) output.textContent = pixelText(source, x, y)
  })
  node.addEventListener("pointerleave", () => {
    source = null
    output.textContent = ""
  })
}

/** A button that opens the zoom at a result, and at those of the sent pictures that have its size. */
export function zoomButton(load, { width, height }, pictures) {
  const sent = pictures.filter((each) => each.width === width && each.height === height)
    .map(({ name, blob }) => ({ name: shown(name, 30), load: () => sourceOf(blob) }))
  return iconButton("zoom", "Zoom", () => openZoom([...sent, { name: "result", load }]))
}

/** A picture with its size and mode; its `ready` is a promise that it can be seen. */
export function pictureView(blob, { pictures = [] }) {
  const facts = h("span", null, `${blob.type}, ${sizeOf(blob.size)}`)
  const pixel = h("span", { class: "pixel" })
  const image = h("img", { class: "picture", alt: "picture" })
  const stage = h("div", null, image)
  const tools = h("div", { class: "tools" }, iconButton("save", "Save", () => save(nameOf(blob), blob)))
  image.onload = async () => {
    URL.revokeObjectURL(image.src)
    image.onload = null
    const size = { width: image.naturalWidth, height: image.naturalHeight }
    image.alt = `picture, ${size.width} by ${size.height}`
    stage.replaceChildren(...comparison(image, size, pictures, "Side by side"))
    probe(image, () => sourceOf(blob), pixel)
    tools.prepend(zoomButton(() => sourceOf(blob), size, pictures))
    facts.textContent = `${size.width} × ${size.height} · ${await modeOf(blob)} · ${blob.type} · ${sizeOf(blob.size)}`
  }
  image.onerror = () => (facts.textContent += ": this browser cannot show it")
  const ready = asStored(blob).then((stored) => {
    image.src = URL.createObjectURL(stored)
    return image.decode().catch(() => null)
  })
  return Object.assign(h("figure", null, stage, h("figcaption", null, facts, pixel), tools), { ready })
}

const nameOf = (blob) => `picture.${(blob.type.split("/")[1] ?? "bin").replace(/\W.*/, "").replace("jpeg", "jpg")}`

/** The pictures among arguments and in lists of them, with their sizes, as `env.pictures`. */
export async function picturesIn(params) {
  const given = Object.entries(params).flatMap(([name, value]) =>
    Array.isArray(value) ? value.slice(0, MOST_SENT).map((each, at) => [`${name}[${at}]`, each]) : [[name, value]])
  const found = []
  for (const [name, blob] of given) {
    if (!(blob instanceof Blob) || !blob.type.startsWith("image/") || found.length >= MOST_SENT) continue
    const stored = await asStored(blob)
    const bitmap = await createImageBitmap(stored).catch(() => null)
    if (bitmap) found.push({ name, blob: stored, width: bitmap.width, height: bitmap.height })
    bitmap?.close()
  }
  return found
}
