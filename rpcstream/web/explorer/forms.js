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
  const rest = (kind) => params.find((each) => each.rest === kind)?.name
  return {
    node: editor.node,
    set: editor.set,
    /** The values by name. */
    values: () => editor.get(),
    /** The params as they are now, with examples for what is missing, for a program that shows the call. */
    draft() {
      const made = editor.draft()
      const given = Object.assign(Object.create(null), made, made[rest("named")])
      delete given[rest("named")]
      const items = given[rest("positional")]
      delete given[rest("positional")]
      if (!items?.length) return given
      return [...params.slice(0, params.findIndex((each) => each.rest === "positional")).map((each) => given[each.name] ?? null), ...items]
    },
    /** The params to send, an object, or an array where there are further positional ones. */
    params(values) {
      const made = Object.assign(Object.create(null), values)
      const [named, positional] = [rest("named"), rest("positional")]
      if (named !== undefined) {
        const more = made[named]
        delete made[named]
        Object.assign(made, more)
      }
      const items = made[positional]
      if (positional !== undefined) delete made[positional]
      if (!items?.length) return made
      const before = params.slice(0, params.findIndex((each) => each.rest === "positional"))
      const gap = before.find((each) => !Object.hasOwn(made, each.name))
      if (gap) editor.fail([gap.name], "it stands before further values, so it must be given")
      if (gap) throw new Invalid("a value is missing")
      if (Object.keys(made).length > before.length) throw new Invalid("further values go by position, so none can go by name")
      return [...before.map((each) => made[each.name]), ...items]
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
