// The page's program: sends the prompt, shows the answer as it comes, and hands view.js what each
// head keeps. The server sends, between the pieces of the answer, {"object": "fox.windows"} events:
// for each layer and head the first page that is still kept. No framework, no request elsewhere.
"use strict";

const MOST_OF_LINK = 4000;  // characters of the fragment
const QUESTION = "\n\nQuestion: What is the name of the town?";
const RIGHT = "Zenda";  // the answer to QUESTION; the text's capital is Strelsau
const BOXES = ["answer", "beside-answer"];  // by place: of the first model, of the one beside it
const SHARED = {n: "max-tokens", temperature: "temperature", seed: "seed"};  // by a link, with text

let running = null;  // the AbortController of the answer that comes in
let models = [{}];   // of the address; a second one can be asked beside the first
// The conversation of each model, as each answers in its own words; null: the model does not chat.
let turns = null;

// A figure of an answer: in the comparison, and of the first model with the others.
function tell(place, name, text) {
  $(`${name}-${place}`).textContent = text;
  if (place === 0 && name !== "kept") $(name).textContent = text;
}

// ---- talking to the server ----------------------------------------------------------------------

function headers() {
  const key = $("api-key").value;
  const out = {"Content-Type": "application/json"};
  if (key) out.Authorization = `Bearer ${key}`;
  return out;
}

async function errorOf(response) {
  if (response.status === 401) $("settings").open = true;
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function showModel() {
  const response = await fetch("/v1/models", {headers: headers()});
  if (!response.ok) throw new Error(await errorOf(response));
  models = (await response.json()).data;
  $("model").textContent = models[0].id;
  $("beside-choice").hidden = models.length < 2;
  if (models.length > 1) $("beside-name").textContent = models[1].id;
  models.slice(0, 2).forEach(({id}, place) => { $(`name-${place}`).textContent = id; });
  if (!models[0].chat) return;
  if (turns === null) {
    turns = BOXES.map(() => []);
    $("prompt").value = $("prompt").value === $("prompt").defaultValue ? "" : $("prompt").value;
  }
  document.body.toggleAttribute("data-chat", true);
  $("prompt-label").textContent = "Message";
  $("generate").textContent = "Send";
  $("example").textContent = "Long text and question";
  $("reset").hidden = false;
}

// The JSON of each server-sent event, until the stream says that it is done.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const {done, value} = await reader.read();
    if (done) throw new Error("the connection ended before the answer did");
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      for (const line of event.split(/\r?\n/)) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  }
}

function requestBody(prompt, place) {
  const content = {role: "user", content: prompt};
  return {
    ...(turns === null ? {prompt} : {messages: [...turns[place], content]}),
    stream: true,
    stream_options: {include_usage: true}, acp_windows: true,
    max_tokens: Number($("max-tokens").value), temperature: Number($("temperature").value),
    seed: Number($("seed").value),
  };
}

function begin(both) {
  if (!turns?.[0].length) $("answer").replaceChildren();
  pause();
  $("right").textContent = "";
  for (const name of ["kept", "rate", "first"]) BOXES.forEach((_, place) => tell(place, name, "-"));
  $("answers").classList.toggle("both", both);
  $("beside-part").hidden = $("compare").hidden = !both;
  BOXES.forEach((_, place) => {
    $(["answer-title", "beside-title"][place]).textContent = both ? models[place].id : "Answer";
  });
}

// Shows the prompt in a model's box; returns the text that the answer grows in.
function openAnswer(prompt, place) {
  const box = $(BOXES[place]), before = document.createElement("span");
  before.className = "before";
  before.textContent = prompt.length > 400 ? "\u2026" + prompt.slice(-400) : prompt;
  const text = document.createTextNode("");
  if (turns === null) {
    box.replaceChildren(before, text);
  } else {
    before.textContent = `${turns[place].length > 0 ? "\n\n" : ""}${before.textContent}\n\n`;
    box.append(before, text);
  }
  box.scrollTop = box.scrollHeight;
  return text;
}

// Keeps a turn of a model's conversation, or removes a question that got no answer.
function closeAnswer(prompt, place, text) {
  if (turns === null) return;
  if (text.data === "") {
    text.previousSibling.remove();
  } else {
    turns[place].push({role: "user", content: prompt}, {role: "assistant", content: text.data});
  }
}

// Says which model has the answer to the example's question.
function judge(texts) {
  const said = texts.map((text, place) =>
    `${models[place].id} ${text.data.includes(RIGHT) ? "is right" : "is wrong"}`);
  $("right").textContent = `The town is ${RIGHT}: ${said.join(", ")}.`;
}

// Reads the answer to its end; returns what the server says of it.
async function readAnswer(response, place, text, start, next) {
  let usage = null, firstAt = 0, pieces = 0;
  for await (const event of eventsOf(response)) {
    if (event.error) throw new Error(event.error.message);
    if (event.object === "fox.windows") {
      addMoment(next, event);
      tell(place, "kept", bytesText(memoryOf(next, next.history.at(-1)).kept));
      if (place === 0) {
        show(next);
        draw();
      }
      continue;
    }
    if (event.usage) usage = event.usage;
    const choice = event.choices?.[0];
    if (choice?.delta?.reasoning_content) setState("running", "Thinking");
    const piece = choice?.text ?? choice?.delta?.content ?? "";
    if (piece === "") continue;
    const now = performance.now(), box = $(BOXES[place]);
    if (++pieces === 1) {
      firstAt = now;
      tell(place, "first", `${((now - start) / 1000).toFixed(2)} s`);
      setState("running", "Writing");
    } else {
      tell(place, "rate", ((pieces - 1) / (now - firstAt) * 1000).toFixed(0));
    }
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    text.appendData(piece);
    next.answer += piece;
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
  const seconds = (performance.now() - firstAt) / 1000;
  if (usage !== null && usage.completion_tokens > 1 && pieces > 1) {
    tell(place, "rate", ((usage.completion_tokens - 1) / seconds).toFixed(0));
  }
  Object.assign(next.history.at(-1) ?? {}, {chars: next.answer.length});
  next.prompt_tokens = usage?.prompt_tokens ?? next.prompt_tokens;
  draw();
  return usage;
}

// Learns where the pages of the run's prompt begin in its text, for what a head holds of it.
async function readTokens(next) {
  const response = await fetch("/tokenize", {
    method: "POST", headers: headers(), signal: running.signal,
    body: JSON.stringify({prompt: next.prompt, return_token_strs: true}),
  });
  if (response.ok) placeTokens(next, (await response.json()).token_strs);
  draw();
}

async function ask(body, place, text) {
  const start = performance.now(), before = (body.messages ?? []).map(({content}) => content);
  const next = newRun(models[place].id, body.prompt ?? before.join("\n\n"));
  if (place === 0) readTokens(next).catch(() => {});  // without it the text is not shown
  setState("running", "Reading the prompt");
  const response = await fetch(turns === null ? "/v1/completions" : "/v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify({model: models[place].id, ...body}),
    signal: running.signal,
  });
  if (!response.ok) throw new Error(await errorOf(response));
  return readAnswer(response, place, text, start, next);
}

// One model after the other, so that neither slows the other.
async function generate() {
  if (running !== null) return;
  running = new AbortController();
  const both = models.length > 1 && $("beside").checked, prompt = $("prompt").value;
  const places = both ? [0, 1] : [0];
  begin(both);
  const texts = places.map((place) => openAnswer(prompt, place));
  try {
    let usage = null;
    for (const place of places) {
      const said = await ask(requestBody(prompt, place), place, texts[place]);
      if (place === 0) usage = said;
    }
    if (both && prompt === exampleText()) judge(texts);
    setState("done", usage === null ? "Done" : doneText(usage));
  } catch (error) {
    if (running.signal.aborted) {
      setState("stopped", "Stopped");
    } else {
      setState("failed", `Failed: ${error.message}`);
    }
  } finally {
    running = null;
    places.forEach((place) => closeAnswer(prompt, place, texts[place]));
    if (turns !== null && texts[0].data !== "") $("prompt").value = "";
    setState(document.body.dataset.state, $("status").textContent);
  }
}

function doneText(usage) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return `Done: ${NUMBERS.format(usage.prompt_tokens)} tokens read` +
    (cached > 0 ? ` (${NUMBERS.format(cached)} from the cache)` : "") +
    `, ${NUMBERS.format(usage.completion_tokens)} written`;
}

// ---- controls -----------------------------------------------------------------------------------

function setState(state, message) {
  $("status").textContent = message;
  $("generate").disabled = running !== null;
  $("stop").disabled = running === null;
  $("reset").disabled = running !== null;
  document.body.dataset.state = state;
}

const exampleText = () => RECORDED.prompt + (turns === null ? "" : QUESTION);

function useExample() {
  $("prompt").value = exampleText();
  if (turns !== null) $("temperature").value = 0;
  $("prompt").focus();
  const characters = NUMBERS.format($("prompt").value.length);
  setState("idle", `Two chapters of a novel: ${characters} characters`);
}

// Puts prompt and sampling into the address, which a reader can pass on; no server sees it there.
async function makeLink() {
  const prompt = $("prompt").value, fields = new URLSearchParams();
  for (const [name, id] of Object.entries(SHARED)) fields.set(name, $(id).value);
  if (prompt === exampleText()) fields.set("example", "");
  else fields.set("prompt", prompt);
  if (String(fields).length > MOST_OF_LINK) {
    setState("failed", "Failed: the prompt is too long for a link; the long example is not");
    return;
  }
  history.replaceState(null, "", `#${fields}`);
  try {
    await navigator.clipboard.writeText(location.href);
    setState("idle", "The link is copied; it holds prompt, sampling and seed");
  } catch {
    setState("idle", "The address is now the link; it holds prompt, sampling and seed");
  }
}

// Fills in what a link holds; what it asks for begins with Generate, as all else.
function readLink() {
  if (location.hash.length < 2 || location.hash.length > MOST_OF_LINK + 1) return;
  const fields = new URLSearchParams(location.hash.slice(1));
  for (const [name, id] of Object.entries(SHARED)) {
    const control = $(id), before = control.value;
    control.value = fields.get(name) ?? before;
    if (control.value === "" || !control.checkValidity()) control.value = before;
  }
  if (fields.has("example")) $("prompt").value = exampleText();
  else $("prompt").value = fields.get("prompt") ?? $("prompt").value;
  setState("idle", "From a link: Generate begins");
}

// Before the first request: what a model has done, as this page has recorded it.
function showRecorded() {
  $("source-text").textContent = `of the ${RECORDED.model} model on a novel`;
  $("answer-title").textContent = "Answer in the recorded run";
  $("answer").textContent = RECORDED.answer.trimStart();
  const last = RECORDED.history.at(-1).first;
  cursor = last.indexOf(Math.min(...last.filter((page) => page > 0)));  // gave back least
  show(RECORDED);
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play();
  draw();
}

function start() {
  startView();
  showRecorded();
  if (document.body.dataset.static !== undefined) return;  // there is no server to ask
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("reset").addEventListener("click", () => {
    turns = BOXES.map(() => []);
    for (const box of [...BOXES, "right"]) $(box).replaceChildren();
    setState("idle", "A new conversation");
  });
  $("example").addEventListener("click", useExample);
  $("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) $("prompt").value = await file.text();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate();
    if (event.key === "Escape") running?.abort();
  });
  $("link").addEventListener("click", makeLink);
  addEventListener("hashchange", readLink);
  $("api-key").addEventListener("change", () => showModel().catch(() => {}));
  showModel().then(readLink, (error) => setState("failed", `Failed: ${error.message}`));
}

start();
