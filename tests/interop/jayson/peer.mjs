// A client of jayson that does what test_jayson.py says: an order a line, a JSON array on stdin, in the order they come.
// What comes of each is a line on stdout: {"reply": …}, the whole reply or batch of replies (null: there was none), or
// {"raised": …}.
//
//     ["connect", kind, options]        kind: one of jayson's clients ("tcp", "http", "websocket", …)
//     ["call", method, params]
//     ["notify", method, params]
//     ["batch", [[method, params, is a notification], …]]
//     ["sequence", method, n]           n calls one after the other, the number of each as its parameter
//     ["together", method, n]           n calls at once; {"reply": [result, …]} for both
//     ["close"]

import { once } from 'node:events';
import { Agent } from 'node:http';
import { createInterface } from 'node:readline';
import jayson from 'jayson/promise/index.js';

let client = null;
let kind = null;
let agent = null;

const orders = {
  async connect(wanted, options) {
    kind = wanted;
    if (kind === 'http') {
      // One connection while calls come one by one, and more where they come together.
      agent = new Agent({ keepAlive: true });
      options.agent = agent;
    }
    client = jayson.Client[kind](options);
    if (kind === 'websocket') await once(client.ws, 'open');
    return null;
  },
  call: (method, params) => client.request(method, params),
  notify: (method, params) => client.request(method, params, null),
  batch: (calls) =>
    client.request(
      calls.map(([method, params, isNotification]) =>
        client.request(method, params, isNotification ? null : undefined, false)
      )
    ),
  async sequence(method, n) {
    const results = [];
    for (let i = 0; i < n; i++) results.push((await client.request(method, [i])).result);
    return results;
  },
  async together(method, n) {
    const replies = await Promise.all(Array.from({ length: n }, (_, i) => client.request(method, [i])));
    return replies.map((reply) => reply.result);
  },
  async close() {
    if (kind === 'websocket') {
      client.ws.close();
      const [code] = await once(client.ws, 'close');
      return code;
    }
    agent?.destroy();
    return null;
  },
};

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const [order, ...more] = JSON.parse(line);
  let outcome;
  try {
    outcome = { reply: (await orders[order](...more)) ?? null };
  } catch (error) {
    outcome = { raised: String(error) };
  }
  process.stdout.write(JSON.stringify(outcome) + '\n');
}
