// Pictures: their size, their mode and the values of their pixels.

import { inSlices } from "../rpcstream.js"
import { comparison } from "./compare.js"
import { fileName, h, iconButton, save, shown, sizeOf } from "./dom.js"
import { paint } from "./heatmap.js"
import { openZoom, pixelText } from "./zoom.js"

const MOST_SENT = 8
const CHANNELS = { L: 1, LA: 2, RGB: 3, RGBA: 4 }
const RAW_MODES = ["I;16", ...Object.keys(CHANNELS)]
const STRIP = 32_768 // pixels that are drawn at once
const LARGEST = 64_000_000 // pixels, of which a canvas takes four bytes each
const DISPLAYED = 1600 // pixels along the longer side of a picture that is not enlarged

/** Whether a value can be shown as a picture: an image file, or raw pixels of a mode that is known here. */
export const isPicture = (value) => value instanceof Blob && (value.type.startsWith("image/") || (Boolean(value.pixels) && RAW_MODES.includes(value.mode)))

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

/** A picture as it is stored, as `blob`, and its size; without a size if this browser cannot read it. */
export async function measured(file) {
  const blob = await asStored(file)
  const bitmap = await createImageBitmap(blob).catch(() => null)
  const { width, height } = bitmap ?? {}
  bitmap?.close()
  return { blob, width, height }
}

/** The pixels of the last picture that was looked at. Only one is kept: 12 megapixels take 48 MB. */
let latest = {}

/** A picture for `openZoom`. */
export function sourceOf(blob) {
  if (latest.blob !== blob) latest = { blob, source: load(blob) }
  return latest.source
}

async function load(blob) {
  const image = await (blob.pixels ? drawRaw(blob) : createImageBitmap(await asStored(blob), { premultiplyAlpha: "none", colorSpaceConversion: "none" }))
  const mode = await modeOf(blob)
  const { width, height } = image
  const channels = /^[1LI]/.test(mode) && mode !== "LA" ? 1 : /A$/.test(mode) ? 4 : 3
  return { width, height, image, region: exactRegion(blob, width) ?? ((...box) => drawnRegion(image, channels, ...box)) }
}

/** Raw pixels as a canvas. The page answers to its user first, because taking a large message has kept it from that. */
async function drawRaw(blob) {
  await new Promise((resume) => setTimeout(resume))
  return inSlices(paintRaw(blob))
}

/** Work for `inSlices`: raw pixels as a canvas, drawn strip by strip. */
function* paintRaw({ pixels, mode, width, height }) {
  if (width * height > LARGEST) throw Error("the picture is too large")
  const canvas = new OffscreenCanvas(width, height)
  const context = canvas.getContext("2d", { willReadFrequently: true })
  const copy = mode === "I;16" ? copyHighBytes : copyChannels
  const rows = Math.max(1, Math.floor(STRIP / width))
  for (let top = 0; top < height; top += rows) {
    const strip = new ImageData(width, Math.min(rows, height - top))
    copy(pixels, strip.data, top * width, mode)
    context.putImageData(strip, 0, top)
    yield
  }
  return canvas
}

/** Write pixels as red, green, blue and alpha, from the pixel with the number `first` on. */
function copyChannels(pixels, data, first, mode) {
  const channels = CHANNELS[mode]
  const [green, blue] = channels > 2 ? [1, 2] : [0, 0]
  const alpha = channels % 2 ? -1 : channels - 1
  for (let to = 0, from = first * channels; to < data.length; to += 4, from += channels) {
    data[to] = pixels[from]
    data[to + 1] = pixels[from + green]
    data[to + 2] = pixels[from + blue]
    data[to + 3] = alpha < 0 ? 255 : pixels[from + alpha]
  }
}

function copyHighBytes(pixels, data, first) {
  for (let to = 0, from = 2 * first + 1; to < data.length; to += 4, from += 2) {
    data.fill(pixels[from], to, to + 3)
    data[to + 3] = 255
  }
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

/** The picture of a file as an element; the promise gives its size when it is decoded. */
function fileImage(blob) {
  const image = h("img", { class: "picture", alt: "picture" })
  const loaded = asStored(blob).then(async (stored) => {
    image.src = URL.createObjectURL(stored)
    await image.decode().finally(() => URL.revokeObjectURL(image.src))
    return { width: image.naturalWidth, height: image.naturalHeight }
  })
  return [image, loaded, (text) => (image.alt = text)]
}

/** Raw pixels as an element, as large as they are displayed; the promise gives the size of the picture. */
function rawImage(blob) {
  const canvas = h("canvas", { class: "picture", role: "img", "aria-label": "picture", width: 0, height: 0 })
  const loaded = sourceOf(blob).then(({ width, height, image }) => {
    const part = Math.min(1, DISPLAYED / Math.max(width, height))
    Object.assign(canvas, { width: Math.ceil(width * part), height: Math.ceil(height * part) })
    const context = canvas.getContext("2d", { willReadFrequently: true })
    context.imageSmoothingQuality = "high"
    context.drawImage(image, 0, 0, canvas.width, canvas.height)
    return { width, height }
  })
  return [canvas, loaded, (text) => canvas.setAttribute("aria-label", text)]
}

/**
 * A picture of black and white pixels only, as a mask: its canvas, and a function that draws it, in colour and
 * transparent over a picture if `isOver`. null for other pictures.
 */
async function maskOf(blob, { width, height }) {
  if (!["1", "L"].includes(await modeOf(blob)) || width * height > LARGEST / 4) return null
  const { image } = await sourceOf(blob)
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })
  context.drawImage(image, 0, 0)
  const data = context.getImageData(0, 0, width, height).data.filter((_, at) => at % 4 === 0)
  if (data.some((each) => each % 255)) return null
  const canvas = h("canvas", { class: "picture", role: "img", "aria-label": `mask, ${width} by ${height}` })
  return { canvas, async draw(isOver) {
    const drawn = await inSlices(paint({ data, width, height, channels: 1 }, {}, "mask", isOver))
    Object.assign(canvas, { width: drawn.width, height: drawn.height })
    canvas.getContext("2d", { willReadFrequently: true }).putImageData(drawn, 0, 0)
  } }
}

const MODES = { 1: "black and white", L: "grey" }
/** The mode of a picture in words; "" where its file does not say. */
export const modeText = async (blob) => modeOf(blob).then((mode) => MODES[mode] ?? mode)

/** A picture with its size and mode; its `ready` is a promise that it can be seen. */
export function pictureView(blob, { pictures = [], name }) {
  const kind = blob.pixels ? "raw pixels" : blob.type
  const facts = h("span", null, `${kind}, ${sizeOf(blob.size)}`)
  const pixel = h("span", { class: "pixel" })
  const [image, loaded, describe] = blob.pixels ? rawImage(blob) : fileImage(blob)
  const stage = h("div", null, image)
  const tools = h("div", { class: "tools" }, iconButton("save", "Save", async () => save(fileName(name ?? "picture", endOf(blob)), blob.pixels ? await blob.toPng() : blob)))
  const ready = loaded.then(async (size) => {
    describe(`picture, ${size.width} by ${size.height}`)
    const mask = pictures.length ? await maskOf(blob, size) : null
    const top = mask?.canvas ?? image
    stage.replaceChildren(...comparison(top, size, pictures, mask ? "Overlay" : "Side by side", (mode) => mask?.draw(mode === "Overlay")))
    probe(top, () => sourceOf(blob), pixel)
    tools.prepend(zoomButton(() => sourceOf(blob), size, pictures))
    facts.textContent = [`${size.width} × ${size.height}`, await modeText(blob), kind, sizeOf(blob.size)].filter(Boolean).join(" · ")
  }, () => (facts.textContent += ": this browser cannot show it"))
  return Object.assign(h("figure", null, stage, h("figcaption", null, facts, pixel), tools), { ready })
}

const endOf = (blob) => (blob.pixels ? "png" : (blob.type.split("/")[1] ?? "bin").replace(/\W.*/, "").replace("jpeg", "jpg"))

/** The pictures among arguments and in lists of them, with their sizes, as `env.pictures`. */
export async function picturesIn(params) {
  const given = Object.entries(params).flatMap(([name, value]) =>
    Array.isArray(value) ? value.slice(0, MOST_SENT).map((each, at) => [`${name}[${at}]`, each]) : [[name, value]])
  const found = []
  for (const [name, blob] of given) {
    if (!(blob instanceof Blob) || !blob.type.startsWith("image/") || found.length >= MOST_SENT) continue
    const facts = await measured(blob)
    if (facts.width) found.push({ name, ...facts })
  }
  return found
}
