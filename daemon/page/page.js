"use strict";
// Draws the status that the daemon sends once a second. Names of files and log lines come from anybody, so text is set as
// text only: no markup is ever made from data.

const KINDS = ["busy", "unproven", "host", "h2d", "feed", "output", "capture", "startup", "down", "drain", "no_work"];
const NAMES = {
  busy: "busy", unproven: "unproven", host: "idle: host", h2d: "idle: copies", feed: "idle: feed", output: "idle: output",
  capture: "idle: capture", startup: "idle: start", down: "idle: down", drain: "idle: drain", no_work: "idle: no work",
};
const BAND_SLICES = 120;
const MAX_LOG_LINES = 200;
const SILENCE_MS = 4000;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const shorter = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const percent = (share) => `${shorter.format(100 * share)} %`;

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "-";
  if (seconds < 60) return `${shorter.format(seconds)} s`;
  const [d, h, m, s] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return s ? `${m} min ${s} s` : `${m} min`;
}

const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour12: false });
const moment = (seconds) => new Date(1000 * seconds).toLocaleString([], { hour12: false });

function showState(text, kind) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text;
  state.className = `pill ${kind}`;
}

function showList(id, texts) {
  byId(id).replaceChildren(...texts.map((text) => make("li", text)));
  byId(id).hidden = texts.length === 0;
}

const shareOf = (slice, kind) => (kind === "busy" || kind === "unproven" ? slice[kind] : slice.idle[kind] || 0);

function drawBand(band) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "band");
  svg.setAttribute("viewBox", `0 0 ${BAND_SLICES} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("shape-rendering", "crispEdges");
  svg.setAttribute("role", "img");
  band.forEach((slice, place) => {
    let top = 100;
    for (const kind of KINDS) {
      const height = 100 * shareOf(slice, kind);
      if (height <= 0) continue;
      top -= height;
      const part = document.createElementNS(SVG, "rect");
      part.setAttribute("class", `k-${kind}`);
      part.setAttribute("x", BAND_SLICES - band.length + place);
      part.setAttribute("y", top);
      part.setAttribute("width", 1.02);
      part.setAttribute("height", height);
      svg.append(part);
    }
  });
  return svg;
}

function drawLegend(band) {
  const list = make("ul", undefined, "legend");
  const words = [];
  for (const kind of KINDS) {
    const share = band.reduce((sum, slice) => sum + shareOf(slice, kind), 0) / Math.max(1, band.length);
    if (share < 0.0005) continue;
    const item = make("li");
    item.append(make("i", undefined, `k-${kind}`), `${NAMES[kind]} ${percent(share)}`);
    list.append(item);
    words.push(`${NAMES[kind]} ${percent(share)}`);
  }
  return [list, words.join(", ")];
}

function figures(pairs) {
  const list = make("dl", undefined, "figures");
  for (const [name, value] of pairs) {
    const group = make("div");
    group.append(make("dt", name), make("dd", value));
    list.append(group);
  }
  return list;
}

function drawEngine(engine, sliceSeconds) {
  const card = make("article", undefined, "engine");
  const head = make("div", undefined, "engine-head");
  const kind = ["ready", "unloaded"].includes(engine.state) ? "good" : engine.state === "down" ? "bad" : "warn";
  head.append(make("strong", engine.name), make("span", engine.state, kind), make("span", engine.model),
    make("span", engine.schedule, "quiet"));
  const band = drawBand(engine.band);
  const [legend, words] = drawLegend(engine.band);
  band.setAttribute("aria-label", `The last ${duration(engine.band.length * sliceSeconds)}: ${words || "nothing yet"}`);
  const axis = make("div", undefined, "band-axis");
  axis.append(make("span", `${duration(BAND_SLICES * sliceSeconds)} ago`), make("span", "now"));
  const blocks = engine.num_blocks ? percent(engine.num_used_blocks / engine.num_blocks) : "-";
  card.append(head, make("p", engine.detail, "engine-detail"), band, axis, legend, figures([
    ["busy, last minute", percent(engine.busy_ratio)],
    ["generated tokens/s", number.format(engine.generation_tokens_per_s)],
    ["prompt tokens/s", number.format(engine.prompt_tokens_per_s)],
    ["running", `${number.format(engine.num_running)} of ${number.format(engine.num_seats)}`],
    ["waiting", number.format(engine.num_waiting)],
    ["KV cache", blocks],
    ["restarts", number.format(engine.num_restarts)],
  ]));
  return card;
}

function cell(value, name, className) {
  const found = value instanceof Node ? make("td") : make("td", value);
  if (value instanceof Node) found.append(value);
  if (name) found.dataset.name = name;
  if (className) found.className = className;
  return found;
}

function drawProgress(file) {
  const box = make("div");
  const done = file.num_done + file.num_failed;
  const bar = make("progress");
  bar.setAttribute("aria-label", `progress of ${file.name}`);
  if (file.num_total !== null) {
    bar.max = Math.max(1, file.num_total);
    bar.value = done;
  }
  box.append(bar, make("div", `${number.format(done)} of ${file.num_total === null ? "?" : number.format(file.num_total)}`, "quiet"));
  return box;
}

function drawRunning(pipeline, file) {
  const row = make("tr");
  row.append(cell(`${pipeline.name}/${file.name}`, "", "name"), cell(file.state.replace("_", " ")), cell(drawProgress(file), "", "wide"),
    cell(number.format(file.num_failed), "errors", "number"), cell(shorter.format(file.tokens_per_s), "tokens/s", "number"),
    cell(duration(file.left_s), "left", "number"));
  return row;
}

function drawEnded(pipeline, file) {
  const row = make("tr");
  const link = make("a", "report");
  link.href = `/report/${encodeURIComponent(pipeline.name)}/${file.number}`;
  const kind = file.status !== "completed" ? "bad" : file.num_failed ? "warn" : "good";
  const numEnded = file.num_done + file.num_failed;
  const isKnown = numEnded > 0 || file.status !== "failed";  // of one that could not be run there are none to count
  row.append(cell(`${pipeline.name}/${file.name}`, "", "name"), cell(make("span", file.status, kind)),
    cell(isKnown ? number.format(numEnded) : "-", "requests", "number"),
    cell(isKnown ? number.format(file.num_failed) : "-", "errors", "number"), cell(duration(file.taken_s), "took", "number"),
    cell(clock(file.ended_s)), cell(link));
  return row;
}

function fill(id, rows) {
  const table = byId(id);
  const active = document.activeElement;
  const href = table.contains(active) ? active.getAttribute("href") : null;
  table.tBodies[0].replaceChildren(...rows);
  table.hidden = rows.length === 0;
  if (href) for (const link of table.querySelectorAll("a")) if (link.getAttribute("href") === href) link.focus();
}

function drawFiles(pipelines) {
  const waiting = pipelines.map((p) => `${number.format(p.num_waiting_files)} in the inbox of ${p.name}`).join(", ");
  const running = pipelines.flatMap((p) => p.files.map((file) => drawRunning(p, file)));
  const ended = pipelines.flatMap((p) => p.ended.map((file) => [file.ended_s, drawEnded(p, file)]));
  ended.sort((one, other) => other[0] - one[0]);
  byId("inbox").textContent = `${waiting}${running.length ? "" : "; no file is being run"}.`;
  showList("left", pipelines.flatMap((p) => p.left_files.map((text) => `${p.name}: ${text}`)));
  fill("running", running);
  fill("ended", ended.map((entry) => entry[1]));
  byId("ended-title").hidden = ended.length === 0;
}

function drawConfig(config) {
  const checked = config.checking ? `It was changed: ${config.checking}. ` : "";
  const words = checked + (config.error === null ? `In force since ${moment(config.changed_s)}.`
    : `The change at ${moment(config.changed_s)} was refused, the one before it holds: ${config.error}`);
  byId("config").textContent = words;
  byId("config").className = config.error === null ? "" : "notice";
}

function addLog(lines) {
  const log = byId("log");
  const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  for (const line of lines) {
    const item = make("li", undefined, line.level);
    item.append(make("time", clock(line.time_s)), line.message);
    log.append(item);
  }
  while (log.childElementCount > MAX_LOG_LINES) log.firstElementChild.remove();
  if (lines.length && isAtEnd) log.scrollTop = log.scrollHeight;
}

function wrongs(event) {
  const paused = event.pipelines.filter((p) => p.paused_because !== null);
  return [
    ...event.reasons,
    ...paused.map((p) => `${p.name} takes no files: ${p.paused_because}`),
    ...(event.config.error === null ? [] : ["The last change of the configuration was refused; below it says why."]),
  ];
}

function draw(event) {
  if (event.is_stalled) showState("the daemon hangs", "bad");
  else if (event.reasons.length) showState(event.is_draining ? "shutting down" : "not ready", "warn");
  else showState("ready", "good");
  byId("uptime").textContent = `up for ${duration(event.uptime_s)}`;
  showList("wrongs", wrongs(event));
  byId("engines").replaceChildren(...event.engines.map((engine) => drawEngine(engine, event.slice_s)));
  drawFiles(event.pipelines);
  drawConfig(event.config);
  addLog(event.log);
}

let lastEventMs = Date.now();
const events = new EventSource("/events");
events.onopen = () => byId("log").replaceChildren(); // the first event brings all lines that are kept
events.onmessage = (message) => {
  lastEventMs = Date.now();
  draw(JSON.parse(message.data));
  document.documentElement.dataset.drawn = "yes";
};
setInterval(() => {
  if (Date.now() - lastEventMs > SILENCE_MS) showState("connection lost", "bad");
}, 1000);
