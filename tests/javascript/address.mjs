// A host and a port as an address: the WebSocket of that server, or HTTP where there is no WebSocket.
import { assert, Client, test } from "./common.mjs"

const [address] = process.argv.slice(2)

test("a host and a port are an address", async () => {
  const client = new Client(address)
  assert.equal(client.url.href, `${globalThis.WebSocket ? "ws" : "http"}://${address}/`)
  assert.equal(await client.call("add", [1, 2]), 3)
  client.close()
})

test("what is an address, and what is none", () => {
  class WebSocket {}
  const hrefs = ["localhost:8545", "[::1]:8545", "gpu-1.lab:8545/rpc?a=1", "http:8545"].map((url) => new Client(url, { WebSocket }).url.href)
  assert.deepEqual(hrefs, ["ws://localhost:8545/", "ws://[::1]:8545/", "ws://gpu-1.lab:8545/rpc?a=1", "ws://http:8545/"])
  assert.equal(new Client("https://a/b").url.href, "https://a/b")
  for (const url of ["tcp://a:1", "a:b", "localhost:99999"]) assert.throws(() => new Client(url, { WebSocket }), { message: /HOST:PORT|Invalid URL/ })
})
