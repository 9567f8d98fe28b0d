// What the reader looks for, and whether letters are keys: it is kept in the hash of the address, which is never sent to
// the exporter. A page is live whenever it is opened.
const wish = { q: "", underused: false, unhealthy: false, order: "", keys: true, live: true };
let ranking = []; // keys of GPUs, the busiest first; it is renewed now and then, so that rows do not jump
let ranked = 0; // when that was
const rankingMS = 15000;

function readHash() {
  const hash = new URLSearchParams(location.hash.slice(1));
  wish.q = hash.get("q") || "";
  wish.underused = hash.has("underused");
  wish.unhealthy = hash.has("unhealthy");
  wish.order = hash.get("order") === "busiest" ? "busiest" : "";
  wish.keys = hash.get("keys") !== "off";
}

function writeHash() {
  const hash = new URLSearchParams();
  if (wish.q) hash.set("q", wish.q);
  if (wish.underused) hash.set("underused", "");
  if (wish.unhealthy) hash.set("unhealthy", "");
  if (wish.order) hash.set("order", wish.order);
  if (!wish.keys) hash.set("keys", "off");
  const text = hash.toString().replace(/=(?=&|$)/g, "");
  history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
}

// Brings a content into the order that the reader has chosen, and hides what is not looked for. It is the same for the
// content that is shown and for one that is about to be.
function arrange(main) {
  const rows = [...main.querySelectorAll(".gpu")];
  if (!rows.length) return;
  const list = rows[0].parentNode;
  const wanted = order(rows.slice());
  if (wanted.some((row, i) => row !== rows[i])) wanted.forEach((row) => place(list, row, null));
  showCount(rows.map(filter));
}

// Returns the rows as they are to stand. They come in the order of the exporter, or as arranged before.
function order(rows) {
  if (wish.order !== "busiest") {
    return rows.sort((a, b) => a.dataset.index - b.dataset.index);
  }
  if (Date.now() - ranked > rankingMS) {
    ranked = Date.now();
    ranking = rows.slice().sort((a, b) => b.dataset.busy - a.dataset.busy || a.dataset.index - b.dataset.index)
      .map((row) => row.dataset.key);
  }
  const rank = (row) => (ranking.includes(row.dataset.key) ? ranking.indexOf(row.dataset.key) : ranking.length);
  return rows.sort((a, b) => rank(a) - rank(b) || a.dataset.index - b.dataset.index);
}

// Hides a GPU unless it or one of its slices is looked for, and marks these if they are not all. Returns how many slices
// it has and shows: the block of a whole GPU is none.
function filter(row) {
  const blocks = [...row.querySelectorAll(".strip > .block[data-find]")];
  const found = blocks.filter((block) => isWanted(row, block));
  const some = found.length > 0 && found.length < blocks.length;
  row.hidden = !found.length && !isWanted(row, row);
  for (const block of blocks) {
    block.classList.toggle("found", some && found.includes(block));
    block.classList.toggle("other", some && !found.includes(block));
  }
  const isSlice = (block) => block.dataset.key.startsWith("gi-");
  return { shown: !row.hidden, slices: blocks.filter(isSlice).length, found: found.filter(isSlice).length };
}

// Reports whether a device has all words and properties that are looked for, its GPU's included.
function isWanted(row, device) {
  const names = (row.dataset.find + " " + device.dataset.find).toLowerCase();
  const is = (row.dataset.is || "") + " " + (device.dataset.is || "");
  return wish.q.toLowerCase().split(/\s+/).every((word) => names.includes(word) || is.includes(word)) &&
    (!wish.underused || is.includes("underused")) && (!wish.unhealthy || is.includes("unhealthy"));
}

function showCount(counts) {
  const shown = counts.filter((c) => c.shown);
  const sum = (of, key) => of.reduce((n, c) => n + c[key], 0);
  const slices = sum(counts, "slices");
  const text = shown.length + " of " + counts.length + " GPUs" +
    (slices ? ", " + sum(shown, "found") + " of " + slices + " slices" : "") + " shown";
  const line = document.getElementById("shown");
  if (line && line.textContent !== text) line.textContent = text;
}

// Shows what the reader looks for in the form.
function fillForm() {
  document.getElementById("query").value = wish.q;
  document.getElementById("is-underused").checked = wish.underused;
  document.getElementById("is-unhealthy").checked = wish.unhealthy;
  document.getElementById("order").value = wish.order || "index";
  document.getElementById("keys").checked = wish.keys;
  document.getElementById("live").checked = wish.live;
}

function readForm() {
  wish.q = document.getElementById("query").value;
  wish.underused = document.getElementById("is-underused").checked;
  wish.unhealthy = document.getElementById("is-unhealthy").checked;
  wish.order = document.getElementById("order").value === "busiest" ? "busiest" : "";
  wish.keys = document.getElementById("keys").checked;
  const live = document.getElementById("live").checked;
  if (live !== wish.live) {
    wish.live = live;
    followReader();
  }
  find();
}

function find() {
  ranked = 0;
  writeHash();
  arrange(content());
}

function readAddress() {
  readHash();
  fillForm();
  arrange(content());
}

// The form appears with the first GPU, and it is the script's own from then on.
function startForm() {
  const form = document.getElementById("find");
  if (!form || !form.hidden) return;
  form.hidden = false;
  form.addEventListener("input", readForm);
  form.addEventListener("submit", (event) => event.preventDefault());
  readAddress();
}

function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const query = document.getElementById("query");
  if (!query) return;
  if (event.key === "Escape") return back(query);
  if (!wish.keys || event.target.matches("input, select")) return;
  if (event.key === "/") {
    event.preventDefault();
    query.focus();
    query.select();
  }
  if (event.key === "j") step(1);
  if (event.key === "k") step(-1);
}

// Moves the focus to the next or previous GPU that is shown. Enter opens it.
function step(by) {
  const rows = [...document.querySelectorAll(".gpu:not([hidden]) > summary")];
  const at = rows.findIndex((row) => row.parentNode.contains(document.activeElement));
  const next = rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)];
  if (!next) return;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

// Hides what a sparkline says, closes the GPU that has the focus, or else clears what is looked for.
function back(query) {
  if (!document.getElementById("tip").hidden) return unpoint();
  const row = document.activeElement.closest(".gpu[open]");
  if (row) {
    row.open = false;
    return row.querySelector("summary").focus();
  }
  wish.q = "";
  wish.underused = wish.unhealthy = false;
  fillForm();
  find();
  query.blur();
}

// Selecting a name in a row does not open it.
function keepSelection(event) {
  const summary = event.target.closest("summary");
  const selection = getSelection();
  if (summary && event.detail && !selection.isCollapsed && selection.containsNode(summary, true)) event.preventDefault();
}
