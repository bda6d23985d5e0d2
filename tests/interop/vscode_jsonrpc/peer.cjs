// One end of conversations, held by vscode-jsonrpc. It does what a test says on the standard input, a JSON array a line:
//
//   ["connect", port, framing]         be a client of 127.0.0.1, with "lines" or with the library's own "Content-Length"
//   ["listen"]                         be a server there
//   ["request", key, method, params]   call; params are an array, an object or null
//   ["cancel", key]                    cancel that call through its CancellationTokenSource
//   ["notify", method, params]
//   ["end"]                            send nothing more
//
// and says on the standard output what comes of it, as [key, report] a line. The key is that of the call, the order's own
// first word, what `wait` was called with, or "trouble" for what should not be: a reply that nobody waits for, say.
'use strict';

const net = require('node:net');
const readline = require('node:readline');
const rpc = require('vscode-jsonrpc/node');
const { LineReader, LineWriter } = require('./lines.cjs');

const REQUEST_CANCELLED = -32800;

const say = (key, report) => process.stdout.write(`${JSON.stringify([key, report])}\n`);
const trouble = (...words) => say('trouble', words.map(String).join(' '));

// What the other end may call. The last argument is always the token.
const offered = {
  confirm: (...args) => ({ confirmed: args.slice(0, -1) }),
  refuse: (data) => {
    throw new rpc.ResponseError(4711, 'out of änything 😀', data);
  },
  wait: (key, token) =>
    new Promise((_, reject) => {
      token.onCancellationRequested(() => {
        say(key, 'cancelled');
        reject(new rpc.ResponseError(REQUEST_CANCELLED, 'Cancelled'));
      });
      say(key, 'began');
    }),
};

// Has `watch` see what the reader reads. The library passes over replies that nobody waits for, and over one of two that come together: here each is seen.
function watched(reader, watch) {
  const listen = reader.listen.bind(reader);
  reader.listen = (callback) =>
    listen((message) => {
      watch(message);
      callback(message);
    });
  return reader;
}

const framings = {
  lines: [LineReader, LineWriter],
  'Content-Length': [rpc.SocketMessageReader, rpc.SocketMessageWriter],
};

class Peer {
  constructor(socket, framing = 'lines') {
    const [Reader, Writer] = framings[framing];
    this.waiting = new Set(); // ids of requests that are not answered yet
    this.lastId = null;
    this.sources = new Map();
    this.connection = rpc.createMessageConnection(
      watched(new Reader(socket), (message) => this.watch(message)),
      new Writer(socket),
      { error: trouble, warn: trouble, info: () => {}, log: () => {} },
      {
        cancellationStrategy: {
          receiver: rpc.CancellationReceiverStrategy.Message,
          sender: {
            ...rpc.CancellationSenderStrategy.Message,
            // Called with every request before it is sent: the library tells its ids nowhere else.
            enableCancellation: ({ id }) => this.waiting.add((this.lastId = id)),
          },
        },
      },
    );
    this.connection.onError(([error]) => trouble(error));
    this.connection.onUnhandledNotification((message) => trouble('not handled', JSON.stringify(message)));
    this.connection.onUnhandledProgress((message) => trouble('not handled', JSON.stringify(message)));
    this.connection.onClose(() => say('end', 'closed'));
    for (const [method, handler] of Object.entries(offered)) {
      this.connection.onRequest(method, handler);
    }
    this.connection.listen();
  }

  watch(message) {
    if (rpc.Message.isResponse(message) && !this.waiting.delete(message.id)) {
      trouble('nobody waits for', JSON.stringify(message));
    }
  }

  request(key, method, params) {
    const source = new rpc.CancellationTokenSource();
    this.sources.set(key, source);
    this.connection.sendRequest(method, ...args(params), source.token).then(
      (result) => say(key, { result }),
      ({ code, message, data }) => say(key, { error: [code, message, data] }),
    );
    this.connection.onProgress(new rpc.ProgressType(), this.lastId, (progress) => say(key, { progress }));
  }
}

function args(params) {
  if (params === null) {
    return [];
  }
  return Array.isArray(params)
    ? [rpc.ParameterStructures.byPosition, ...params]
    : [rpc.ParameterStructures.byName, params];
}

let client;

const orders = {
  connect: (port, framing) => {
    const socket = net.connect(port, '127.0.0.1', () => say('connect', null));
    client = new Peer(socket, framing);
  },
  listen: () => {
    const server = net.createServer((socket) => new Peer(socket));
    server.listen(0, '127.0.0.1', () => say('listen', server.address().port));
  },
  request: (...rest) => client.request(...rest),
  cancel: (key) => client.sources.get(key).cancel(),
  notify: (method, params) => client.connection.sendNotification(method, ...args(params)),
  end: () => client.connection.end(),
};

// The orders are written with all but ASCII escaped, so that readline cannot take them apart.
readline
  .createInterface({ input: process.stdin })
  .on('line', (line) => {
    const [order, ...rest] = JSON.parse(line);
    orders[order](...rest);
  })
  .on('close', () => process.exit());
