// The form of a method.

import { shelfFor } from "./draw.js"
import { objectEditor } from "./editors.js"
import { Invalid, isObject, listOf } from "./schemas.js"

/** The form of a method: its parameters, of which further ones (`x-rest`) are lists or entries. */
export function methodForm(method, schemas) {
  const params = listOf(method.params).filter(isObject).map((each) => ({
    name: String(each.name ?? ""), schema: restSchema(each), isRequired: Boolean(each.required), description: each.description, rest: each["x-rest"],
  }))
  const editor = objectEditor(params, { schemas, shelf: shelfFor(params, schemas) })
  const nameOf = (kind) => params.find((each) => each.rest === kind)?.name ?? Symbol()
  const before = params.slice(0, params.findIndex((each) => each.rest === "positional"))

  /** Values by name as params: an object, or an array where there are further positional ones. `inGap` is called for what is missing before them. */
  function arranged({ [nameOf("named")]: more, [nameOf("positional")]: items, ...others }, inGap) {
    const made = { ...others, ...more }
    if (!items?.length) return [made]
    return [[...before.map(({ name }) => (Object.hasOwn(made, name) ? made[name] : inGap(name))), ...items], made]
  }
  return {
    node: editor.node,
    set: editor.set,
    /** The values by name. */
    values: () => editor.get(),
    /** The params as they are now, with examples for what is missing, for a program that shows the call. */
    draft: () => arranged(editor.draft(), () => null)[0],
    /** The params to send. */
    params(values) {
      const [made, named = {}] = arranged(values, (name) => {
        editor.fail([name], "it stands before further values, so it must be given")
        throw new Invalid("a value is missing")
      })
      if (Object.keys(named).length > before.length) throw new Invalid("further values go by position, so none can go by name")
      return made
    },
    /** Show an error at the field that its path names; false if there is none. */
    fail(path, text) {
      const at = params.findIndex((each) => each.rest === "positional")
      if (typeof path[0] === "number")
        path = at >= 0 && path[0] >= at ? [params[at].name, path[0] - at, ...path.slice(1)] : [params[path[0]]?.name, ...path.slice(1)]
      return path.length > 0 && Boolean(editor.fail(path, text))
    },
  }
}

function restSchema({ schema, "x-rest": rest }) {
  if (rest === "positional") return { type: "array", items: schema ?? {} }
  return rest === "named" ? { type: "object", additionalProperties: schema ?? {} } : schema ?? {}
}
