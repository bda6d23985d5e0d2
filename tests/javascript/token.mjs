// A server that asks for a token.
import { assert, connect, ConnectionError, test } from "./common.mjs"

const [address] = process.argv.slice(2)

test("a token, by WebSocket", async () => {
  const { client, messages } = connect(`ws://${address}/`, { token: "correct-horse" })
  assert.equal(await client.call("add", [1, 1]), 2)
  assert.ok(!JSON.stringify(messages).includes("horse"))
  client.close()
  const { client: wrong } = connect(`ws://${address}/`, { token: "wrong", reconnect: true })
  await assert.rejects(wrong.call("add", [1, 1]), { code: -32005 })
  assert.equal(wrong.state, "closed")
  const { client: none } = connect(`ws://${address}/`)
  await assert.rejects(none.call("add", [1, 1]), { code: -32005 })
  none.close()
  const { client: asked } = connect(`ws://${address}/`, { token: async () => "correct-horse" })
  assert.equal(await asked.call("add", [1, 1]), 2)
  asked.close()
})

test("a token, by HTTP", async () => {
  const { client, messages } = connect(`http://${address}/`, { token: () => "correct-horse" })
  assert.equal(await client.call("add", [1, 1]), 2)
  assert.ok(!JSON.stringify(messages).includes("horse"))
  const { client: wrong } = connect(`http://${address}/`, { token: "wrong" })
  await assert.rejects(wrong.call("add", [1, 1]), (error) => error instanceof ConnectionError && error.status === 401)
})
