// What a run looks like: figures, map, text and history of the moment that is shown. A run is plain
// JSON; recorded.js has one that this page has made.
"use strict";

const MOST_MOMENTS = 2000;
const MOST_NUMBERS = 1 << 20;  // of all moments' first pages: 8 MiB
const PAGE_TOKENS = 64;        // the prompt's tokens are placed in its text every so many
const TABLE_EVERY_MS = 500;
const PLAY_MS = 9000;
const FONT = {"font-family": "system-ui, sans-serif", "font-size": 11};
const NUMBERS = new Intl.NumberFormat("en");

const $ = (id) => document.getElementById(id);

let run = null;      // what is shown
let moment = null;   // of its history; null: the newest
let cursor = 0;      // the head whose text is shown
let player = null;   // the interval of a replay
let drawing = false; // a frame has been asked for
let tableAt = 0;

// ---- runs ---------------------------------------------------------------------------------------

function newRun(model, prompt) {
  // starts: where the prompt's pages begin, in characters; counted: the tokens of its text alone.
  return {model, prompt, answer: "", prompt_tokens: 0, counted: 0, starts: null, history: []};
}

// The log of the most that any row of the prompt or of the answer lost, as far as it is known.
function mostLost({prompt_lost, answer_lost}) {
  const logs = [prompt_lost, answer_lost].filter(Boolean).map(({max_log}) => max_log);
  return logs.length > 0 ? Math.max(...logs) : undefined;
}

// Takes a fox.windows event: a new moment where a page came or went, else the last one moves on.
function addMoment(to, event) {
  const {layers, kv_heads, page_size, page_bytes, acp: {log_tolerance, bound_log_prob}} =
    event;
  Object.assign(to, {layers, kv_heads, page_size, page_bytes, log_tolerance, bound_log_prob});
  const now = {tokens: event.tokens, chars: to.answer.length,
               mass: event.acp.max_log_evicted_mass, lost: mostLost(event.acp),
               first: event.first_page};
  const last = to.history.at(-1);
  if (last !== undefined && Math.ceil(last.tokens / page_size) === pagesOf(to, now) &&
      last.first.every((page, head) => page === now.first[head])) {
    Object.assign(last, now);
    return;
  }
  if (to.history.length >= Math.min(MOST_MOMENTS, MOST_NUMBERS / now.first.length)) {
    to.history = to.history.filter((_, i) => i % 2 === 0);
  }
  to.history.push(now);
}

const shown = () => moment ?? run.history.at(-1);
const pagesOf = (of, at) => Math.ceil(at.tokens / of.page_size);

function memoryOf(of, at) {
  const pages = pagesOf(of, at);
  const kept = at.first.reduce((sum, first) => sum + pages - first, 0);
  return {kept: kept * of.page_bytes, unpruned: at.first.length * pages * of.page_bytes};
}

// Where each page of the prompt begins, from its tokens' texts; what those have beyond the prompt
// (a first token, a first space) lies before it.
function placeTokens(of, names) {
  const encoder = new TextEncoder();
  const sizes = names.map((name) => {
    if (!name.startsWith("bytes:")) return encoder.encode(name).length;
    return (name.length - "bytes:".length) / "\\x00".length;
  });
  const bytes = encoder.encode(of.prompt), decoder = new TextDecoder();
  let at = bytes.length - sizes.reduce((sum, size) => sum + size, 0), chars = 0, from = 0;
  of.starts = [];
  sizes.forEach((size, token) => {
    if (token % PAGE_TOKENS === 0) {
      const to = Math.max(at, 0);
      chars += decoder.decode(bytes.subarray(from, to), {stream: true}).length;
      from = to;
      of.starts.push(chars);
    }
    at += size;
  });
  of.counted = names.length;
  of.prompt_tokens = Math.max(of.prompt_tokens, of.counted);
}

// The characters of the text before a token: exact where pages begin, even in between. What a chat
// adds to the text counts as before it.
function charsBefore(tokens) {
  const added = run.prompt_tokens - run.counted;
  const points = run.starts.map((chars, page) => [page * PAGE_TOKENS + added, chars]);
  points.unshift([0, 0]);
  points.push([run.prompt_tokens, run.prompt.length]);
  for (const at of run.history) {
    if (at.tokens > run.prompt_tokens) points.push([at.tokens, run.prompt.length + at.chars]);
  }
  const after = points.findIndex(([at]) => at > tokens);
  if (after < 0) return points.at(-1)[1];
  const [[low, from], [high, to]] = [points[after - 1], points[after]];
  return Math.round(from + (to - from) * (tokens - low) / (high - low));
}

// ---- words and numbers --------------------------------------------------------------------------

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.length; ++unit) bytes /= 1024;
  return `${bytes.toFixed(unit > 0 && bytes < 100 ? 1 : 0)} ${units[unit]}`;
}

function cellText(index) {
  const at = shown(), layer = Math.floor(index / run.kv_heads), head = index % run.kv_heads;
  const tokens = NUMBERS.format(at.tokens - at.first[index] * run.page_size);
  const held = at.first[index] === 0 ? "all" : `the last ${tokens}`;
  return `Layer ${layer}, head ${head} holds ${held} of ${NUMBERS.format(at.tokens)} tokens`;
}

// A bound on a share as a percentage, rounded up to three digits.
function share(log) {
  const percent = 100 * Math.exp(Math.max(log, -600));
  const digits = 10 ** (2 - Math.floor(Math.log10(percent)));
  return `${(Math.ceil(percent * digits) / digits).toPrecision(3)}%`;
}

function certificateText() {
  const {mass} = shown(), most = run.log_tolerance;
  if (most === null) return "Certificate: nothing may be forgotten, and nothing was.";
  if (mass === null) return `Certificate: nothing was given up yet (log eps ${most}).`;
  return `Proven: at most ${share(mass)} of any row's attention can be lost ` +
    `(log\u00a0${mass.toFixed(4)}\u00a0${mass <= most ? "\u2264" : ">"}\u00a0${most}).`;
}

// What eviction does to rows and to the answer, as far as the server tells.
function effectText() {
  const {mass, lost} = shown(), nats = run.bound_log_prob, said = [];
  if (mass === null || run.log_tolerance === null) return "";
  if (lost !== undefined) {
    said.push("By its own bound no row that was computed here lost more than " +
      `${share(lost)}.`);
  }
  if (nats !== undefined) {
    said.push("To first order, calibrated, what can be lost moves a token's log-probability by at " +
      `most ${nats.toPrecision(2)}\u00a0nats.`);
  }
  return said.join(" ");
}

function showFigures() {
  const at = shown(), {kept, unpruned} = memoryOf(run, at), pages = run.history.length - 1;
  const index = moment === null ? pages : run.history.indexOf(moment);
  $("kept").textContent = bytesText(kept);
  $("unpruned").textContent = bytesText(unpruned);
  $("share").textContent = unpruned > 0 ? `${(100 * kept / unpruned).toFixed(1)}%` : "-";
  const times = kept > 0 ? unpruned / kept : 1;
  $("times").textContent = times >= 1.1 ? `, ${times.toFixed(1)}\u00d7 less` : "";
  $("tokens").textContent = NUMBERS.format(at.tokens);
  $("certificate").textContent = certificateText();
  $("effect").textContent = effectText();
  const broken = at.mass !== null && at.mass > run.log_tolerance;
  $("certificate").className = "certificate " + (broken ? "broken" : "sound");
  $("cell").textContent = cellText(cursor);
  // A prompt from the cache has one moment: there is nothing to replay.
  $("play").disabled = $("moment").disabled = pages === 0;
  $("moment").max = pages;
  $("moment").value = index;
  const part = at.tokens <= run.prompt_tokens ? "read" : "read and written";
  $("moment-text").textContent = `${NUMBERS.format(at.tokens)} tokens ${part}`;
  $("moment").setAttribute("aria-valuetext", $("moment-text").textContent);
  $("play").textContent = player === null ? "Play" : "Pause";
}

// The text so far: what the head has given back, faded, and what it holds.
function showText() {
  $("held").hidden = run.starts === null;
  if (run.starts === null) return;
  const at = shown(), text = run.prompt + run.answer;
  const from = charsBefore(at.first[cursor] * run.page_size), to = charsBefore(at.tokens);
  const [gone, holds] = [text.slice(0, from), text.slice(from, to)];
  if ($("holds").textContent !== holds) $("holds").textContent = holds;
  if ($("gone").textContent === gone) return;
  $("gone").textContent = gone;
  $("held").scrollTop = $("holds").offsetTop - $("held").offsetTop - 60;
}

// ---- drawing ------------------------------------------------------------------------------------

function colors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {low: of("--kept-low"), high: of("--kept-high"), gone: of("--gone"), ink: of("--ink"),
          soft: of("--soft"), plain: of("--plain"), accent: of("--accent"), line: of("--line"),
          page: of("--page")};
}

function shape(name, attributes, text = "") {
  const element = document.createElementNS($("map").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

// Fits a drawing to its place on the screen; returns its size in CSS pixels.
function sizeOf(svg) {
  const {width, height} = svg.getBoundingClientRect();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return {width, height};
}

// Between two #rrggbb colours; `share` in [0, 1].
function mix(low, high, share) {
  const part = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
  const at = (i) => Math.round(part(low, i) + share * (part(high, i) - part(low, i)));
  return `rgb(${at(0)}, ${at(1)}, ${at(2)})`;
}

// Where the map's cells are: behind the numbers of layers, below those of heads.
function gridOf(width, height) {
  const left = 44, top = 18;
  return {left, top, cellWidth: Math.max(width - left, 0) / run.kv_heads,
          cellHeight: Math.max(height - top, 0) / run.layers};
}

function drawMap() {
  const {width, height} = sizeOf($("map")), color = colors(), at = shown();
  const {left, top, cellWidth, cellHeight} = gridOf(width, height), pages = pagesOf(run, at);
  const gap = Math.min(3, cellWidth / 4, cellHeight / 4), soft = {fill: color.soft, ...FONT};
  const shapes = [];
  const name = cellWidth > 44 ? "head " : "";
  for (let head = 0; head < run.kv_heads; head += cellWidth > 20 ? 1 : 4) {
    shapes.push(shape("text", {x: left + head * cellWidth, y: 11, ...soft}, name + head));
  }
  if (name === "") {
    shapes.push(shape("text", {x: left - 6, y: 11, "text-anchor": "end", ...soft}, "head"));
  }
  at.first.forEach((first, index) => {
    const layer = Math.floor(index / run.kv_heads), head = index % run.kv_heads;
    const x = left + head * cellWidth, y = top + layer * cellHeight;
    const room = cellWidth - gap, tall = cellHeight - gap;
    const share = pages > 0 ? (pages - first) / pages : 0;
    const kept = Math.max(room * share, share > 0 ? 2 : 0);  // one page of thousands still shows
    shapes.push(
      shape("rect", {x, y, width: room, height: tall, fill: color.gone}),
      shape("rect", {x: x + room - kept, y, width: kept, height: tall,
                     fill: mix(color.low, color.high, share)}));
    if (head === 0 && (cellHeight > 12 || layer % 4 === 0)) {
      const name = layer === 0 ? "layer 0" : String(layer);
      shapes.push(shape("text", {x: left - 6, y: y + tall / 2 + 4, "text-anchor": "end", ...soft},
                        name));
    }
    if (index === cursor) {
      shapes.push(shape("rect", {x, y, width: room, height: tall, fill: "none", stroke: color.ink,
                                 "stroke-width": 2}));
    }
  });
  $("map").replaceChildren(...shapes);
}

// A round number of tokens between two marks of the axis.
function stepOf(tokens, marks) {
  const rough = Math.max(tokens / marks, 1), power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((step) => step * power >= rough);
}

function drawHistory() {
  const {width, height} = sizeOf($("history")), color = colors();
  const points = run.history.map((at) => ({at, ...memoryOf(run, at)}));
  const {at: {tokens}, kept, unpruned} = points.at(-1);
  const [left, right, top, bottom] = [2, 74, 8, height - 20];
  const x = (at) => (left + at / Math.max(tokens, 1) * (width - left - right)).toFixed(1);
  const y = (bytes) => (bottom - bytes / Math.max(unpruned, 1) * (bottom - top)).toFixed(1);
  const line = (of) => points.map((point) => `L${x(point.at.tokens)} ${y(of(point))}`).join("");
  const soft = {fill: color.soft, ...FONT}, shapes = [], step = stepOf(tokens, width / 110);
  for (let mark = 0; mark <= tokens; mark += step) {
    const anchor = mark === 0 ? "start" : "middle";
    shapes.push(
      shape("path", {d: `M${x(mark)} ${top}V${bottom + 4}`, stroke: color.line}),
      shape("text", {x: x(mark), y: height - 4, "text-anchor": anchor, ...soft},
            NUMBERS.format(mark) + (mark === 0 ? " tokens" : "")));
  }
  const label = (bytes, at, fill, weight) => shape("text", {
    x: width - right + 6, y: at, ...FONT, "font-size": 13, "font-weight": weight, fill,
  }, bytesText(bytes));
  const keptAt = Math.max(Number(y(kept)) + 4, top + 24);
  shapes.push(
    shape("path", {d: `M${left} ${bottom}H${width - right}`, stroke: color.line}),
    shape("path", {d: `M${left} ${bottom}${line((point) => point.kept)}V${bottom}Z`,
                   fill: color.accent}),
    shape("path", {d: `M${left} ${bottom}${line((point) => point.unpruned)}`, fill: "none",
                   stroke: color.plain, "stroke-width": 2, "stroke-dasharray": "6 4"}),
    shape("path", {d: `M${x(shown().tokens)} ${top}V${bottom}`, stroke: color.ink}),
    label(unpruned, top + 6, color.plain, 400), label(kept, keptAt, color.accent, 700));
  $("history").replaceChildren(...shapes);
}

// Built once for a model, then only its numbers change.
function fillTable() {
  const table = $("table"), [head, body] = [table.tHead, table.tBodies[0]];
  const {layers, kv_heads: heads} = run, at = shown(), pages = pagesOf(run, at);
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
    const names = Array.from({length: heads}, (_, number) => `head ${number}`);
    head.replaceChildren(row("th", ["layer", ...names]));
    body.replaceChildren(...Array.from({length: layers}, (_, layer) =>
      row("td", [String(layer), ...Array(heads).fill("")])));
  }
  at.first.forEach((first, index) => {
    const cell = body.rows[Math.floor(index / heads)].cells[index % heads + 1];
    cell.textContent = String(pages - first);
  });
  table.caption.textContent = `Pages of ${run.page_size} tokens that each head keeps, of ${pages}`;
}

function drawAll() {
  drawing = false;
  if (moment !== null && !run.history.includes(moment)) moment = null;  // it was thinned out
  showFigures();
  showText();
  drawMap();
  drawHistory();
  const now = performance.now();
  if ($("table-details").open && (now - tableAt > TABLE_EVERY_MS || player === null)) {
    tableAt = now;
    fillTable();
  }
}

// Draws in the next frame, once whatever changes until then.
function draw() {
  if (drawing || run === null) return;
  drawing = true;
  requestAnimationFrame(drawAll);
}

// The map and its figures as a picture of their own, in the colours of the moment.
function pictureText() {
  const color = colors(), [, , width, height] = $("map").getAttribute("viewBox").split(" ");
  const top = 96, out = shape("svg", {viewBox: `-16 -16 ${+width + 32} ${+height + top + 32}`});
  const line = (y, size, fill, text) =>
    shape("text", {...FONT, x: 0, y, "font-size": size, "font-weight": size > 20 ? 700 : 400, fill},
          text);
  const group = shape("g", {transform: `translate(0 ${top})`});
  group.append(...$("map").cloneNode(true).childNodes);
  out.append(
    shape("rect", {x: -16, y: -16, width: +width + 32, height: +height + top + 32,
                   fill: color.page}),
    line(32, 34, color.accent,
         `${$("kept").textContent} instead of ${$("unpruned").textContent}`),
    line(56, 13, color.soft, `foxserve: keys and values of ${run.model} after ` +
         $("moment-text").textContent),
    line(76, 13, color.soft, $("certificate").textContent), group);
  return new XMLSerializer().serializeToString(out);
}

// ---- controls of the view -----------------------------------------------------------------------

function pause() {
  clearInterval(player);
  player = null;
}

function play() {
  const played = run, steps = run.history.length;
  let index = moment === null ? 0 : run.history.indexOf(moment);
  pause();
  player = setInterval(() => {
    if (run !== played || ++index >= run.history.length) {
      pause();
      moment = null;
    } else {
      moment = run.history[index];
    }
    draw();
  }, PLAY_MS / steps);
}

function show(next) {
  if (run === next) return;
  pause();
  run = next;
  document.body.toggleAttribute("data-recorded", run === RECORDED);
  moment = null;
  if (cursor >= run.layers * run.kv_heads) cursor = 0;
}

function moveCursor(event) {
  if (run === null) return;
  const heads = run.kv_heads, count = run.layers * heads;
  const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads}[event.key];
  if (step === undefined) return;
  event.preventDefault();
  if (cursor + step >= 0 && cursor + step < count) cursor += step;
  $("spoken").textContent = cellText(cursor);
  draw();
}

// The head below the pointer, or null.
function headAt(event) {
  const box = $("map").getBoundingClientRect();
  const {left, top, cellWidth, cellHeight} = gridOf(box.width, box.height);
  const head = Math.floor((event.clientX - box.left - left) / cellWidth);
  const layer = Math.floor((event.clientY - box.top - top) / cellHeight);
  const inside = head >= 0 && head < run.kv_heads && layer >= 0 && layer < run.layers;
  return inside ? layer * run.kv_heads + head : null;
}

function startView() {
  $("map").addEventListener("keydown", moveCursor);
  $("map").addEventListener("click", (event) => {
    if (run !== null) cursor = headAt(event) ?? cursor;
    draw();
  });
  $("moment").addEventListener("input", () => {
    pause();
    const last = run.history.length - 1, index = Number($("moment").value);
    moment = index < last ? run.history[index] : null;
    draw();
  });
  $("play").addEventListener("click", () => {
    if (player === null) play();
    else pause();
    draw();
  });
  $("save").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([pictureText()], {type: "image/svg+xml"}));
    link.download = "foxserve.svg";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  $("table-details").addEventListener("toggle", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => {
    $("gone").textContent = "";  // so that its end is scrolled to again
    draw();
  }).observe($("map"));
}
