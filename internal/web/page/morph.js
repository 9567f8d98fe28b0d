// Makes the tree of live equal to that of fresh, and touches nothing that is equal already: a selection, the focus, the
// scroll position and what the reader has opened stay.
function morph(live, fresh) {
  if (live.nodeType !== Node.ELEMENT_NODE) {
    if (live.data !== fresh.data) live.data = fresh.data;
    return;
  }
  if (live.hasAttribute("data-keep")) return; // the script's own
  if (live.isEqualNode(fresh)) return; // most are: the browser compares them ten times as fast as we do
  morphAttributes(live, fresh);
  morphChildren(live, fresh);
}

function morphAttributes(live, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (live.getAttribute(name) !== value && !isReaders(live, name)) live.setAttribute(name, value);
  }
  for (const { name } of [...live.attributes]) {
    if (!fresh.hasAttribute(name) && !isReaders(live, name)) live.removeAttribute(name);
  }
}

// What the reader has opened or closed stays so.
function isReaders(element, name) {
  return name === "open" && element.nodeName === "DETAILS";
}

function morphChildren(live, fresh) {
  const wanted = matchChildren(live, fresh);
  const stay = new Set(wanted);
  for (const child of [...live.childNodes]) {
    if (!stay.has(child)) child.remove();
  }

  let at = live.firstChild; // all before it are in place
  for (const child of wanted) {
    if (child === at) at = at.nextSibling;
    else place(live, child, at);
  }
}

// Returns the children that live is to have, in order: those of its own that match one of fresh, which are brought up
// to date, and copies of the others. Nodes with a key match by it, all others by their kind and order.
function matchChildren(live, fresh) {
  const byKey = new Map();
  const others = [];
  for (const child of live.childNodes) {
    if (keyOf(child)) byKey.set(keyOf(child), child);
    else others.push(child);
  }

  let next = 0; // of others
  return Array.from(fresh.childNodes, (want) => {
    let have = byKey.get(keyOf(want));
    if (!keyOf(want)) {
      const n = others.findIndex((child, i) => i >= next && child.nodeName === want.nodeName);
      have = others[n];
      if (have) next = n + 1;
    }
    if (!have || have.nodeName !== want.nodeName) return document.importNode(want, true);
    morph(have, want);
    return have;
  });
}

// Returns what tells a node from its siblings; sparklines have the name of their quantity.
function keyOf(node) {
  return node.id || (node.dataset && (node.dataset.key || node.dataset.past)) || "";
}

// Moves or inserts a child. Where browsers cannot move a node without removing it, its focus is given back.
function place(parent, child, before) {
  if (child.parentNode === parent && parent.moveBefore) return parent.moveBefore(child, before);
  const focused = child.contains(document.activeElement) && document.activeElement;
  parent.insertBefore(child, before);
  if (focused) focused.focus({ preventScroll: true });
}
