// The page's program: sends the prompt, shows the answer as it comes, and draws what each head
// keeps. The server sends, between the pieces of the answer, {"object": "fox.windows"} events: for
// each layer and head the first page that is still kept. No framework, no request elsewhere.
"use strict";

const $ = (id) => document.getElementById(id);
const TABLE_EVERY_MS = 500;
const MOST_POINTS = 2000;
const NUMBERS = new Intl.NumberFormat("en");
const QUESTION = "\n\nQuestion: What is the name of the town?";
const BOXES = ["answer", "beside-answer"];  // by place: of the first model, and of the one beside it

let running = null;  // the AbortController of the answer that comes in
let models = [{}];   // of the address; a second one can be asked beside the first
let turns = null;    // of the conversation; null: the model does not chat
let windows = null;  // the last fox.windows event
let course = [];    // [tokens, bytes kept, bytes unpruned]
let cursor = 0;      // the cell that the arrow keys are on
let tableAt = 0;

// ---- numbers ------------------------------------------------------------------------------------

const pagesOf = (w) => Math.ceil(w.tokens / w.page_size);

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.length; ++unit) bytes /= 1024;
  return `${bytes.toFixed(unit > 0 && bytes < 100 ? 1 : 0)} ${units[unit]}`;
}

function memoryOf(w) {
  const pages = pagesOf(w);
  const kept = w.first_page.reduce((sum, first) => sum + pages - first, 0);
  return {kept: kept * w.page_bytes, unpruned: w.first_page.length * pages * w.page_bytes};
}

function cellText(w, index) {
  const layer = Math.floor(index / w.kv_heads), head = index % w.kv_heads;
  const pages = pagesOf(w), kept = pages - w.first_page[index];
  return `Layer ${layer}, head ${head}: keeps ${kept} of ${pages} pages, the last ` +
    `${NUMBERS.format(w.tokens - w.first_page[index] * w.page_size)} of ` +
    `${NUMBERS.format(w.tokens)} tokens.`;
}

function showCertificate(w) {
  const element = $("certificate"), {max_log_evicted_mass: mass, log_tolerance: most} = w.acp;
  if (most === null) {
    element.textContent = "Certificate: nothing may be forgotten, and nothing was.";
  } else if (mass === null) {
    element.textContent = `Certificate: nothing was given up yet (log eps ${most}).`;
  } else {
    const share = Math.exp(mass).toExponential(2);
    element.textContent = `Certificate: no row of any head lost more than ${share} of its ` +
      `attention: log ${mass.toFixed(4)} ${mass <= most ? "\u2264" : ">"} ${most}.`;
  }
  element.className = "certificate " + (mass === null || mass <= most ? "holds" : "broken");
}

// A figure of an answer: in the comparison, and of the first model with the others.
function tell(place, name, text) {
  $(`${name}-${place}`).textContent = text;
  if (place === 0) $(name).textContent = text;
}

function showFigures(w) {
  const {kept, unpruned} = memoryOf(w);
  tell(0, "kept", bytesText(kept));
  $("unpruned").textContent = bytesText(unpruned);
  $("share").textContent = unpruned > 0 ? `${(100 * kept / unpruned).toFixed(1)}%` : "-";
  $("tokens").textContent = NUMBERS.format(w.tokens);
}

// ---- drawing ------------------------------------------------------------------------------------

// Fits the canvas to its place on the screen; returns its context, in CSS pixels, cleared.
function contextOf(canvas) {
  const {width, height} = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return {context, width, height};
}

function colors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {low: of("--kept-low"), high: of("--kept-high"), gone: of("--gone"), ink: of("--ink"),
          soft: of("--soft"), plain: of("--plain"), accent: of("--accent")};
}

// Between two #rrggbb colours; `share` in [0, 1].
function mix(low, high, share) {
  const part = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
  const at = (i) => Math.round(part(low, i) + share * (part(high, i) - part(low, i)));
  return `rgb(${at(0)}, ${at(1)}, ${at(2)})`;
}

// Where the map's cells are: behind the numbers of layers, below those of heads.
function gridOf(width, height) {
  const left = 28, top = 16;
  return {left, top, cellWidth: (width - left) / windows.kv_heads,
          cellHeight: (height - top) / windows.layers};
}

function drawMap() {
  const canvas = $("map"), {context, width, height} = contextOf(canvas);
  if (windows === null) return;
  const color = colors(), pages = pagesOf(windows);
  const {left, top, cellWidth, cellHeight} = gridOf(width, height);
  const gap = Math.min(3, cellWidth / 4, cellHeight / 4);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillStyle = color.soft;
  for (let head = 0; head < windows.kv_heads; head += cellWidth > 44 ? 1 : 4) {
    context.fillText(cellWidth > 44 ? `head ${head}` : String(head), left + head * cellWidth, 7);
  }
  windows.first_page.forEach((first, index) => {
    const layer = Math.floor(index / windows.kv_heads), head = index % windows.kv_heads;
    const x = left + head * cellWidth, y = top + layer * cellHeight;
    const room = cellWidth - gap, tall = cellHeight - gap;
    const share = pages > 0 ? (pages - first) / pages : 0;
    context.fillStyle = color.gone;
    context.fillRect(x, y, room, tall);
    context.fillStyle = mix(color.low, color.high, share);
    const kept = Math.max(room * share, share > 0 ? 2 : 0);  // one page of thousands still shows
    context.fillRect(x + room - kept, y, kept, tall);
    if (head === 0 && (cellHeight > 12 || layer % 4 === 0)) {
      context.fillStyle = color.soft;
      context.fillText(String(layer), 4, y + tall / 2);
    }
    if (index === cursor && document.activeElement === canvas) {
      context.strokeStyle = color.ink;
      context.lineWidth = 2;
      context.strokeRect(x, y, room, tall);
    }
  });
}

function drawHistory() {
  const {context, width, height} = contextOf($("history"));
  if (course.length === 0) return;
  const color = colors(), [tokens, , most] = course[course.length - 1];
  const x = (point) => point[0] / tokens * (width - 2);
  const y = (bytes) => height - 2 - bytes / Math.max(most, 1) * (height - 16);
  context.beginPath();
  context.moveTo(0, height);
  for (const point of course) context.lineTo(x(point), y(point[1]));
  context.lineTo(x(course[course.length - 1]), height);
  context.fillStyle = color.accent;
  context.fill();
  context.beginPath();
  context.moveTo(0, height);
  for (const point of course) context.lineTo(x(point), y(point[2]));
  context.setLineDash([6, 4]);
  context.lineWidth = 2;
  context.strokeStyle = color.plain;
  context.stroke();
}

// Built once for a model, then only its numbers change.
function fillTable() {
  const table = $("table"), [head, body] = [table.tHead, table.tBodies[0]];
  const {layers, kv_heads: heads} = windows;
  if (body.rows.length !== layers || head.rows[0].cells.length !== heads + 1) {
    const row = (kind, texts) => {
      const line = document.createElement("tr");
      texts.forEach((text, i) => {
        const cell = document.createElement(i === 0 || kind === "th" ? "th" : "td");
        if (cell.tagName === "TH") cell.scope = kind === "th" ? "col" : "row";
        cell.textContent = text;
        line.append(cell);
      });
      return line;
    };
    head.replaceChildren(row("th", ["layer", ...Array.from({length: heads}, (_, h) => `head ${h}`)]));
    body.replaceChildren(...Array.from({length: layers}, (_, layer) =>
      row("td", [String(layer), ...Array(heads).fill("")])));
  }
  const pages = pagesOf(windows);
  windows.first_page.forEach((first, index) => {
    const cell = body.rows[Math.floor(index / heads)].cells[index % heads + 1];
    cell.textContent = String(pages - first);
  });
  table.caption.textContent = `Pages of ${windows.page_size} tokens that each head keeps, of ` +
    `${pages}`;
}

function showWindows(event) {
  windows = event;
  const {kept, unpruned} = memoryOf(event);
  if (course.length >= MOST_POINTS) course = course.filter((_, i) => i % 2 === 0);
  course.push([event.tokens, kept, unpruned]);
  showFigures(event);
  showCertificate(event);
  drawMap();
  drawHistory();
  const now = performance.now();
  if ($("table-details").open && now - tableAt > TABLE_EVERY_MS) {
    tableAt = now;
    fillTable();
  }
}

// ---- talking to the server ----------------------------------------------------------------------

function headers() {
  const key = $("api-key").value;
  const out = {"Content-Type": "application/json"};
  if (key) out.Authorization = `Bearer ${key}`;
  return out;
}

async function errorOf(response) {
  if (response.status === 401) $("access").open = true;
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
  turns ??= [];
  $("prompt-label").textContent = "Message";
  $("generate").textContent = "Send";
  $("example").textContent = "Use a long text and a question";
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

function requestBody() {
  const prompt = $("prompt").value;
  return {
    ...(turns === null ? {prompt} : {messages: [...turns, {role: "user", content: prompt}]}),
    stream: true,
    stream_options: {include_usage: true}, acp_windows: true,
    max_tokens: Number($("max-tokens").value), temperature: Number($("temperature").value),
    seed: Number($("seed").value),
  };
}

function begin(both) {
  windows = null;
  course = [];
  for (const id of ["unpruned", "share", "tokens"]) $(id).textContent = "-";
  for (const name of ["kept", "rate", "first"]) BOXES.forEach((_, place) => tell(place, name, "-"));
  $("answers").classList.toggle("both", both);
  $("beside-part").hidden = $("compare").hidden = !both;
  BOXES.forEach((_, place) => {
    $(["answer-title", "beside-title"][place]).textContent = both ? models[place].id : "Answer";
  });
  $("certificate").textContent = "The certificate comes with the answer.";
  $("certificate").className = "certificate";
}

// Shows the prompt in a box; returns the text that the answer grows in.
function openAnswer(box) {
  const before = document.createElement("span");
  before.className = "before";
  const prompt = $("prompt").value;
  before.textContent = prompt.length > 400 ? "\u2026" + prompt.slice(-400) : prompt;
  const text = document.createTextNode("");
  if (turns === null) {
    box.replaceChildren(before, text);
  } else {
    before.textContent = `${turns.length > 0 ? "\n\n" : ""}${before.textContent}\n\n`;
    box.append(before, text);
  }
  box.scrollTop = box.scrollHeight;
  return text;
}

// Reads the answer to its end; returns what the server says of it.
async function readAnswer(response, place, text, start) {
  let usage = null, firstAt = 0, pieces = 0;
  for await (const event of eventsOf(response)) {
    if (event.error) throw new Error(event.error.message);
    if (event.object === "fox.windows") {
      if (place === 0) showWindows(event);
      else tell(place, "kept", bytesText(memoryOf(event).kept));
      continue;
    }
    if (event.usage) usage = event.usage;
    const choice = event.choices?.[0];
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
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
  const seconds = (performance.now() - firstAt) / 1000;
  if (usage !== null && usage.completion_tokens > 1 && pieces > 1) {
    tell(place, "rate", ((usage.completion_tokens - 1) / seconds).toFixed(0));
  }
  return usage;
}

async function ask(body, place, text) {
  const start = performance.now();
  setState("running", "Reading the prompt");
  const response = await fetch(turns === null ? "/v1/completions" : "/v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify({model: models[place].id, ...body}),
    signal: running.signal,
  });
  if (!response.ok) throw new Error(await errorOf(response));
  return readAnswer(response, place, text, start);
}

// One model after the other, so that neither slows the other.
async function generate() {
  if (running !== null) return;
  running = new AbortController();
  const both = models.length > 1 && $("beside").checked, body = requestBody();
  begin(both);
  const text = openAnswer($("answer")), beside = both ? openAnswer($("beside-answer")) : null;
  try {
    const usage = await ask(body, 0, text);
    if (both) await ask(body, 1, beside);
    setState("done", usage === null ? "Done" : `Done: ${NUMBERS.format(usage.prompt_tokens)} ` +
      `tokens read, ${NUMBERS.format(usage.completion_tokens)} written`);
  } catch (error) {
    if (running.signal.aborted) {
      setState("stopped", "Stopped");
    } else {
      setState("failed", `Failed: ${error.message}`);
    }
  } finally {
    running = null;
    if (turns !== null && text.data !== "") {
      turns = [...body.messages, {role: "assistant", content: text.data}];
      $("prompt").value = "";
    }
    setState(document.body.dataset.state, $("status").textContent);
    if (windows !== null && $("table-details").open) fillTable();
  }
}

// ---- controls -----------------------------------------------------------------------------------

function setState(state, message) {
  $("status").textContent = message;
  $("generate").disabled = running !== null;
  $("stop").disabled = running === null;
  $("reset").disabled = running !== null;
  document.body.dataset.state = state;
}

function moveCursor(event) {
  if (windows === null) return;
  const heads = windows.kv_heads, count = windows.first_page.length;
  const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads}[event.key];
  if (step === undefined) return;
  event.preventDefault();
  if (cursor + step >= 0 && cursor + step < count) cursor += step;
  $("cell").textContent = cellText(windows, cursor);
  drawMap();
}

function pointAt(event) {
  if (windows === null) return;
  const box = $("map").getBoundingClientRect();
  const {left, top, cellWidth, cellHeight} = gridOf(box.width, box.height);
  const head = Math.floor((event.clientX - box.left - left) / cellWidth);
  const layer = Math.floor((event.clientY - box.top - top) / cellHeight);
  if (head < 0 || head >= windows.kv_heads || layer < 0 || layer >= windows.layers) return;
  cursor = layer * windows.kv_heads + head;
  $("cell").textContent = cellText(windows, cursor);
}

async function useExample() {
  try {
    const response = await fetch("/example.txt");
    if (!response.ok) throw new Error(await errorOf(response));
    $("prompt").value = await response.text() + (turns === null ? "" : QUESTION);
    if (turns !== null) $("temperature").value = 0;
    $("prompt").focus();
    setState("idle", `Two chapters of a novel: ${NUMBERS.format($("prompt").value.length)} ` +
      "characters");
  } catch (error) {
    setState("failed", `Failed: ${error.message}`);
  }
}

function redraw() {
  drawMap();
  drawHistory();
}

function start() {
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("reset").addEventListener("click", () => {
    turns = [];
    for (const box of BOXES) $(box).replaceChildren();
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
  $("map").addEventListener("keydown", moveCursor);
  $("map").addEventListener("pointermove", pointAt);
  for (const kind of ["focus", "blur"]) $("map").addEventListener(kind, drawMap);
  $("table-details").addEventListener("toggle", () => windows !== null && fillTable());
  $("api-key").addEventListener("change", () => showModel().catch(() => {}));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
  showModel().catch((error) => setState("failed", `Failed: ${error.message}`));
}

start();
