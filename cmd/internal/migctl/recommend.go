package migctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// formSpec is the form of output that only recommend and fleet have.
const formSpec = "spec"

const recommendHint = "mig-exporter makes the first report when it has read the GPUs: repeat the " +
	"command in a minute. An answer on a device needs a day of observation (--advise.min-evidence)."

func addRecommendCommand(app *kingpin.Application, o *options) {
	c := o.command(app, commandRecommend, "Show which GPUs are larger than their work needs, which "+
		"slices would do, what is gained, and the procedure. Changes nothing. A legend below "+
		"the table explains its columns.")
	gpus := o.completions(listGPUs)
	c.Arg("gpu", "Only these GPUs: index or UUID.").HintAction(gpus).StringsVar(&o.GPUs)
	c.Flag("explain", "Explain the answer for a GPU: evidence, profiles that were considered, "+
		"expected effect.").
		PlaceHolder("GPU").
		HintAction(gpus).
		StringVar(&o.Explain)
	c.Flag("price", "What a GPU costs an hour, by words of its model: H100=2.50. Repeatable; "+
		"the longest name counts.").
		PlaceHolder("MODEL=NUMBER").
		StringsVar(&o.Prices)
	addExporterURLFlag(c, o)
	outputFlag(c, o, "Form of the output: text, json, yaml; or spec, the recommended layouts, with what "+
		"the GPUs have now, for migctl apply -f.", formText, formJSON, formYAML, formSpec)
}

// checkRecommend returns an error if the flags of recommend contradict each other.
func (o *options) checkRecommend() error {
	switch {
	case o.Explain != "" && o.Output != formText:
		return usageError{"--explain and -o " + o.Output + " cannot be combined"}
	case o.Explain != "" && len(o.GPUs) > 0:
		return usageError{"--explain takes the GPU: name no other GPUs"}
	case len(o.Prices) > 0 && (o.Explain != "" || o.Output != formText || len(o.GPUs) > 0):
		return usageError{"--price goes with the text for the whole node alone"}
	}

	if _, err := fleet.ParsePrices(o.Prices); err != nil {
		return usageError{err.Error()}
	}

	return nil
}

// recommend shows what the server recommends for the devices of the node.
func (s *session) recommend(ctx context.Context) error {
	data, report, err := s.fetchRecommendations(ctx)
	if err != nil {
		return err
	}

	words := s.opts.GPUs
	if s.opts.Explain != "" {
		words = []string{s.opts.Explain}
	}

	if s.opts.Output == formSpec {
		return s.printRecommendedSpec(ctx, report)
	}

	if words, err = completeUUIDs(words, reportedUUIDs(report)); err != nil {
		return err
	}

	if err := checkDeviceWords(words, report); err != nil {
		return err
	}

	named := func(r *advise.Recommendation) bool {
		return len(words) == 0 ||
			slices.ContainsFunc(words, func(w string) bool { return w == "all" || isOnGPU(w, r) })
	}

	if s.opts.Output != formText {
		if data, err = filterList(data, "devices", s.opts.GPUs, named); err != nil {
			return err
		}

		return s.printDocument(data)
	}

	devices := slices.DeleteFunc(slices.Clone(report.Devices), func(r advise.Recommendation) bool {
		return !named(&r)
	})
	if s.opts.Explain != "" {
		explained := s.explainNotJudged(report, words)
		s.explainDevices(report, devices)
		writeNotes(s.page, slices.DeleteFunc(slices.Clone(report.Notes), func(note string) bool {
			return slices.Contains(explained, note)
		}))

		return nil
	}

	writeRecommendations(s.page, report, devices)

	if len(s.opts.GPUs) == 0 {
		if err := s.writeProcedures(ctx, report); err != nil {
			return err
		}
	} else {
		writeSingleReason(s.page, report, devices)
	}

	writeNotes(s.page, report.Notes)

	return nil
}

// reportedUUIDs returns the UUIDs of the GPUs of a report, as far as they are known.
func reportedUUIDs(report *advise.Report) []gpu.UUID {
	var uuids []gpu.UUID

	for i := range report.Devices {
		uuids = append(uuids, report.Devices[i].GPU)
	}

	for i := range report.NotJudged {
		uuids = append(uuids, report.NotJudged[i].GPU)
	}

	return uuids
}

// fetchRecommendations fetches the report of the advisor, as the server has sent it and decoded.
func (s *session) fetchRecommendations(ctx context.Context) ([]byte, *advise.Report, error) {
	data, err := s.client.getDocument(ctx, "/recommendations")

	var problem *api.Problem
	if errors.As(err, &problem) && problem.Type == api.NotFound {
		return nil, nil, &api.Problem{
			Type: api.NotBuilt, Title: "No recommendations", Status: problem.Status,
			Detail: "the server has no /api/v1/recommendations",
		}
	}

	if err != nil {
		return nil, nil, err
	}

	var report advise.Report
	if err := s.client.decodeAnswer(data, &report); err != nil {
		return nil, nil, err
	}

	return data, &report, nil
}

// writeProcedures writes what the whole node gains, and how to change its GPUs and slices.
func (s *session) writeProcedures(ctx context.Context, report *advise.Report) error {
	prices, err := fleet.ParsePrices(s.opts.Prices)
	if err != nil {
		return usageError{err.Error()}
	}

	if len(report.Devices) == 0 {
		return nil
	}

	writeSummary(s.page, report, prices)

	w := newProcedure(s.page, report)
	w.write()

	return s.writeSliceProcedure(ctx, w)
}

// explainDevices writes the evidence of some devices of a report.
func (s *session) explainDevices(report *advise.Report, devices []advise.Recommendation) {
	for i := range devices {
		if i > 0 {
			s.page.line()
		}

		explainDevice(s.page, report, &devices[i])
	}

	writeSingleReason(s.page, report, devices)
}

// explainNotJudged writes why the named GPUs that were not read have no answer. It returns the notes of the
// report that say the same.
func (s *session) explainNotJudged(report *advise.Report, words []string) (notes []string) {
	for i := range report.NotJudged {
		n := &report.NotJudged[i]
		if !slices.Contains(words, "all") && !namesGPU(words, n.Index, n.GPU) {
			continue
		}

		s.page.line(span{gpuTitle(s.page, n.Index, n.Model, n.GPU), bold})
		s.page.paragraph("  ", yellow, "not judged: "+n.Why)
		s.page.line()

		notes = append(notes, n.String())
	}

	return notes
}

// namesGPU reports whether one of some words names a GPU, by index or UUID.
func namesGPU(words []string, index int, id gpu.UUID) bool {
	return slices.ContainsFunc(words, func(w string) bool {
		return w == fmt.Sprint(index) || id != "" && strings.EqualFold(w, string(id))
	})
}

// isOnGPU reports whether a word names the GPU of a device, by index or UUID.
func isOnGPU(word string, r *advise.Recommendation) bool {
	return namesGPU([]string{word}, r.Index, r.GPU)
}

// checkDeviceWords returns an error if a word names no GPU of the report.
func checkDeviceWords(words []string, report *advise.Report) error {
	for _, w := range words {
		judged := slices.ContainsFunc(report.Devices, func(r advise.Recommendation) bool {
			return isOnGPU(w, &r)
		})
		listed := slices.ContainsFunc(report.NotJudged, func(n advise.NotJudged) bool {
			return namesGPU([]string{w}, n.Index, n.GPU)
		})

		if w == "all" || judged || listed {
			continue
		}

		if why := whyNotKnown(w, report); why != "" {
			return fmt.Errorf("no GPU %q is known yet: %s", w, why)
		}

		return usageError{
			fmt.Sprintf(
				"the report has no GPU %q: name it by index or UUID. It lacks GPUs in MIG mode "+
					"without instances",
				w,
			),
		}
	}

	return nil
}

// whyNotKnown says why the node may have a GPU that the report does not name by a word; it is empty if the
// node has no such GPU.
func whyNotKnown(word string, report *advise.Report) string {
	if report.GPUsUnknown != "" {
		return gpu.DescribeUnknownGPUs(report.GPUsUnknown)
	}

	if _, err := strconv.Atoi(word); err == nil {
		return "" // all indexes are known
	}

	var without []int

	for i := range report.NotJudged {
		if n := &report.NotJudged[i]; n.GPU == "" {
			without = append(without, n.Index)
		}
	}

	if len(without) == 0 {
		return ""
	}

	return "the UUID of GPU " + joinNumbers(without) + " has not been read"
}

// workloadName names what holds a device, short enough for a cell: "shop/api" for the Deployment
// api of the namespace shop.
func workloadName(r *advise.Recommendation) string {
	if r.Workload == nil {
		return unknown
	}

	kind, name, _ := strings.Cut(r.Workload.Owner, "/")
	switch {
	case kind == ownerBatch:
		return "job " + name
	case kind == ownerProcesses:
		return "processes"
	case r.Workload.Shared:
		return ownerName(r) + ", shared"
	}

	return ownerName(r)
}

func writeRecommendations(p *page, report *advise.Report, devices []advise.Recommendation) {
	strict := ""
	if report.Strict {
		strict = "   strict: by the worst mix of kernels"
	}

	p.line(text("Node ").in(dim), text("%s", orUnknown(report.Node)).in(bold),
		text("   %s%s", report.Time.UTC().Format(time.RFC3339), strict).in(dim))

	// Notes name each GPU of NotJudged, and say why the GPUs are not known.
	if len(devices) == 0 && len(report.NotJudged) == 0 && report.GPUsUnknown == "" {
		p.line()
		p.line(text("No devices."))
	}

	writeWholeGPUs(p, devices)
	writeSlices(p, devices)
}

// caveat says why the metrics and alerts do not count a recommended slice as a candidate; it is
// empty if they do.
func caveat(r *advise.Recommendation) string {
	if r.WhyNotFinal() == advise.ReasonMediaNotChecked {
		return "media not checked"
	}

	return string(r.WhyNotFinal())
}

func shareText(share float64) string { return percentText(gpu.Some(share)) }

func confidenceText(r *advise.Recommendation) string {
	if r.Evidence == nil {
		return ""
	}

	return shareText(r.Confidence)
}

// stretchText writes how many times as long kernels take in the slice, at p95: "1.00-1.40", low to
// high.
func stretchText(predicted *advise.Predicted) string {
	if predicted == nil {
		return ""
	}

	if predicted.StretchP95 == (advise.Stretch{}) {
		return "unknown"
	}

	return fmt.Sprintf("%.2f-%.2f", predicted.StretchP95.Low, predicted.StretchP95.High)
}

func writeNotes(p *page, notes []string) {
	if len(notes) > 0 {
		p.line()
	}

	for _, n := range notes {
		p.paragraph("! ", dim, n)
	}
}

// unplaced returns the whole GPUs whose workload a slice would do for, and that the packing does not
// move, by the reason why their recommendation is not final. If it is final, there was no room for
// the slice.
func unplaced(report *advise.Report) map[advise.Reason][]int {
	left := map[advise.Reason][]int{}

	for i := range report.Devices {
		r := &report.Devices[i]
		if r.Action == advise.ActionSlice && report.Packing.TargetOf(r.Index) < 0 {
			why := r.WhyNotFinal()
			left[why] = append(left[why], r.Index)
		}
	}

	return left
}

func joinNumbers(numbers []int) string {
	list := make([]string, 0, len(numbers))
	for _, n := range numbers {
		list = append(list, fmt.Sprint(n))
	}

	return strings.Join(list, ", ")
}
