// Bytes and texts: what kind of file they are, sound, and downloads.

import { button, h, iconButton, longText, save, sizeOf } from "./dom.js"
import { copyText } from "./markup.js"

const MOST_BYTES = 512 // that are shown
// The first bytes of files, "." for any, and what they are.
const KINDS = [
  ["RIFF....WAVE", "audio/wav", "wav"], ["ID3", "audio/mpeg", "mp3"], ["\xff\xfb", "audio/mpeg", "mp3"], ["OggS", "audio/ogg", "ogg"], ["fLaC", "audio/flac", "flac"],
  ["\x89PNG", "image/png", "png"], ["\xff\xd8\xff", "image/jpeg", "jpg"], ["GIF8", "image/gif", "gif"], ["RIFF....WEBP", "image/webp", "webp"],
  ["%PDF-", "application/pdf", "pdf"], ["PK\x03\x04", "application/zip", "zip"], ["\x1f\x8b", "application/gzip", "gz"], ["\x93NUMPY", "application/octet-stream", "npy"],
]

/** The type of a file and the end of its name, by its first bytes. */
export function kindOf(bytes) {
  const isAt = (head) => [...head].every((char, at) => char === "." || char.charCodeAt() === bytes[at])
  const [, type, extension] = KINDS.find(([head]) => isAt(head)) ?? [null, "application/octet-stream", "bin"]
  return { type, extension }
}

/** Bytes as they are in hexadecimal digits and as ASCII, 16 in a line. */
function dump(bytes) {
  const lines = []
  for (let at = 0; at < bytes.length; at += 16) {
    const line = [...bytes.subarray(at, at + 16)]
    const digits = line.map((each) => each.toString(16).padStart(2, "0")).join(" ")
    lines.push(`${at.toString(16).padStart(4, "0")}  ${digits.padEnd(48)} ${line.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : "·")).join("")}`)
  }
  return lines.join("\n")
}

/** A node for bytes or a Blob: a player for sound, the first bytes of others, and a download. */
export function bytesView(value) {
  const blob = value instanceof Blob ? value : new Blob([value])
  const caption = h("figcaption", null, sizeOf(blob.size))
  const place = h("div")
  const tools = h("div", { class: "tools" })
  blob.slice(0, MOST_BYTES).arrayBuffer().then((buffer) => {
    const head = new Uint8Array(buffer)
    const { type, extension } = kindOf(head)
    const file = new Blob([blob], { type })
    tools.append(iconButton("save", `Save .${extension}`, () => save(`result.${extension}`, file)))
    if (type !== "application/octet-stream") caption.prepend(`${type} · `)
    place.append(type.startsWith("audio/") ? h("audio", { controls: true, src: URL.createObjectURL(file) })
      : h("pre", { class: "dump", tabindex: "0" }, dump(head), blob.size > MOST_BYTES ? "\n…" : ""))
  })
  return h("figure", null, place, caption, tools)
}

/** A text, with its lines wrapped or not, to be copied and saved. */
export function textView(text) {
  const node = longText(text, "pre")
  const pre = node.matches("pre") ? node : node.querySelector("pre")
  const said = h("span", { class: "note", role: "status" })
  const wrap = h("input", { type: "checkbox", checked: true, onchange: () => pre.classList.toggle("unwrapped", !wrap.checked) })
  pre.tabIndex = 0
  return h("div", null, node, h("div", { class: "tools" }, h("span", { class: "note" }, `${text.length.toLocaleString()} characters`), h("label", null, wrap, " Wrap lines"),
    button("Copy", () => copyText(text, said), { class: "quiet" }), iconButton("save", "Save .txt", () => save("result.txt", new Blob([text], { type: "text/plain" }))), said))
}
