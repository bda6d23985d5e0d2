// A result next to, under, or over a picture that was sent.

import { h, segments, shown } from "./dom.js"

const HANDLE = 28 // pixels, the width of the slider's handle
const fits = (one, other) => Math.abs((one.width * other.height) / (one.height * other.width) - 1) < 0.01

/** A sent picture as an element, which covers the result if `isBelow`. */
function sentImage({ blob, name }, isBelow) {
  const src = URL.createObjectURL(blob)
  return h("img", { class: isBelow ? "below" : "picture", alt: `the picture ${shown(name, 60)}`, src, onload: () => URL.revokeObjectURL(src) })
}

function titled(node, text) {
  return h("figure", null, node, h("figcaption", null, text))
}

/** The sent picture on the left of a handle, the result on its right. */
function wipe(top, sent) {
  const range = h("input", { type: "range", class: "wipe", min: 0, max: 1, step: 0.005, value: "0.5", "aria-label": "Position of the divider", oninput: () => cut() })
  const cut = () => (top.style.clipPath = `inset(0 0 0 calc(${HANDLE / 2}px + (100% - ${HANDLE}px) * ${range.value}))`)
  cut()
  const label = (side, text) => h("span", { class: `side ${side}` }, text)
  return h("div", { class: "stack" }, sentImage(sent, true), top, label("left", shown(sent.name, 30)), label("right", "result"), range)
}

/** The result over the sent picture, with its opacity. */
function overlay(top, sent) {
  const opacity = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: "0.5", oninput: () => (top.style.opacity = opacity.value) })
  top.style.opacity = opacity.value
  return [h("div", { class: "stack" }, sentImage(sent, true), top), h("div", { class: "tools" }, h("label", null, "Opacity ", opacity))]
}

const MODES = {
  "Result": (top) => [h("div", { class: "stack" }, top)],
  "Side by side": (top, sent) => [h("div", { class: "sides" }, titled(sentImage(sent), shown(sent.name, 60)), titled(h("div", { class: "stack" }, top), "result"))],
  "Slider": (top, sent) => [wipe(top, sent)],
  "Overlay": overlay,
}

/**
 * The nodes that show `top`, an image or a canvas of `size`, and compare it with one of the pictures that were sent.
 * `first` is the way of comparing to begin with, if it is possible; `onMode` is told which way was chosen.
 */
export function comparison(top, size, pictures, first, onMode) {
  if (!pictures.length) return MODES.Result(top)
  const stage = h("div", { class: "compare" })
  const ways = h("div", { class: "tools" })
  let mode = first
  let sent = pictures.find((each) => fits(each, size)) ?? pictures[0]
  function show() {
    const names = Object.keys(MODES).filter((each) => fits(sent, size) || !["Slider", "Overlay"].includes(each))
    if (!names.includes(mode)) mode = "Result"
    Object.assign(top.style, { clipPath: "", opacity: "" })
    onMode?.(mode)
    stage.replaceChildren(...MODES[mode](top, sent))
    ways.replaceChildren(segments("Compare", names, mode, (name) => {
      mode = name
      show()
      ways.querySelector("input:checked")?.focus()
    }), ...(pictures.length > 1 ? [choice()] : []))
  }
  function choice() {
    const select = h("select", { "aria-label": "Picture to compare with", onchange: () => {
      sent = pictures[select.selectedIndex]
      show()
      ways.querySelector("select")?.focus()
    } }, pictures.map(({ name }) => h("option", null, shown(name, 60))))
    select.selectedIndex = pictures.indexOf(sent)
    return select
  }
  show()
  return [ways, stage]
}
