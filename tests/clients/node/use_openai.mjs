// The official OpenAI client of Node: BASE_URL KEY MODEL of the same server as for the others. The modules lie in the
// folder that SPINNEY_NODE_MODULES names.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const modules = createRequire(`${process.env.SPINNEY_NODE_MODULES}/`);
const { default: OpenAI } = await import(pathToFileURL(modules.resolve("openai")));
const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 60_000 });
const create = (body, from = client) => from.chat.completions.create({ model, ...body });
const ask = (content) => [{ role: "user", content }];
const sum = ask("What is 2+2? Answer with just the number.");
const capital = ask("What is the capital of France?");
const weather = ask("What is the weather in Oslo?");
const tooLong = ask("x ".repeat(30_000));
const fn = (name, properties) => ({ name, description: name === "get_weather" ? "Weather for a city" : "Starts a timer",
  parameters: { type: "object", properties, required: [Object.keys(properties)[0]] } });
const tools = [
  { type: "function", function: fn("get_weather", { city: { type: "string" }, days: { type: "integer" } }) },
  { type: "function", function: fn("set_timer", { minutes: { type: "integer" } }) },
];
const schema = {
  type: "object",
  properties: {
    kind: { type: "string", enum: ["city", "river"] },
    count: { type: "integer", minimum: 1, maximum: 9 },
    sure: { type: "boolean" },
  },
  required: ["kind", "count", "sure"],
  additionalProperties: false,
};
const response_format = { type: "json_schema", json_schema: { name: "place", strict: true, schema } };

function checkPlace(place) {
  assert.deepEqual(Object.keys(place), ["kind", "count", "sure"]);
  assert.ok(["city", "river"].includes(place.kind) && place.count >= 1 && place.count <= 9);
  assert.equal(typeof place.sure, "boolean");
}

async function plainAndStream() {
  const { data: whole, request_id } = await create({ messages: sum }).withResponse();
  assert.equal(whole.choices[0].message.content.trim(), "4");
  assert.equal(whole.choices[0].finish_reason, "stop");
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  assert.ok(request_id && whole._request_id === request_id);
  const texts = ["", ""];
  let usage;
  for await (const chunk of await create({ messages: sum, n: 2, stream: true, stream_options: { include_usage: true } })) {
    assert.equal(chunk.object, "chat.completion.chunk");
    for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? "";
    usage = chunk.usage;
  }
  assert.deepEqual(texts, Array(2).fill(whole.choices[0].message.content));
  assert.equal(usage.completion_tokens, 2 * whole.usage.completion_tokens);
  const pair = await create({ messages: sum, n: 2, temperature: 1, seed: 3, max_tokens: 8 });
  assert.deepEqual(pair.choices.map((choice) => choice.index), [0, 1]);
  const left = await create({ messages: sum, stream: true, ignore_eos: true, max_tokens: 2_000 });
  for await (const _ of left) break;
  assert.ok(left.controller.signal.aborted);
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  assert.deepEqual(models, [model]);
  const text = await client.completions.create({ model, prompt: "The sum of", max_tokens: 4, temperature: 0 });
  assert.equal(text.usage.completion_tokens, 4);
}

function checkCalls(message) {
  // Streams begin with an empty one.
  assert.ok(!message.content);
  assert.equal(message.tool_calls.length, 1);
  const [call] = message.tool_calls;
  assert.ok(call.id && call.type === "function");
  assert.equal(call.function.name, "get_weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Oslo" });
}

async function toolCalls() {
  const named = { type: "function", function: { name: "get_weather" } };
  for (const tool_choice of ["auto", "required", named]) {
    const body = { messages: weather, tools, tool_choice, max_tokens: 64 };
    const whole = await create(body);
    assert.equal(whole.choices[0].finish_reason, "tool_calls");
    checkCalls(whole.choices[0].message);
    const stream = client.chat.completions.stream({ model, ...body });
    checkCalls((await stream.finalChatCompletion()).choices[0].message);
  }
  let asked;
  const get_weather = { type: "function", function: { ...tools[0].function, parse: JSON.parse,
    function: ({ city }) => ((asked = city), '{"t": 3, "sky": "rainy"}') } };
  const runner = client.chat.completions.runTools({ model, messages: weather, tools: [get_weather], max_tokens: 64 });
  assert.equal(await runner.finalContent(), "It is rainy in Oslo with 3 degrees.");
  assert.equal(asked, "Oslo");
}

async function jsonSchema() {
  const body = { messages: capital, response_format, max_tokens: 100, temperature: 1, seed: 1 };
  const whole = await create(body);
  checkPlace(JSON.parse(whole.choices[0].message.content));
  const parsed = await client.chat.completions.parse({ model, ...body });
  checkPlace(parsed.choices[0].message.parsed);
  const stream = client.chat.completions.stream({ model, ...body });
  assert.equal(await stream.finalContent(), whole.choices[0].message.content);
}

async function logprobs() {
  const body = { messages: capital, logprobs: true, top_logprobs: 2, max_tokens: 8 };
  const [choice] = (await create(body)).choices;
  const lines = choice.logprobs.content;
  assert.equal(lines.map((line) => line.token).join(""), choice.message.content);
  assert.equal(Buffer.from(lines.flatMap((line) => line.bytes)).toString(), choice.message.content);
  assert.ok(lines.every((line) => line.logprob <= 0 && line.top_logprobs.length === 2));
  const streamed = [];
  for await (const chunk of await create({ ...body, stream: true })) {
    streamed.push(...(chunk.choices[0].logprobs?.content ?? []));
  }
  assert.deepEqual(streamed, lines);
}

async function refused(kind, status, code, call) {
  const error = await call().then((answer) => assert.fail(`expected ${kind.name}, found ${JSON.stringify(answer)}`), (error) => error);
  assert.ok(error instanceof kind, `expected ${kind.name}, found ${error}`);
  assert.deepEqual([error.status, error.code], [status, code]);
  assert.ok(error.requestID && error.error.message && error.type);
  return error;
}

async function waiting() {
  const reply = await fetch(`${baseURL.replace(/\/v1$/, "")}/metrics`);
  return Number(/^vllm:num_requests_waiting\{.*\} (\S+)$/m.exec(await reply.text())[1]);
}

async function errors() {
  const bad = (code, body) => refused(OpenAI.BadRequestError, 400, code, () => create({ messages: sum, ...body }));
  assert.equal((await bad("decimal_above_max_value", { temperature: 9 })).param, "temperature");
  await bad("empty_array", { messages: [] });
  await bad("context_length_exceeded", { messages: tooLong });
  await bad("context_length_exceeded", { messages: tooLong, stream: true });
  const stranger = client.withOptions({ apiKey: "wrong" });
  await refused(OpenAI.AuthenticationError, 401, "invalid_api_key", () => create({ messages: sum }, stranger));
  const visitor = client.withOptions({ baseURL: baseURL.replace(/\/v1$/, "") });
  await refused(OpenAI.PermissionDeniedError, 403, "insufficient_permissions", () => visitor.post("/flush_cache"));
  await refused(OpenAI.NotFoundError, 404, "model_not_found", () => create({ messages: sum, model: "no-such-model" }));
  await refused(OpenAI.NotFoundError, 404, "unknown_url", () => client.embeddings.create({ model, input: "a" }));
  const long = { messages: sum, stream: true, ignore_eos: true, max_tokens: 4_000 };
  const slots = [await create(long), await create(long)];
  const late = refused(OpenAI.InternalServerError, 503, "queue_timeout", () => create({ messages: sum }));
  const end = Date.now() + 10_000;
  while ((await waiting()) < 1) assert.ok(Date.now() < end);
  await refused(OpenAI.RateLimitError, 429, "queue_full", () => create({ messages: sum }));
  await late;
  slots.forEach((stream) => stream.controller.abort());
}

for (const part of [plainAndStream, toolCalls, jsonSchema, logprobs, errors]) await part();
