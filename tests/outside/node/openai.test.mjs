// OpenAI's Node client: chats, streams, parsed outputs, tools and their runner, responses, embeddings, errors, aborts.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { idle, says, scriptedUrl, url } from "./servers.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "k", maxRetries: 0 });
const scripted = new OpenAI({ baseURL: `${scriptedUrl}/v1`, apiKey: "k", maxRetries: 0 });
const messages = [{ role: "user", content: "hello" }];
const asked = { model: "tiny", messages };
const Machine = z.object({ kind: z.enum(["pump", "fan"]), on: z.boolean() });
const CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>';
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { place: { type: "string" } },
      required: ["place"],
      additionalProperties: false,
    },
  },
};

test("a chat and its stream are the same", async () => {
  const greedy = { ...asked, max_completion_tokens: 12, temperature: 0 };
  const whole = await client.chat.completions.create(greedy);
  const stream = client.chat.completions.stream({ ...greedy, stream_options: { include_usage: true } });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
  assert.equal(final.usage.completion_tokens, 12);
});

test("a chat is parsed", async () => {
  const answer = await client.chat.completions.parse({
    ...asked,
    max_tokens: 8000,
    response_format: zodResponseFormat(Machine, "machine"),
  });
  assert.ok(["pump", "fan"].includes(answer.choices[0].message.parsed.kind));
});

test("a forced tool of random weights", async () => {
  const answer = await client.chat.completions.create({
    ...asked,
    max_tokens: 8000,
    tools: [{ type: "function", function: { name: "machine", parameters: z.toJSONSchema(Machine) } }],
    tool_choice: { type: "function", function: { name: "machine" } },
  });
  const [call] = answer.choices[0].message.tool_calls;
  assert.ok(["pump", "fan"].includes(JSON.parse(call.function.arguments).kind));
});

test("the runner of tools ends with an answer", async () => {
  says(`<think>where?</think>${CALL}`);
  const runner = scripted.chat.completions.runTools({
    ...asked,
    stream: true,
    tools: [
      {
        type: "function",
        function: {
          ...weather.function,
          parse: JSON.parse,
          function: ({ place }) => {
            says("It rains.");
            return `rain in ${place}`;
          },
        },
      },
    ],
  });
  assert.equal(await runner.finalContent(), "It rains.");
});

test("responses are streamed and parsed", async () => {
  const answer = await client.responses.parse({
    model: "tiny",
    input: "hello",
    max_output_tokens: 8000,
    text: { format: zodTextFormat(Machine, "machine") },
  });
  assert.ok(["pump", "fan"].includes(answer.output_parsed.kind));
  const stream = client.responses.stream({
    model: "tiny",
    input: "hello",
    max_output_tokens: 16,
    temperature: 0,
  });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  assert.equal(kinds.at(-1), "response.incomplete");
});

test("embeddings come packed and plain", async () => {
  const packed = await client.embeddings.create({ model: "tiny", input: "hello" });
  const plain = await client.embeddings.create({ model: "tiny", input: "hello", encoding_format: "float" });
  assert.equal(packed.data[0].embedding.length, plain.data[0].embedding.length);
  packed.data[0].embedding.forEach((one, at) => assert.ok(Math.abs(one - plain.data[0].embedding[at]) < 1e-5));
});

test("completions", async () => {
  const greedy = { model: "tiny", prompt: "a", max_tokens: 4, temperature: 0 };
  const answer = await client.completions.create({ ...greedy, logprobs: 1 });
  assert.equal(answer.choices[0].logprobs.tokens.length, 4);
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create({ ...asked, model: "other" }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...asked, temperature: -1 }), (error) => {
    return error instanceof OpenAI.BadRequestError && error.param === "temperature";
  });
  const image = [{ type: "image_url", image_url: { url: "data:image/png;base64,iVBORw0KGgo=" } }];
  const shown = client.chat.completions.create({ ...asked, messages: [{ role: "user", content: image }] });
  await assert.rejects(shown, /only text is served/);
});

test("an abort ends the request on the server", async () => {
  const stream = await client.chat.completions.create({ ...asked, max_tokens: 20_000, stream: true, ignore_eos: true });
  for await (const _ of stream) break;
  const controller = new AbortController();
  const whole = client.chat.completions.create(
    { ...asked, max_tokens: 20_000, ignore_eos: true },
    { signal: controller.signal },
  );
  setTimeout(() => controller.abort(), 50);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await idle();
});
