// Brings a content that the exporter has rendered into the order that the reader has chosen.
function arrange(main) {
  return main;
}
