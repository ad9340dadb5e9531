// Vercel's AI SDK with its provider for servers like OpenAI's: texts, streams, tools in several steps, objects.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { says, scriptedUrl, url } from "./servers.mjs";

const real = createOpenAICompatible({
  name: "kvasir",
  baseURL: `${url}/v1`,
  apiKey: "k",
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const scripted = createOpenAICompatible({ name: "kvasir", baseURL: `${scriptedUrl}/v1`, apiKey: "k" });
const CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>';

test("a text and its stream are the same", async () => {
  const asked = { model: real("tiny"), prompt: "hello", maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
  const whole = await generateText(asked);
  const stream = streamText(asked);
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal(whole.finishReason, "length");
  assert.equal((await stream.usage).outputTokens, 12);
});

test("an object", async () => {
  const schema = z.object({ kind: z.enum(["pump", "fan"]), on: z.boolean() });
  const asked = { model: real("tiny"), prompt: "hello", schema, maxOutputTokens: 8000, maxRetries: 0 };
  assert.ok(["pump", "fan"].includes((await generateObject(asked)).object.kind));
});

test("tools in several steps, and thoughts", async () => {
  says(`<think>where?</think>${CALL}`);
  const weather = tool({
    description: "The weather",
    inputSchema: z.object({ place: z.string() }),
    execute: async ({ place }) => {
      says("It rains.");
      return `rain in ${place}`;
    },
  });
  const stream = streamText({
    model: scripted("tiny"),
    prompt: "hello",
    tools: { weather },
    stopWhen: stepCountIs(3),
    maxRetries: 0,
  });
  await stream.consumeStream();
  const [first, second] = await stream.steps;
  assert.equal(first.reasoningText, "where?");
  assert.deepEqual(first.toolCalls[0].input, { place: "Oslo" });
  assert.equal(second.text, "It rains.");
});

test("embeddings", async () => {
  const found = await embedMany({ model: real.textEmbeddingModel("tiny"), values: ["a", "b"], maxRetries: 0 });
  assert.equal(found.embeddings.length, 2);
});
