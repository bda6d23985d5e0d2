// Pictures that are given: from the camera and the clipboard, as thumbnails, and enlarged.

import { button, h, icon, iconButton, shown, sizeOf } from "./dom.js"
import { asStored, measured, modeText, sourceOf } from "./pictures.js"
import { openZoom } from "./zoom.js"

/** The size and mode of a picture, in words. */
export async function factsOf(file) {
  const { blob, width, height } = await measured(file)
  const size = width && `${width} × ${height}`
  const turned = blob !== file && "the method gets it as shown, not turned by EXIF"
  return [size, await modeText(file), sizeOf(file.size), turned].filter(Boolean).join(" · ")
}

/** Tools of a place for pictures; each is a function of what takes files and of the place's status. */
export const picturePlaceTools = (room) => [(take, state) => clipboard(take, state), (take, state) => camera(take, state, room)]

function clipboard(take, state) {
  return iconButton("paste", "", async () => {
    try {
      const items = await navigator.clipboard.read()
      const found = items.flatMap((item) => item.types.filter((type) => type.startsWith("image/")).map((type) => [item, type]))
      if (!found.length) throw Error("it holds no picture")
      const [item, type] = found[0]
      take([new File([await item.getType(type)], `pasted.${type.split("/")[1]}`, { type })])
    } catch (error) {
      state.textContent = `Nothing pasted: ${shown(error.message, 100)}. Copy a picture first, and allow this page to read the clipboard.`
    }
  }, { "aria-label": "Paste a picture", title: "Paste a picture from the clipboard" })
}

function camera(take, state, room) {
  const video = h("video", { "aria-label": "camera", playsinline: "", muted: true })
  let stream = null
  const stop = () => {
    stream?.getTracks().forEach((track) => track.stop())
    stream = null
    room.replaceChildren()
  }
  const shoot = button("Take the picture", () => {
    const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight })
    canvas.getContext("2d").drawImage(video, 0, 0)
    stop()
    canvas.toBlob((blob) => take([new File([blob], "camera.png", { type: "image/png" })]))
  })
  return iconButton("camera", "", async () => {
    if (stream) return stop()
    try {
      if (!navigator.mediaDevices) throw Error("a camera needs https or localhost")
      stream = await navigator.mediaDevices.getUserMedia({ video: true })
      video.srcObject = stream
      room.replaceChildren(video, h("div", { class: "tools" }, shoot, button("Cancel", stop, { class: "quiet" })))
      await video.play()
    } catch (error) {
      stop()
      state.textContent = `No camera: ${shown(error.message, 100)}`
    }
  }, { "aria-label": "Camera", title: "Take a picture with the camera" })
}

/** A small picture that opens a large one; with `onRemove` it can be removed. */
export async function thumbnail(file, onRemove) {
  const name = shown(file.name ?? "the picture", 60)
  const image = h("img", { class: "picture", alt: name, src: URL.createObjectURL(await asStored(file)) })
  const node = h("figure", { class: "thumb" },
    h("button", { type: "button", class: "quiet", title: `Enlarge ${name}`, "aria-label": `Enlarge ${name}`, onclick: () => openZoom([{ name, load: () => sourceOf(file) }]) }, image, icon("zoom")),
    onRemove && iconButton("close", "", () => onRemove(file, node), { "aria-label": `Remove ${name}`, title: "Remove" }))
  await image.decode().catch(() => node.replaceChildren(h("p", { class: "note" }, `${name}: this browser cannot show it`)))
  URL.revokeObjectURL(image.src)
  return node
}
