
const $ = (id) => document.getElementById(id);
const BASE = location.pathname.replace(/\/ui\/?$/, "/");
const view = { messages: [], steps: [], running: null, model: "default", drawn: false };

function element(name, classes, parent, text) {
  const made = document.createElement(name);
  made.className = classes;
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function ask(path) {
  const response = await fetch(BASE + path, { headers: headers() });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error?.message ?? `status ${response.status}`);
  return body;
}

function modeName(mode, budget) {
  return mode === "plain" ? "plain decoding" : `${mode} of ${budget}`;
}

/** What runs here. Servers may keep it behind a key, or not tell. */
async function introduce() {
  try {
    const { data } = await ask("v1/models");
    view.model = data[0].id;
    $("model").textContent = `${data[0].id}, context ${data[0].context_length.toLocaleString("en")}`;
  } catch (error) {
    $("model").textContent = `The model is not known yet: ${error.message}`;
    return;
  }
  try {
    const info = await ask("server_info");
    const algorithm = { NONE: "plain decoding", DFLASH: "chain", DDTREE: "tree" }[info.speculative_algorithm];
    const budget = info.speculative_ddtree_budget ?? "";
    $("setup").textContent = [algorithm && `${algorithm} ${budget}`.trim(), info.device].filter(Boolean).join(", ");
  } catch {
    $("setup").textContent = "";
  }
}

function showStep(step) {
  drawTree($("tree"), step);
  $("caption").textContent = `${modeName(step.mode, step.budget)}, ${step.path.length} of ${step.nodes.length - 1} drafts accepted`;
  $("last").textContent = `${step.ms.toFixed(1)} ms`;
}

/** Once per frame, however many steps that are. */
function redraw() {
  view.drawn = true;
  if (!view.steps.length) return;
  const steps = view.steps, which = $("which");
  const sum = (field) => steps.reduce((total, step) => total + step[field], 0);
  which.max = which.value = steps.length;
  which.disabled = false;
  $("steps").textContent = steps.length;
  $("tokens").textContent = sum("tokens") + 1;
  $("mean").textContent = (sum("tokens") / steps.length).toFixed(2);
  $("speed").textContent = Math.round((1000 * sum("tokens")) / Math.max(sum("ms"), 1e-3)).toLocaleString("en");
  showStep(steps.at(-1));
  drawChart($("chart"), steps);
}

function addMessage(role, text) {
  $("welcome")?.remove();
  const message = element("article", `message ${role}`, $("conversation"));
  element("h2", "", message, { user: "You", assistant: "Model" }[role]);
  if (text !== undefined) element("div", "text", message, text);
  return message;
}

/** One answer as it grows. */
class Answer {
  constructor() {
    this.message = addMessage("assistant");
    this.painter = new Painter();
    this.content = "";
    this.calls = [];
    this.finish = null;
  }

  part(name, make) {
    return (this[name] ??= make());
  }

  reasoningPane() {
    return this.part("thought", () => {
      const details = element("details", "reasoning", this.message);
      details.open = true;
      element("summary", "", details, "Reasoning");
      return element("div", "text", details);
    });
  }

  call({ index, id, function: { name, arguments: more } = {} }) {
    this.painter.forget();
    const call = (this.calls[index] ??= { id, type: "function", function: { name, arguments: "" }, card: element("div", "call", this.message) });
    if (name) {
      element("strong", "", call.card, `${name}()`);
      call.code = element("code", "", call.card);
      call.result = element("input", "", element("label", "note", call.card, "Result, sent with the next prompt "));
      call.card.lastChild.append(call.result);
    }
    call.function.arguments += more ?? "";
    call.code.textContent = call.function.arguments;
  }

  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices?.[0];
    if (chunk.usage) this.usage = chunk.usage;
    if (!choice) return;
    if (choice.step) {
      this.painter.expect(choice.step);
      view.steps.push(choice.step);
      if (view.drawn) requestAnimationFrame(redraw);
      view.drawn = false;
    }
    const { content, reasoning_content, reasoning, tool_calls } = choice.delta;
    const thought = reasoning_content ?? reasoning;
    if (thought) this.painter.paint(this.reasoningPane(), thought);
    if (content) {
      this.content += content;
      this.painter.paint(this.part("pane", () => element("div", "text", this.message)), content);
    }
    for (const call of tool_calls ?? []) this.call(call);
    this.finish = choice.finish_reason ?? this.finish;
  }

  /** What the next request says of it. */
  record() {
    const calls = this.calls.map(({ id, type, function: called }) => ({ id, type, function: called }));
    return { role: "assistant", content: this.content, ...(calls.length && { tool_calls: calls }) };
  }
}

function number(id) {
  const value = $(id).value.trim();
  return value === "" ? undefined : Number(value);
}

function tools() {
  const text = $("tools").value.trim();
  try {
    return text ? JSON.parse(text) : undefined;
  } catch (error) {
    throw new Error(`The tools are no JSON: ${error.message}`);
  }
}

function body() {
  const system = $("system").value.trim(), thinking = $("thinking").value;
  return {
    model: view.model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...view.messages],
    stream: true,
    stream_options: { include_usage: true },
    return_step_trace: true,
    temperature: number("temperature"),
    max_tokens: number("max_tokens"),
    enable_thinking: thinking ? thinking === "true" : undefined,
    tools: tools(),
  };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}

async function stream(answer, signal) {
  const request = { method: "POST", headers: headers(), body: JSON.stringify(body()), signal };
  const response = await fetch(`${BASE}v1/chat/completions`, request);
  if (!response.ok) {
    const refused = await response.json().catch(() => ({}));
    throw new Error(refused.error?.message ?? `The server answers with status ${response.status}.`);
  }
  const log = $("conversation");
  for await (const event of events(response)) {
    const low = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    answer.take(event);
    if (low) log.scrollTop = log.scrollHeight;
  }
}

function busy(controller) {
  view.running = controller;
  $("stop").disabled = !controller;
  $("send").disabled = Boolean(controller);
}

function summary(answer) {
  const tokens = answer.usage?.completion_tokens;
  return `Done: ${tokens ?? "?"} tokens in ${view.steps.length} steps and one prefill, finish reason ${answer.finish ?? "unknown"}.`;
}

async function send() {
  const prompt = $("prompt").value.trim();
  const results = view.answer?.calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result.value })) ?? [];
  if (view.running || !(prompt || results.length)) return;
  const messages = view.messages, before = messages.length;
  messages.push(...results);
  if (prompt) {
    messages.push({ role: "user", content: prompt });
    addMessage("user", prompt);
  }
  $("prompt").value = "";
  view.steps = [];
  view.drawn = true;
  busy(new AbortController());
  $("status").textContent = "Answering …";
  const answer = new Answer();
  view.answer = answer;
  try {
    await stream(answer, view.running.signal);
    $("status").textContent = summary(answer);
  } catch (error) {
    const stopped = error.name === "AbortError";
    $("status").textContent = stopped ? "Stopped." : "Failed.";
    element("p", stopped ? "note" : "note fault", answer.message, stopped ? "Stopped here." : error.message);
    // A call that was cut off cannot be answered.
    answer.calls = [];
  }
  // What was not answered was not said.
  if (answer.content || answer.calls.length) messages.push(answer.record());
  else messages.length = before;
  redraw();
  busy(null);
}

function reset() {
  view.running?.abort();
  Object.assign(view, { messages: [], steps: [], answer: null });
  $("conversation").replaceChildren();
  for (const id of ["tokens", "steps", "mean", "speed", "last"]) $(id).textContent = "–";
  for (const id of ["tree", "chart"]) $(id).replaceChildren(element("p", "", null, "No step yet."));
  $("which").disabled = true;
  $("caption").textContent = "Draft of the last step";
  $("status").textContent = "";
  $("prompt").focus();
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") view.running?.abort(); });
$("stop").addEventListener("click", () => view.running?.abort());
$("reset").addEventListener("click", reset);
$("key").addEventListener("change", introduce);
$("which").addEventListener("input", () => showStep(view.steps[$("which").value - 1]));
for (const depth of [1, 4, 8, 12, 15]) style($("depths").appendChild(element("span", "", null, depth)), { kind: "draft", depth });
introduce();
