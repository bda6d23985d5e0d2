// The banner of a lost connection: it says when the page tries to connect again.

import { h } from "./dom.js"

const words = (seconds) => (seconds > 1 ? `Next attempt in ${seconds} seconds.` : "Connecting again.")

/** A banner above the page; the seconds are not read aloud because they change. */
export function lostBanner() {
  const when = h("span", { "aria-hidden": "true" })
  const node = h("section", { id: "lost", role: "alert", hidden: true },
    h("span", null, "The connection to the server is lost."), when)
  let timer = 0
  function count(until) {
    clearTimeout(timer)
    const left = Math.ceil((until - performance.now()) / 1000)
    when.textContent = words(left)
    if (left > 1) timer = setTimeout(count, 1000, until)
  }
  return {
    node,
    /** An attempt failed, and the next one begins after `wait` milliseconds. */
    waits(wait) {
      node.hidden = false
      count(performance.now() + wait)
    },
    hide() {
      clearTimeout(timer)
      node.hidden = true
    },
  }
}
