// Keeps the page up to date while it is visible: by the node's stream or, while there is none, by fetching the page
// again. Without scripts the browser reloads it.
const refreshMS = Number(content().dataset.refresh);
const retryMS = 30000; // until a stream that was refused is asked for again
let received = Date.now(); // when the content was received
let stream = null;
let opened = 0; // when the stream was asked for
let fetching = false;

function content() {
  return document.getElementById("node");
}

// Reports whether the page stays as it is: it cannot be seen, or the reader wants it so.
function isPaused() {
  return document.hidden || !wish.live;
}

// Shows a content that the exporter has rendered.
function show(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("node");
  // An exporter of another version has another script and style.
  if (!fresh || fresh.dataset.version !== content().dataset.version) return location.reload();
  arrange(fresh);
  morph(content(), fresh);
  startForm();
  received = Date.now();
  showAge();
}

function openStream() {
  opened = Date.now();
  stream = new EventSource("api/v1/node/stream?view=page");
  stream.addEventListener("node", (event) => show(event.data));
}

function closeStream() {
  if (stream) stream.close();
  stream = null;
}

// Fetches the page. An unreachable node often does not answer at all.
async function poll() {
  if (fetching) return;
  fetching = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(refreshMS) });
    if (!answer.ok) throw new Error(answer.statusText);
    show(await answer.text());
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
  if (refused && Date.now() - opened > retryMS) openStream();
  const timeoutMS = stream && stream.readyState === EventSource.OPEN ? 3 * refreshMS : refreshMS / 2;
  if (Date.now() - received >= timeoutMS) poll();
}

// Goes on or stops as the reader shows or hides the tab, and says whether the page is live.
function followReader() {
  closeStream();
  if (isPaused()) return;
  openStream();
  check();
  fetchPast();
}

// Shows the age that the exporter reported plus the time since: the clocks of node and browser may differ.
function showAge() {
  const read = document.querySelector("#node time");
  if (!read) return;
  const s = Number(read.dataset.age) + Math.floor((Date.now() - received) / 1000);
  const text = (s < 1 ? "less than 1 s" : s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : Math.floor(s / 3600) + " h") + " ago";
  if (read.textContent !== text) read.textContent = text;
}
