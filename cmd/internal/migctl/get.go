package migctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// showNode draws the node, or prints its document. With --watch it does so again with each reading.
func (s *session) showNode(ctx context.Context) error {
	if s.opts.Watch {
		return s.watchNode(ctx)
	}

	data, err := s.client.getDocument(ctx, "/node")
	if err != nil {
		return err
	}

	var node nodedoc.Document
	if err := s.client.decodeAnswer(data, &node); err != nil {
		return err
	}

	return s.writeNode(ctx, s.page, s.out, data, node)
}

// writeNode draws a node on p, or writes its document to out, in the form that the operator wants.
// data is the document as the server wrote it.
func (s *session) writeNode(
	ctx context.Context, p *page, out io.Writer, data []byte, node nodedoc.Document,
) error {
	chosen, err := chooseGPUs(s.opts.GPUs, &node)
	if err != nil {
		return err
	}

	switch s.opts.Output {
	case formJSON, formYAML:
		named := func(g *nodedoc.GPU) bool {
			return slices.ContainsFunc(chosen, func(c nodedoc.GPU) bool {
				return c.Index == g.Index && c.UUID == g.UUID
			})
		}

		if data, err = filterList(data, "gpus", s.opts.GPUs, named); err != nil {
			return err
		}

		return s.writeDocument(out, data)
	case formName:
		writeNames(p, chosen)
		return nil
	}

	node.GPUs = chosen

	list, err := s.fetchOperations(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}

	columns, _ := s.terminalSize()
	p.width = max(tableWidth, columns)
	p.unitMost = max(unitMax, columns/8)

	if err != nil { // we show the node all the same
		p.paragraph("! ", yellow, "the operations could not be read, so GPUs that they block, and layouts that "+
			"are not restored, are not shown: "+err.Error())
	}

	drawNode(p, newNodeView(node), list, s.opts.Output == formWide)

	return nil
}

// fetchOperations fetches the operations of the node. A metrics listener has none, nor has a server without
// partition control. With an error the list is empty.
func (s *session) fetchOperations(ctx context.Context) (*api.Operations, error) {
	var list api.Operations

	if s.opts.ExporterURL != "" {
		return &list, nil
	}

	err := s.client.fetch(ctx, "/operations", &list)

	var problem *api.Problem
	if errors.As(err, &problem) && (problem.Type == api.NotFound || problem.Type == api.NotBuilt) {
		err = nil
	}

	if err != nil {
		return &api.Operations{}, err
	}

	return &list, nil
}

// writeNames writes the UUIDs of each GPU and of its MIG devices, one a line.
func writeNames(p *page, gpus []nodedoc.GPU) {
	for _, uuid := range uuidsOf(gpus) {
		p.uncut(uuid)
	}
}

// filterList returns a document without those items of its list key that the command line does not
// name. words are the arguments of the command line; named reports whether they name an item. Everything
// else stays as the server wrote it.
func filterList[T any](data []byte, key string, words []string, named func(*T) bool) ([]byte, error) {
	if len(words) == 0 || slices.Contains(words, "all") {
		return data, nil
	}

	var document map[string]json.RawMessage
	var items []json.RawMessage

	if err := json.Unmarshal(data, &document); err != nil {
		return nil, err
	}

	if err := json.Unmarshal(document[key], &items); err != nil {
		return nil, err
	}

	kept := make([]json.RawMessage, 0, len(items))
	for _, raw := range items {
		var item T
		if err := json.Unmarshal(raw, &item); err != nil {
			return nil, err
		}

		if named(&item) {
			kept = append(kept, raw)
		}
	}

	var err error
	if document[key], err = json.Marshal(kept); err != nil {
		return nil, err
	}

	return json.Marshal(document)
}

// columns are the widths of the columns in the node's table; 0 is no limit.
type columns struct {
	name, uuid, use, profile, migUUID int

	full bool // whether UUIDs are shown in full
	bus  bool // whether PCI bus ids are shown
}

const (
	// usedByAt is where the table's last column begins if MIG UUIDs are shortened.
	usedByAt  = 61
	shortID   = 12
	fullUUID  = 40
	fullMIGID = 48 // as long as the UUIDs of old drivers: MIG-GPU-<uuid>/1/0
)

// tableColumns returns the widths for a page as wide as p. On a wider page less is shortened.
func tableColumns(p *page) columns {
	if p.width == 0 {
		return columns{name: 28, uuid: fullUUID, use: 0, profile: 16, migUUID: 52, full: true, bus: true}
	}

	c := columns{name: 14, uuid: shortID, profile: 11, migUUID: shortID}
	if p.width >= 100 {
		c.name = 28
	}

	if p.width >= 144 {
		c.full = true
		c.uuid = fullUUID
		c.migUUID = fullMIGID
	}

	c.use = p.width - usedByAt - (c.migUUID - shortID)

	return c
}

func (c columns) id(uuid string) string {
	if c.full {
		return uuid
	}

	return shortUUID(uuid)
}

// drawNode draws the node's line, warnings, the GPUs, and a legend. list says which operations block
// GPUs.
func drawNode(p *page, node *nodeView, list *api.Operations, wide bool) {
	if wide {
		p.width = 0
	}

	drawNodeHead(p, node)
	writeControl(p, list)
	writeUnread(p, &node.doc)
	writeLostUnrestored(p, node, list)

	for i := range node.doc.GPUs {
		g := &node.doc.GPUs[i]
		// GPUs without MIG take a line each and stand together.
		if i == 0 || isMIG(g) || isMIG(&node.doc.GPUs[i-1]) {
			p.line()
		}

		drawGPU(p, node, g, list, tableColumns(p))
	}

	writeLegend(p, node)
	writeUnmatched(p, node.doc.Node.UnmatchedDevices)
}

func drawNodeHead(p *page, node *nodeView) {
	p.line(
		text("Node ").in(dim),
		text("%s", orUnknown(node.doc.Node.Hostname)).in(bold),
		text(
			"   driver %s   %s",
			orUnknown(node.doc.Node.DriverVersion),
			node.doc.Time.UTC().Format(time.RFC3339),
		).in(dim),
	)

	for _, w := range readingWarnings(&node.doc) {
		p.paragraph("! ", w.color, w.text)
	}
}

// writeLegend explains those of the marks and words that the page shows.
func writeLegend(p *page, node *nodeView) {
	if node.hasUnconfirmed() {
		p.line()
		p.paragraph("? = unconfirmed: ", yellow,
			"it is not known whether this pod holds the device, so the device counts as in use. "+
				"migctl get -o json has the reason (unconfirmedReason).")
	}

	if node.showsUse(func(u deviceUse) bool { return u.summary() == confirmedFree }) {
		p.line()
		p.paragraph(
			confirmedFree+": ",
			yellow,
			"an operator has confirmed that nothing uses the device (migctl confirm-free); the "+
				"kubelet does not report whether it is in use.",
		)
	}

	if slices.ContainsFunc(node.doc.GPUs, hasStranded) {
		p.line()
		p.paragraph("stranded: ", yellow, "slices that no profile can use beside the existing instances.")
	}
}

func hasStranded(g nodedoc.GPU) bool {
	return isMIG(&g) && g.Capacity != nil && g.Capacity.MemorySlices.Stranded > 0
}

// writeUnmatched names the devices that pods hold and the node doesn't have.
func writeUnmatched(p *page, devices []nodedoc.Unmatched) {
	if len(devices) > 0 {
		p.line()
	}

	for i := range devices {
		p.paragraph("! ", yellow, unmatchedText(&devices[i]))
	}
}

// writeUnread writes which GPUs are not in the document yet, or that there are none.
func writeUnread(p *page, doc *nodedoc.Document) {
	if why := unreadText(doc); why != "" {
		p.paragraph("! ", yellow, why)
	} else if len(doc.GPUs) == 0 {
		p.line(text("No GPUs."))
	}
}

// writeLostUnrestored names the GPUs whose layouts are not restored and that are not in the node's
// document, so that drawGPU does not show them.
func writeLostUnrestored(p *page, node *nodeView, list *api.Operations) {
	for i := range list.Unrestored {
		u := &list.Unrestored[i]
		if !slices.ContainsFunc(node.doc.GPUs, func(g nodedoc.GPU) bool { return g.UUID == u.GPU }) {
			p.paragraph("! ", red, string(u.GPU)+": the layout is not restored: "+u.Detail)
		}
	}
}

// staleAfter is the age from which on we call a GPU's readings old.
const staleAfter = 10 * time.Second

// drawGPU draws a GPU's line and its warnings and, with MIG on, the axis and the table of its
// instances.
func drawGPU(p *page, node *nodeView, g *nodedoc.GPU, list *api.Operations, c columns) {
	drawGPUHead(p, node, g, c)
	writeGPUState(p, g, list, node.doc.Time)

	if !isMIG(g) {
		return
	}

	slots := node.slots(g)
	p.drawAxis(axisOf(g).Units, slots)

	if len(g.GPUInstances) == 0 {
		return
	}

	if slots == nil {
		p.paragraph(
			"  ",
			dim,
			"The placements are not known: the driver reports them to privileged processes only.",
		)
	}

	p.line(span{tableHead(p, c), dim})

	for i := range g.GPUInstances {
		drawInstance(p, node, &g.GPUInstances[i], c)
	}
}

// writeGPUState writes warnings about a GPU: that it is blocked, released, does not answer, or is
// about to change.
func writeGPUState(p *page, g *nodedoc.GPU, list *api.Operations, now time.Time) {
	if list.Blocked[g.UUID] != "" {
		p.paragraph("  ! ", red, blockedText(list, g.UUID))
	}

	writeUnrestored(p, "  ", findUnrestored(list.Unrestored, g.UUID))

	if r := g.Released; r != nil {
		p.paragraph("  ! ", yellow, releasedText(r, now))
	} else if !g.Up {
		t := "not answering"
		if !g.LastRead.IsZero() {
			t += fmt.Sprintf(", last read %s earlier", now.Sub(g.LastRead).Round(time.Second))
		}

		p.paragraph("  ! ", red, t)
	}

	if age := now.Sub(g.LastRead); g.Up && !g.LastRead.IsZero() && age > staleAfter {
		p.paragraph(
			"  ! ",
			yellow,
			fmt.Sprintf("the readings are old: last read %s before", age.Round(time.Second)),
		)
	}

	if m := g.MIGMode; m.Pending != "" && m.Pending != m.Current {
		p.paragraph(
			"  * ",
			yellow,
			fmt.Sprintf(
				"MIG mode is %s, and will be %s after a reset of the GPU or a reboot",
				m.Current,
				m.Pending,
			),
		)
	}

	writeErrors(p, "  ", g.Errors)
}

// releasedText says since when the exporter keeps a GPU closed, and how to open it again.
func releasedText(r *nodedoc.Release, now time.Time) string {
	text := fmt.Sprintf("released %s ago: the exporter keeps it closed and reads nothing of it",
		now.Sub(r.Since).Round(time.Second))
	if r.Unbound {
		return text + "; the driver does not list it any more"
	}

	return text + "; migctl reacquire opens it again"
}

// drawGPUHead draws a GPU's line. Without MIG the line also says what uses the GPU.
func drawGPUHead(p *page, node *nodeView, g *nodedoc.GPU, c columns) {
	use := ""
	useColor := plain

	if !isMIG(g) {
		shown := node.gpuUse(g)
		use = shown.summary()
		useColor = useColorOf(shown)
	}

	state := bold
	if !g.Up {
		state = red
	}

	bus := ""
	if c.bus {
		bus = p.cell(orUnknown(g.PCIBusID), 18)
	}

	spans := []span{
		{fmt.Sprintf("GPU %-2d ", g.Index), state},
		{p.cell(orUnknown(shortName(g.Name)), c.name) + " ", state},
		{p.cell(orUnknown(c.id(string(g.UUID))), c.uuid) + " " + bus, plain},
		{fmt.Sprintf("MIG %-4s ", modeText(g.MIGMode)), modeColor(g.MIGMode)},
		{p.right(memoryText(g.Memory)+" GiB", 13) + p.right(wattsText(g.Power.Watts), 6) +
			p.right(celsiusText(g.Temperature.GPUCelsius), 4), plain},
		{" SM" + p.right(percentText(g.Activity.SM), 5) + " ", plain},
	}

	// If there is too little room, the users get a line of their own.
	if p.width > 0 && spanColumns(spans)+columnsOf(p.clean(use)) > p.width {
		p.line(spans...)

		spans = []span{text("       ")}
		use = p.cutMiddle(p.clean(use), p.width-spanColumns(spans))
	}

	p.line(append(spans, span{use, useColor})...)
}

func spanColumns(spans []span) int {
	n := 0
	for _, s := range spans {
		n += columnsOf(s.text)
	}

	return n
}

func modeColor(m nodedoc.Mode) color {
	if m.Pending != "" && m.Pending != m.Current {
		return yellow
	}

	return plain
}

func useColorOf(u deviceUse) color {
	if u.state == nodedoc.Held || len(u.Holders) > 0 {
		return cyan
	}

	return dim
}

func writeErrors(p *page, indent string, errs []nodedoc.Error) {
	if hidesProcesses(errs) {
		p.paragraph(indent, dim, "processes "+nodedoc.ProcessesHidden)
	}

	for _, e := range failuresOf(errs) {
		p.paragraph(indent+"! ", red, fmt.Sprintf("%s: %s: %s", e.Reading, e.Reason, e.Message))
	}
}

// slots returns the boxes on the axis of a GPU; nil if the placements of its instances are not known.
func (v *nodeView) slots(g *nodedoc.GPU) []slot {
	slots := make([]slot, 0, len(g.GPUInstances))
	for i := range g.GPUInstances {
		inst := &g.GPUInstances[i]
		use := v.instanceUse(inst)

		s := slot{
			reported: inst.Placement,
			label:    orUnknown(inst.Profile),
			note:     use.summary(),
			color:    useColorOf(use),
		}
		if len(use.Holders) > 0 {
			s.note = use.podNames()
		}

		if !inst.Up {
			s.note = "not answering"
			s.color = red
		}

		slots = append(slots, s)
	}

	return layOutSlots(axisOf(g), slots)
}

func tableHead(p *page, c columns) string {
	return "  " + instanceCells(
		p,
		c,
		[...]string{"GI", "PROFILE", "AT", "CI", "MIG UUID", "MEMORY GiB", "SM", "USED BY"},
	)
}

// instanceCells returns a line of the table: each cell as wide as its column.
func instanceCells(p *page, c columns, cells [8]string) string {
	use := p.clean(cells[7])
	if c.use > 0 {
		use = p.cutMiddle(use, c.use)
	}

	return p.right(cells[0], 2) + "  " + p.cell(cells[1], c.profile) + " " + p.cell(cells[2], 4) + "  " +
		p.right(cells[3], 2) + "  " +
		p.cell(cells[4], c.migUUID) + "  " + p.right(cells[5], 11) + " " + p.right(cells[6], 5) + "  " +
		use
}

// drawInstance draws the lines of a GPU instance and its compute instances. A compute instance with
// all slices of its GPU instance is on the same line.
func drawInstance(p *page, node *nodeView, inst *nodedoc.Instance, c columns) {
	cells := [...]string{
		strconv.Itoa(int(inst.ID)), orUnknown(inst.Profile), placementText(inst.Placement), "", "",
		memoryText(inst.Memory), percentText(inst.Activity.SM), "",
	}

	whole := isWhole(inst)
	switch {
	case whole:
		cells[3] = strconv.Itoa(int(inst.ComputeInstances[0].ID))
		cells[4] = c.id(string(inst.ComputeInstances[0].UUID))
		cells[7] = node.instanceUse(inst).summary()
	case inst.ComputeInstancesHidden:
		cells[7] = "CIs are hidden"
	case len(inst.ComputeInstances) == 0:
		cells[7] = "no compute instance"
	default:
		cells[7] = nodedoc.Count(len(inst.ComputeInstances), "compute instance", "compute instances")
	}

	p.line(text("  "), span{instanceCells(p, c, cells), instanceColor(node, inst)})

	if !inst.Up {
		p.line(text("      ! GPU instance %d does not answer", inst.ID).in(red))
	}

	writeErrors(p, "      ", inst.Errors)

	for i := range inst.ComputeInstances {
		ci := &inst.ComputeInstances[i]
		if !whole {
			use := node.computeUse(inst, ci)
			cells := [...]string{
				"", " " + orUnknown(ci.Profile), placementText(ci.Placement), strconv.Itoa(int(ci.ID)),
				c.id(string(ci.UUID)), "", percentText(ci.Activity.SM), use.summary(),
			}
			p.line(text("  "), span{instanceCells(p, c, cells), useColorOf(use)})
		}

		if !ci.Up {
			p.line(text("      ! compute instance %d does not answer", ci.ID).in(red))
		}

		writeErrors(p, "      ", ci.Errors)
	}
}

func instanceColor(node *nodeView, inst *nodedoc.Instance) color {
	if !inst.Up {
		return red
	}

	if use := node.instanceUse(inst); use.state == nodedoc.Held || len(use.Holders) > 0 {
		return plain
	}

	return dim
}
