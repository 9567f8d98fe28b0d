// Keeps the page up to date while it is visible: by the node's stream or, while there is none, by fetching the page
// again. Without scripts the browser reloads it.
const refreshMS = Number(content().dataset.refresh);
const retryMS = 30000; // until a stream that was refused is asked for again
// Durations are by performance.now(): the browser's clock may be set.
let received = performance.now(); // when the content was received
// How much the browser's clock is before the exporter's, by the content that came with the least delay. A slow link
// delays what the stream brings: its readings are older than they were when the exporter rendered them.
let clockLead = Infinity;
let stream = null;
let opened = -Infinity; // when the stream was asked for
let fetching = false;

function content() {
  return document.getElementById("node");
}

// Reports whether the page stays as it is: it cannot be seen, or the reader wants it so.
function isPaused() {
  return document.hidden || !wish.live;
}

// Compares the clocks by a content that has just come, and returns by how many milliseconds it is late. The first
// content of an answer is no older than the request for it, asked: if it seems so, one of the clocks was set. A later
// content, with asked null, may have waited behind others.
function compareClocks(node, asked) {
  const read = node.querySelector("time");
  if (!read) return 0;
  const lead = Date.now() - Number(read.dataset.rendered);
  const wasSet = asked !== null && lead - clockLead > Math.max(3 * refreshMS, performance.now() - asked);
  if (lead < clockLead || wasSet) clockLead = lead;
  return lead - clockLead;
}

// Shows a content that the exporter has rendered, and returns by how many milliseconds it is late.
function show(html, asked) {
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("node");
  // An exporter of another version has another script and style.
  if (!fresh || fresh.dataset.version !== content().dataset.version) {
    location.reload();
    return 0;
  }
  const late = compareClocks(fresh, asked);
  arrange(fresh);
  morph(content(), fresh);
  startForm();
  received = performance.now();
  showAge();
  return late;
}

// Follows the stream. What comes very late is behind in a queue: a new stream begins with the present.
function openStream() {
  opened = performance.now();
  let asked = opened; // by this script or, after a break, by the browser
  stream = new EventSource("api/v1/node/stream?view=page");
  stream.addEventListener("error", () => { asked = performance.now(); });
  stream.addEventListener("node", (event) => {
    const late = show(event.data, asked);
    asked = null;
    if (late <= 3 * refreshMS) return;
    closeStream();
    openStream();
  });
}

function closeStream() {
  if (stream) stream.close();
  stream = null;
}

// Fetches the page. An unreachable node often does not answer at all.
async function poll() {
  if (fetching) return;
  fetching = true;
  const asked = performance.now();
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(refreshMS) });
    if (!answer.ok) throw new Error(answer.statusText);
    show(await answer.text(), asked);
  } catch (e) {
    document.getElementById("lost").hidden = false;
  } finally {
    fetching = false;
  }
}

// A stream that is open may be idle, since there is no new reading, or dead: we ask now and then. The browser itself
// asks again for a stream that broke off, but not for one that was refused.
function check() {
  if (isPaused()) return;
  const refused = !stream || stream.readyState === EventSource.CLOSED;
  if (refused && performance.now() - opened > retryMS) openStream();
  const timeoutMS = stream && stream.readyState === EventSource.OPEN ? 3 * refreshMS : refreshMS / 2;
  if (performance.now() - received >= timeoutMS) poll();
}

// Goes on or stops as the reader shows or hides the tab, and says whether the page is live.
function followReader() {
  closeStream();
  if (isPaused()) return;
  openStream();
  check();
  fetchPast();
}

// Shows how old the readings are by the exporter's clock.
function showAge() {
  const read = document.querySelector("#node time");
  if (!read) return;
  const s = Math.floor((Date.now() - clockLead - Number(read.dataset.taken)) / 1000);
  const text = (s < 1 ? "less than 1 s" : s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : Math.floor(s / 3600) + " h") + " ago";
  if (read.textContent !== text) read.textContent = text;
}
