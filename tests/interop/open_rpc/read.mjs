// Reads an OpenRPC document with the tools of open-rpc.org: node read.mjs WHAT FILE [FOLDER]; prints JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const [what, file, folder] = process.argv.slice(2);
const text = readFileSync(file, "utf8");

// By the schema of the specification itself: the errors.
function validate() {
  const Ajv = require("ajv");
  const ajv = new Ajv();
  const metaSchema = require("@json-schema-tools/meta-schema").default;
  ajv.addSchema(metaSchema, "https://meta.json-schema.tools");
  const version = JSON.parse(text).openrpc.startsWith("1.4") ? "1_4" : "1_3";
  ajv.validate(require(`@open-rpc/spec/${version}/schema.json`), JSON.parse(text));
  return ajv.errors ?? [];
}

// As most tools begin: valid, and every reference replaced by what it refers to.
async function parse() {
  const { parseOpenRPCDocument } = require("@open-rpc/schema-utils-js");
  const document = await parseOpenRPCDocument(text);
  return { methods: document.methods.length, references: JSON.stringify(document).split('"$ref"').length - 1 };
}

// Calls every method with made-up arguments: for each call the method, the error if there was one, and whether the
// result is what the document says.
async function coverage() {
  const { parseOpenRPCDocument } = require("@open-rpc/schema-utils-js");
  const run = require("@open-rpc/test-coverage/build/coverage").default;
  const { default: HTTPTransport } = require("@open-rpc/test-coverage/build/transports/HTTPTransport");
  const calls = await run({
    openrpcDocument: await parseOpenRPCDocument(text),
    transport: HTTPTransport,
    reporters: [],
    skip: [],
    only: [],
  });
  return calls.map(({ methodName, valid, error, requestError, reason }) => ({
    method: methodName,
    valid: valid === true,
    code: error?.code ?? null,
    failed: requestError ? String(requestError) : null,
    reason: reason ?? null,
  }));
}

// A client in TypeScript, as text.
async function generate() {
  const generator = require("@open-rpc/generator").default;
  const { parseOpenRPCDocument } = require("@open-rpc/schema-utils-js");
  await generator({
    outDir: folder,
    openrpcDocument: await parseOpenRPCDocument(text),
    components: [{ type: "client", name: "made", language: "typescript" }],
  });
  return readFileSync(`${folder}/client/typescript/src/index.ts`, "utf8");
}

console.log(JSON.stringify(await { validate, parse, coverage, generate }[what]()));
