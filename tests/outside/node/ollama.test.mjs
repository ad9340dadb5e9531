// Ollama's Node client: models, chats, streams, formats, embeddings, errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";
import { idle, url } from "./servers.mjs";

const client = new Ollama({ host: url });
const asked = { model: "tiny", messages: [{ role: "user", content: "hello" }] };
const options = { temperature: 0, num_predict: 8 };

test("models", async () => {
  assert.equal((await client.list()).models[0].name, "tiny:latest");
  assert.ok((await client.show({ model: "tiny" })).capabilities.includes("completion"));
});

test("a chat and its stream are the same", async () => {
  const whole = await client.chat({ ...asked, options });
  let text = "";
  for await (const part of await client.chat({ ...asked, options, stream: true })) text += part.message.content;
  assert.equal(text, whole.message.content);
});

test("a format", async () => {
  const format = {
    type: "object",
    properties: { on: { type: "boolean" } },
    required: ["on"],
    additionalProperties: false,
  };
  const answer = await client.generate({ model: "tiny", prompt: "hello", format, options: { num_predict: 8000 } });
  assert.equal(typeof JSON.parse(answer.response).on, "boolean");
});

test("embeddings", async () => {
  assert.equal((await client.embed({ model: "tiny", input: ["a", "b"] })).embeddings.length, 2);
});

test("errors and aborts", async () => {
  await assert.rejects(client.chat({ ...asked, model: "other" }), /other/);
  const endless = { temperature: 0, num_predict: 20_000 };
  const stream = await client.chat({ ...asked, stream: true, options: endless });
  setTimeout(() => client.abort(), 50);
  await assert.rejects(async () => {
    for await (const _ of stream);
  });
  await idle();
});
