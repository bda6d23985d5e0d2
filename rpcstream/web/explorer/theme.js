// The light and the dark theme: the system's, until the reader chooses one.

import { icon } from "./dom.js"

const theme = document.getElementById("theme")

/** Show the page in the theme of this name; without one, in the theme of the system. */
export function paint(name) {
  const isDark = name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches
  if (name) document.documentElement.dataset.theme = name
  theme.replaceChildren(icon(isDark ? "sun" : "moon"))
  theme.title = isDark ? "Light theme" : "Dark theme"
  theme.setAttribute("aria-label", theme.title)
  theme.onclick = () => {
    const next = isDark ? "light" : "dark"
    localStorage.setItem("rpc-theme", next)
    paint(next)
  }
}
