// Pictures: their size and mode, and masks that lie over them.

import { button, h, save, sizeOf } from "./dom.js"

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

/** A picture with its size and mode. */
export function pictureView(blob, env) {
  const caption = h("figcaption", null, `${blob.type}, ${sizeOf(blob.size)}`)
  const image = h("img", { class: "picture", alt: "picture", src: URL.createObjectURL(blob) })
  const stage = h("div")
  stage.append(image)
  image.onload = async () => {
    URL.revokeObjectURL(image.src)
    const [width, height] = [image.naturalWidth, image.naturalHeight]
    caption.textContent = `${width} × ${height} · ${await modeOf(blob)} · ${blob.type} · ${sizeOf(blob.size)}`
    image.alt = `picture, ${width} by ${height}`
    stage.replaceChildren(...overlay(image, width, height, env))
  }
  image.onerror = () => (caption.textContent += ": this browser cannot show it")
  const name = `picture.${(blob.type.split("/")[1] ?? "bin").replace(/\W.*/, "")}`
  return h("figure", null, stage, caption, h("div", { class: "tools" }, button("Save", () => save(name, blob))))
}

/** The nodes that show `top`, and, where a picture of the call has its size, let it lie over that one (`onOver`). */
export function overlay(top, width, height, env, onOver) {
  const stack = h("div", { class: "stack" }, top)
  const below = (env.pictures ?? []).find((each) => each.width === width && each.height === height)
  if (!below) return [stack]
  const image = h("img", { class: "below", onload: () => URL.revokeObjectURL(image.src), alt: `the picture ${below.name}`, src: URL.createObjectURL(below.blob) })
  const strength = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: "0.5", disabled: true, oninput: () => {
    top.style.opacity = strength.value
  } })
  const toggle = h("input", { type: "checkbox", onchange: () => {
    strength.disabled = !toggle.checked
    top.style.opacity = toggle.checked ? strength.value : 1
    onOver?.(toggle.checked)
    if (toggle.checked) stack.prepend(image)
    else image.remove()
  } })
  const label = h("label", null, toggle, ` Over the picture “${below.name}” `)
  return [stack, h("div", { class: "tools" }, label, h("label", null, "Opacity ", strength))]
}

/** The pictures among arguments, with their sizes, as `env.pictures`. */
export async function picturesIn(params) {
  const found = []
  for (const [name, blob] of Object.entries(params)) {
    if (!(blob instanceof Blob) || !blob.type.startsWith("image/") || found.length > 8) continue
    const bitmap = await createImageBitmap(blob).catch(() => null)
    if (bitmap) found.push({ name, blob, width: bitmap.width, height: bitmap.height })
    bitmap?.close()
  }
  return found
}
