// The dialog for the token of the server.

import { button, h, shown, uid } from "./dom.js"

/** A dialog that asks for a token; `use` gets it, or "" to go on without one. */
export function tokenDialog(host, use) {
  const [id, title] = [uid(), uid()]
  const reason = h("p", { role: "alert" })
  const input = h("input", { id, type: "password", autocomplete: "off", spellcheck: "false" })
  const visible = h("input", { type: "checkbox", onchange: () => (input.type = visible.checked ? "text" : "password") })
  const forget = button("Forget it", () => dialog.close("forget"))
  const dialog = h("dialog", { class: "token", "aria-labelledby": title, onclose: () => {
    if (dialog.returnValue === "use") use(input.value.trim())
    if (dialog.returnValue === "forget") use("")
    input.value = dialog.returnValue = ""
  } }, h("form", { method: "dialog" }, h("h2", { id: title }, "Token"),
    h("p", null, "A token tells the server who you are, and so which methods you may call. Ask the person who runs the server for it."), reason,
    h("label", { for: id }, "Token of this server"), input, h("label", null, visible, " Show the token"),
    h("p", { class: "note" }, `This page sends the token to ${shown(host, 80)} only. It is kept in this tab and forgotten when the tab is closed.`),
    h("div", { class: "tools" }, h("button", { class: "main", value: "use" }, "Use it"), h("button", { value: "", formnovalidate: true }, "Cancel"), forget)))
  return { node: dialog, ask(text, token) {
    reason.textContent = shown(text, 200)
    reason.className = token ? "error" : "note" // without a token, nothing has failed yet
    input.value = token
    forget.hidden = !token
    if (!dialog.open) dialog.showModal()
    input.focus()
  } }
}
