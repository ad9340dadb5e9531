// Anthropic's Node client: models, messages, streams, tools, counting, errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { idle, says, scriptedUrl, url } from "./servers.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "k", maxRetries: 0 });
const scripted = new Anthropic({ baseURL: scriptedUrl, apiKey: "k", maxRetries: 0 });
const asked = { model: "tiny", max_tokens: 12, messages: [{ role: "user", content: "hello" }] };
const weather = {
  name: "weather",
  input_schema: {
    type: "object",
    properties: { place: { enum: ["Oslo", "Bergen"] } },
    required: ["place"],
    additionalProperties: false,
  },
};
const CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>';

test("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, ["tiny"]);
});

test("a message and its stream are the same", async () => {
  const whole = await client.messages.create({ ...asked, top_k: 1 });
  const final = await client.messages.stream({ ...asked, top_k: 1 }).finalMessage();
  assert.deepEqual(final.content, whole.content);
  assert.equal(final.stop_reason, "max_tokens");
});

test("thoughts and a chosen tool", async () => {
  says(`<think>where?</think>I look.${CALL}`);
  const stream = scripted.messages.stream({ ...asked, max_tokens: 1000, tools: [weather] });
  const partial = [];
  stream.on("inputJson", (part) => partial.push(part));
  const final = await stream.finalMessage();
  assert.deepEqual(final.content.map((block) => block.type), ["thinking", "text", "tool_use"]);
  assert.deepEqual(JSON.parse(partial.join("")), { place: "Oslo" });
});

test("a forced tool of random weights", async () => {
  const choice = { type: "any", disable_parallel_tool_use: true };
  const answer = await client.messages.create({ ...asked, max_tokens: 8000, tools: [weather], tool_choice: choice });
  assert.equal(answer.stop_reason, "tool_use");
  assert.ok(["Oslo", "Bergen"].includes(answer.content[0].input.place));
});

test("tokens are counted", async () => {
  const counted = await client.messages.countTokens({ model: "tiny", messages: asked.messages });
  const { usage } = await client.messages.create(asked);
  assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

test("errors", async () => {
  await assert.rejects(client.messages.create({ ...asked, model: "other" }), Anthropic.NotFoundError);
  const image = { type: "image", source: { type: "base64", media_type: "image/png", data: "iVBORw0KGgo=" } };
  const shown = client.messages.create({ ...asked, messages: [{ role: "user", content: [image] }] });
  await assert.rejects(shown, /only text is served/);
});

test("an abort ends the request on the server", async () => {
  const stream = client.messages.stream({ ...asked, max_tokens: 20_000, top_k: 1 });
  await stream.emitted("streamEvent");
  stream.abort();
  await assert.rejects(stream.done(), Anthropic.APIUserAbortError);
  await idle();
});
