// A server that is stopped and started: "stop" and "start" on standard output, "done" comes back. A failure is status 1.
import { createInterface } from "node:readline"
import { assert, connect, until } from "./common.mjs"

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const said = async () => (await lines.next()).value
const want = async (what) => {
  process.stdout.write(`${what}\n`)
  assert.equal(await said(), "done")
}

const states = []
const { client } = connect(await said(), { reconnect: { first: 20, longest: 100 }, onState: (state) => states.push(state) })
const events = client.subscribe("news.*")
await events.begin()
const waiting = client.call("get_run") // declared idempotent
assert.equal(await waiting, 1)

// A call that the stopping server lets finish, and one while there is no server.
const last = client.call("wait", [0.2])
await client.call("add", [1, 1]) // so the server has read the call before
const stopping = want("stop")
assert.equal(await last, null)
await stopping
await until(() => client.state === "connecting")
const late = client.call("add", [2, 3])
const hurried = client.call("add", [2, 3], { timeout: 50 })
await assert.rejects(hurried, { name: "CallTimeout" })
await want("start")
assert.equal(await late, 5)
await until(() => events.reconnects === 1)
assert.equal(await client.call("say", ["news.a", "again"]), 1)
assert.deepEqual((await events.next()).value, { topic: "news.a", value: "again" })
assert.equal(states.filter((state) => state === "open").length, 2)
client.close()
await want("stop")
process.exit(0)
