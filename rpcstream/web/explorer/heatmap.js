// Layers of arrays as pictures, with one pixel of the canvas for each item, so that they are exact; the style sheet
// makes them larger. One number for an item becomes a colour of a scale; three or four are red, green, blue and alpha.

import { short } from "./chart.js"
import { h } from "./dom.js"

const MOST_PIXELS = 4096 * 4096
// Colours from the least to the greatest value, between which is interpolated; NaN is transparent.
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]
// Of classes, by their number: masks of segments and of instances.
const CLASSES = [[0, 0, 0], [230, 85, 13], [49, 130, 189], [49, 163, 84], [197, 27, 138], [255, 200, 0], [117, 107, 177], [0, 170, 170], [222, 45, 38], [166, 86, 40], [140, 200, 60], [120, 120, 120]]

/** Write the colour of each number to `pixels`, from place `to` on. */
function colourScale({ least, greatest }) {
  const span = greatest - least || 1
  return (value, pixels, to) => {
    const place = Math.min(1, Math.max(0, (value - least) / span)) * (STOPS.length - 1)
    const stop = Math.min(STOPS.length - 2, Math.floor(place)) || 0
    for (let channel = 0; channel < 3; channel++) {
      const from = STOPS[stop][channel]
      pixels[to + channel] = Math.floor(from + (STOPS[stop + 1][channel] - from) * (place - stop) + 0.5)
    }
  }
}

const classColours = (value, pixels, to) => pixels.set(CLASSES[value % CLASSES.length], to)
const maskColours = (value, pixels, to) => pixels.fill(value ? 255 : 0, to, to + 3)

/** Whether integers are few enough to be classes, each with a colour of its own. */
export const areClasses = (dtype, { least, greatest }) => /[iu]\d$/.test(dtype) && least >= 0 && greatest > 1 && greatest < CLASSES.length

/**
 * Work for `inSlices`: the ImageData of a layer, `{ data, height, width, channels }`. `colours` are "scale",
 * "classes" or "mask"; where the layer lies over a picture (`isOver`), zeros are transparent.
 */
export function* paint({ data, height, width, channels }, range, colours, isOver) {
  const step = Math.max(1, Math.ceil(Math.sqrt((height * width) / MOST_PIXELS)))
  const image = new ImageData(Math.ceil(width / step), Math.ceil(height / step))
  const pixels = image.data
  const write = colours === "scale" ? colourScale(range) : colours === "mask" && !isOver ? maskColours : classColours
  const factor = data.constructor.name.startsWith("Float") && range.greatest <= 1 ? 255 : 1
  let to = 0
  for (let row = 0; row < height; row += step) {
    for (let column = 0; column < width; column += step, to += 4) {
      const at = (row * width + column) * channels
      if (channels > 1) {
        for (let channel = 0; channel < 3; channel++) pixels[to + channel] = Number(data[at + channel]) * factor
        pixels[to + 3] = channels === 4 ? Number(data[at + 3]) * factor : 255
        continue
      }
      const value = Number(data[at])
      write(value, pixels, to)
      pixels[to + 3] = Number.isNaN(value) || (isOver && !value) ? 0 : 255
    }
    yield
  }
  return image
}

/** Values of a layer for the zoom. */
export function regionOf({ data, width, channels }) {
  return () => (x, y) => Array.from({ length: channels }, (_, channel) => short(data[(y * width + x) * channels + channel]))
}

/** The scale of a heat map: its colours with the values that they mean. */
export function scaleBar({ least, greatest }) {
  const marks = [least, (least + greatest) / 2, greatest].map((each) => h("span", { class: "value" }, short(each)))
  return h("div", { class: "scale", role: "img", "aria-label": `scale from ${short(least)} to ${short(greatest)}` }, h("div", { class: "scale-bar" }), h("div", { class: "scale-marks" }, marks))
}

/** The colours of classes that occur. */
export function classLegend(counts) {
  const entries = [...counts].map((each, at) => [at, each]).filter(([, each]) => each)
  return h("div", { class: "legend" }, entries.map(([at, each]) => {
    const mark = h("span", { class: "mark" })
    mark.style.background = `rgb(${CLASSES[at].join(" ")})`
    return h("span", null, mark, `${at} · ${each.toLocaleString()}`)
  }))
}
