// The bar of a call that reports its progress, with the rate and the time left.

import { h, jsonText, shown } from "./dom.js"
import { short } from "./chart.js"

const isPart = (part) => part >= 0 && part <= 1

/** Seconds in words: "8 s", "3 min", "2 h". */
export const duration = (seconds) =>
  seconds < 100 ? `${Math.ceil(seconds)} s` : seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`

/** The done part of all (0 to 1, or NaN) and its units (undefined where the value is the part). */
function measured(value) {
  if (typeof value === "number") return { part: value }
  const [done, total] = (Array.isArray(value) ? value : [value?.done, value?.total]).map(Number)
  return { part: done / total, done, total }
}

/** The rate and the time left, from two reports: `seconds` lie between them. "" where they say nothing. */
function estimate(first, last, seconds) {
  if (!(last.part > first.part && isPart(last.part) && seconds > 0)) return ""
  const left = `${duration((1 - last.part) * seconds / (last.part - first.part))} left`
  return last.done === undefined ? left : `${short((last.done - first.done) / seconds)}/s, ${left}`
}

/** What a report says: its message, "3 of 10", or its JSON. */
function saying(value, { part, done, total }) {
  if (typeof value?.message === "string") return shown(value.message, 200)
  return done === undefined || !isPart(part) ? jsonText(value, 0, 200) : `${done} of ${total}`
}

/** `nodes` are hidden until the first `report(value)`. */
export function progressBar() {
  const bar = h("progress", { hidden: true, "aria-label": "progress" })
  const said = h("span", { class: "note" })
  const left = h("span", { class: "note left" })
  let first = null
  return {
    nodes: [bar, left, said],
    report(value) {
      const now = { ...measured(value), time: performance.now() }
      first ??= now
      bar.hidden = false
      if (isPart(now.part)) bar.value = now.part
      else bar.removeAttribute("value")
      left.textContent = estimate(first, now, (now.time - first.time) / 1000)
      said.textContent = saying(value, now)
    },
    end() {
      bar.hidden = true
      left.textContent = ""
    },
  }
}
