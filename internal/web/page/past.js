// The last minutes as sparklines. The exporter keeps them in memory: see /api/v1/node/history.
const pastMS = 15000;
let past = null; // the document
let series = new Map(); // its devices by key
const markNames = { "layout-change": "layout changed", xid: "XID" };

async function fetchPast() {
  if (isPaused()) return;
  try {
    const answer = await fetch("api/v1/node/history", { cache: "no-cache", signal: AbortSignal.timeout(pastMS) });
    if (!answer.ok) return;
    past = await answer.json();
  } catch (e) {
    return; // the page itself says so if the exporter does not answer
  }
  series = new Map(past.devices.filter((d) => !d.gone).map((d) => [deviceKey(d), d]));
  drawAll();
  showSince();
}

// Returns the key that a device has in the page, after that of its GPU: "7.2/0.2", instance and generation.
function deviceKey(d) {
  let key = d.uuid;
  if (d.computeInstance !== undefined) return key + "/" + instanceKeys.get(key + "/" + d.gpuInstance) + "/" + d.computeInstance + "." + d.generation;
  if (d.gpuInstance !== undefined) {
    key += "/" + d.gpuInstance + "." + d.generation;
    instanceKeys.set(d.uuid + "/" + d.gpuInstance, d.gpuInstance + "." + d.generation);
  }
  return key;
}

// The present instances by GPU and id: history names them before their compute instances.
const instanceKeys = new Map();

function keyOfSpark(spark) {
  const gpu = spark.closest(".gpu").dataset.key;
  const row = spark.closest("tr");
  return row ? gpu + "/" + row.dataset.key : gpu;
}

// Draws the sparklines that can be seen. We measure all before we draw any: in turns, each would cost a layout.
function drawAll() {
  if (!past) return;
  const seen = [];
  for (const spark of document.querySelectorAll(".spark")) {
    const gpu = spark.closest(".gpu");
    if (gpu.hidden || !(gpu.open || spark.closest("summary"))) continue;
    const device = series.get(keyOfSpark(spark));
    const values = device && device[spark.dataset.past];
    spark.classList.toggle("drawn", Boolean(values)); // it takes no room while it is empty
    if (values) seen.push({ spark, device, values });
    else spark.replaceChildren();
  }
  for (const s of seen) s.scale = newScale(s.spark, s.values);
  seen.forEach(draw);
}

function draw({ spark, device, values, scale }) {
  const svg = element("svg", { viewBox: "0 0 " + scale.width + " " + scale.height, "aria-hidden": "true" });
  const marks = marksOf(device);
  svg.append(element("path", { class: "area", d: areaPath(values, scale) }));
  svg.append(element("path", { class: "line", d: linePath(values, scale) }));
  for (const mark of marks) svg.append(drawMark(mark, scale));
  svg.append(element("path", { class: "cursor" }));
  spark.replaceChildren(svg);
  spark.chart = { values, scale, marks };
  if (!spark.closest("summary")) describe(spark, values.length - 1);
}

function element(name, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  return e;
}

// A sparkline spans 15 minutes, however much of them is known. Its height is that of the quantity's limit. Power of
// instances has none, and goes up to the largest value of all instances of the GPU; a whole GPU whose limit is not known
// goes up to its own largest value.
function newScale(spark, values) {
  const width = spark.clientWidth || 80;
  const height = spark.clientHeight || 22;
  const points = (15 * 60) / past.stepSeconds;
  const max = Number(spark.dataset.max) || largest(spark);
  return {
    width, height,
    x: (i) => width - ((values.length - 1 - i) * width) / (points - 1),
    y: (v) => height - 1 - Math.min(v / max, 1) * (height - 2),
    index: (x) => Math.round(values.length - 1 - ((width - x) * (points - 1)) / width),
    time: (i) => Date.parse(past.until) - (values.length - 1 - i) * past.stepSeconds * 1000,
  };
}

function largest(spark) {
  const gpu = spark.closest(".gpu").dataset.key;
  const isInstance = Boolean(spark.closest("tr"));
  let max = 1;
  for (const d of series.values()) {
    if (d.uuid !== gpu || (d.gpuInstance !== undefined) !== isInstance) continue;
    for (const v of d[spark.dataset.past] || []) max = Math.max(max, v);
  }
  return max;
}

// A gap in the values is a gap in the line.
function linePath(values, scale) {
  let d = "";
  values.forEach((v, i) => {
    if (v === null) return;
    const begins = i === 0 || values[i - 1] === null;
    d += (begins ? "M" : "L") + scale.x(i).toFixed(1) + " " + scale.y(v).toFixed(1) + (begins ? "h.1" : "");
  });
  return d;
}

function areaPath(values, scale) {
  let d = "";
  values.forEach((v, i) => {
    if (v === null) return;
    const x = scale.x(i).toFixed(1);
    d += (i === 0 || values[i - 1] === null ? "M" + x + " " + scale.height : "") + "L" + x + " " + scale.y(v).toFixed(1);
    if (i === values.length - 1 || values[i + 1] === null) d += "V" + scale.height + "Z";
  });
  return d;
}

// Returns the marks of a device: layout changes are the whole GPU's, XIDs of an instance its own and its GPU's. An
// instance that had the same id before has another generation.
function marksOf(device) {
  const instance = instanceKeys.get(device.uuid + "/" + device.gpuInstance);
  return past.marks.filter((m) => m.uuid === device.uuid && (device.gpuInstance === undefined ||
    m.kind !== "xid" || m.gpuInstance + "." + m.generation === instance));
}

// A layout change is a diamond on a dashed line, an XID a triangle on a full one.
function drawMark(mark, scale) {
  const span = 15 * 60 * 1000;
  const x = scale.width - ((Date.parse(past.until) - Date.parse(mark.time)) * scale.width) / span;
  if (mark.kind === "xid") {
    return element("path", { class: "mark xid", d: "M" + x + " 7V" + scale.height + "M" + (x - 4) + " 7h8l-4 -7z" });
  }
  const at = element("path", { class: "mark layout", d: "M" + x + " 7V" + scale.height + "M" + x + " 0l4 4l-4 4l-4 -4z" });
  at.setAttribute("stroke-dasharray", "2 1");
  return at;
}

const units = {
  memoryUsedBytes: (v) => (v / 2 ** 30).toFixed(1) + " GiB",
  smActivityRatio: (v) => Math.round(100 * v) + " %",
  powerWatts: (v) => Math.round(v) + " W",
};
const quantities = { memoryUsedBytes: "Memory", smActivityRatio: "SM activity", powerWatts: "Power" };

// Returns a time of the day with its zone, since the page has times in UTC, too.
function clock(time) {
  return new Date(time).toLocaleTimeString(undefined, { timeZoneName: "short" });
}

// Returns what a sparkline shows at a point: time, value, and what happened.
function textAt(spark, i) {
  const { values, scale, marks } = spark.chart;
  const v = values[i];
  const at = scale.time(i);
  let text = clock(at) + "  " + (v === null ? "not known" : units[spark.dataset.past](v));
  for (const m of marks) {
    if (Math.abs(Date.parse(m.time) - at) > 2 * past.stepSeconds * 1000) continue;
    text += "\n" + clock(m.time) + "  " + markNames[m.kind];
    if (m.xid) text += " " + m.xid + (m.name ? ", " + m.name : "");
  }
  return text;
}

// Returns what a sparkline is about: "GPU 3", or "GPU 3, 1g.10gb GI 7 at 0:1".
function deviceName(spark) {
  const gpu = "GPU " + spark.closest(".gpu").dataset.index;
  const row = spark.closest("tr");
  return row ? gpu + ", " + [...row.cells[0].childNodes].slice(0, 2).map((node) => node.textContent.trim()).join(" ") : gpu;
}

// A sparkline in a card can be walked along by keys: it is a slider over time.
function describe(spark, i) {
  const last = spark.chart.values.length - 1;
  if (spark === document.activeElement) i = Math.min(Number(spark.getAttribute("aria-valuenow")), last);
  const attributes = {
    tabindex: 0, role: "slider", "aria-readonly": "true",
    "aria-label": deviceName(spark) + ", " + quantities[spark.dataset.past] + ", the last minutes",
    "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": i, "aria-valuetext": textAt(spark, i),
  };
  for (const key in attributes) spark.setAttribute(key, attributes[key]);
}

function walk(event) {
  const spark = event.target;
  if (!spark.chart || spark.closest("summary")) return;
  const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
  if (!by) return;
  event.preventDefault();
  const at = Number(spark.getAttribute("aria-valuenow"));
  point(spark, Math.min(Math.max(at + by, 0), spark.chart.values.length - 1));
}

// Shows time and value of a point beside it.
function point(spark, i) {
  const { scale } = spark.chart;
  const text = textAt(spark, i);
  spark.querySelector(".cursor").setAttribute("d", "M" + scale.x(i) + " 0V" + scale.height);
  if (spark.hasAttribute("role")) {
    spark.setAttribute("aria-valuenow", i);
    spark.setAttribute("aria-valuetext", text);
  }
  const tip = document.getElementById("tip");
  const box = spark.getBoundingClientRect();
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(box.left + scale.x(i), innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, box.top - tip.offsetHeight) + "px";
}

function hover(event) {
  if (event.target.id === "tip") return; // it may be read at leisure
  const spark = event.target.closest && event.target.closest(".spark");
  if (!spark || !spark.chart || !spark.firstChild) return unpoint();
  const x = event.clientX - spark.getBoundingClientRect().left;
  point(spark, Math.min(Math.max(spark.chart.scale.index(x), 0), spark.chart.values.length - 1));
}

function focusSpark(event) {
  if (event.target.chart) point(event.target, Number(event.target.getAttribute("aria-valuenow")));
}

function unpoint() {
  document.getElementById("tip").hidden = true;
  for (const c of document.querySelectorAll(".cursor[d]")) c.removeAttribute("d");
}

function showSince() {
  const line = document.getElementById("kept");
  if (!line || !past.since) return;
  line.hidden = false;
  const text = "The lines show the last 15 minutes, kept since " + new Date(past.since).toLocaleString() +
    ": a restart of the exporter forgets them. ◆ layout change, ▲ XID.";
  if (line.textContent !== text) line.textContent = text;
}
