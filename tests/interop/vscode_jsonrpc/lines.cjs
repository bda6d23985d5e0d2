// Newline-delimited JSON for vscode-jsonrpc, whose own reader and writer have Content-Length headers.
//
// Knows sockets and lines, nothing of requests. Not made with node:readline, which also ends lines at U+2028 and U+2029:
// both may stand in a JSON string as they are.
'use strict';

const { AbstractMessageReader, AbstractMessageWriter } = require('vscode-jsonrpc/node');

class LineReader extends AbstractMessageReader {
  constructor(socket) {
    super();
    this.socket = socket;
  }

  listen(callback) {
    let parts = []; // of the line that has not ended yet
    this.socket.setEncoding('utf8');
    this.socket.on('data', (chunk) => {
      const [first, ...others] = chunk.split('\n');
      parts.push(first);
      for (const next of others) {
        this.take(parts.join(''), callback);
        parts = [next];
      }
    });
    this.socket.on('error', (error) => this.fireError(error));
    this.socket.on('close', () => this.fireClose());
    return { dispose: () => this.socket.destroy() };
  }

  take(line, callback) {
    let message;
    try {
      message = JSON.parse(line);
    } catch (error) {
      this.fireError(error);
      return;
    }
    callback(message);
  }
}

class LineWriter extends AbstractMessageWriter {
  constructor(socket) {
    super();
    this.socket = socket;
  }

  write(message) {
    return new Promise((resolve, reject) => {
      this.socket.write(`${JSON.stringify(message)}\n`, (error) => (error ? reject(error) : resolve()));
    });
  }

  end() {
    this.socket.end();
  }
}

module.exports = { LineReader, LineWriter };
