// What the programs of this folder share.
import assert from "node:assert/strict"
import { after, test } from "node:test"
import WebSocketOfPackage from "ws"
import { Client } from "../../rpcstream/web/client.js"

export { assert, test }
export * from "../../rpcstream/web/client.js"

/** The sockets that were made, the newest last. */
export const sockets = []
const Base = globalThis.WebSocket ?? WebSocketOfPackage

class Recorded extends Base {
  constructor(url) {
    super(url)
    sockets.push(this)
  }
}

const clients = []
after(() => clients.forEach((client) => client.close())) // else a test that fails would keep the program alive

/** A client that keeps the messages on the wire. */
export function connect(url, options = {}) {
  const messages = []
  const client = new Client(url, { WebSocket: Recorded, onMessage: (message) => messages.push(message), ...options })
  clients.push(client)
  return { client, messages }
}

/** Wait until this is true. */
export async function until(isTrue) {
  for (let i = 0; i < 1000; i++) {
    if (await isTrue()) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error(`this never came: ${isTrue}`)
}

export async function* upTo(n) {
  for (let i = 0; i < n; i++) yield i
}
