package nvmlsource

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// From NVLink 5 on (Blackwell), drivers count bytes and errors for each link and have no totals:
// nvml.h says that the fields from 201 on need a link, and DCGM adds them up over the links itself.
// We ask for all links in one call with the slow tier, apart from the other fields: a driver that
// refuses that call still answers those.

// linkField is a counter of one link.
type linkField struct {
	id   uint32
	kind string // of the errors that it counts; empty if it counts bytes
}

// Indexes of linkFields.
const (
	linkTransmit = iota
	linkReceive
	firstLinkError
	linkFieldCount = firstLinkError + 4
)

// linkFields lists the counters that we read of each link. Of the error counters we take those that
// show whether a link is sick and that do not include each other: packets received with errors,
// errors that were left after correction, and recoveries that brought the link back or did not.
func linkFields() [linkFieldCount]linkField {
	return [...]linkField{
		linkTransmit:       {id: nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES},
		linkReceive:        {id: nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES},
		firstLinkError:     {id: nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, kind: "receive"},
		firstLinkError + 1: {id: nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, kind: "effective"},
		firstLinkError + 2: {
			id:   nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
			kind: "recovery",
		},
		firstLinkError + 3: {
			id:   nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
			kind: "recovery_failed",
		},
	}
}

// linkCounters adds up the counters of a GPU's links. A link that goes down stops answering, and
// may begin again at 0: the totals keep what it counted before, so that they only grow.
type linkCounters struct {
	count  int  // of links; 0 if unknown
	byLink bool // the driver counts by link

	values []nvml.FieldValue        // reused by every reading
	last   [][linkFieldCount]uint64 // by link: what its counters were last
	totals [linkFieldCount]gpu.Opt[uint64]
}

// storeCount stores the number of links, at most as many as nvml.h allows.
func (c *linkCounters) storeCount(v *nvml.FieldValue) {
	c.count = int(min(uintValue(v).Or(0), nvml.NVLINK_MAX_LINKS))
}

// fields returns the fields of all links.
func (c *linkCounters) fields() []nvml.FieldValue {
	c.values = c.values[:0]
	for link := range c.count {
		for _, f := range linkFields() {
			c.values = append(c.values, nvml.FieldValue{FieldId: f.id, ScopeId: uint32(link)})
		}
	}

	return c.values
}

// add adds the growth of the counters since the last call to the totals. It ignores a link that
// lacks a counter, and returns the first other failure.
func (c *linkCounters) add(call string) error {
	for len(c.last) < c.count {
		c.last = append(c.last, [linkFieldCount]uint64{})
	}

	var firstErr error

	for i := range c.values {
		v := &c.values[i]
		link := i / linkFieldCount
		field := i % linkFieldCount

		switch ret := nvml.Return(int32(v.NvmlReturn)); ret {
		case nvml.SUCCESS:
			if now, ok := uintValue(v).Get(); ok {
				c.addCounter(&c.last[link][field], &c.totals[field], now)
			}

		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT: // the link is not there, or down
		default:
			if firstErr == nil {
				firstErr = driverError(call, ret)
			}
		}
	}

	return firstErr
}

// addCounter adds the growth of a counter to its total. A counter that fell has begun again at 0.
func (*linkCounters) addCounter(last *uint64, total *gpu.Opt[uint64], now uint64) {
	grown := now - *last
	if now < *last {
		grown = now
	}

	*last = now
	*total = gpu.Some(total.Or(0) + grown)
}

// sums returns the totals over all links, absent if no link has ever answered.
func (c *linkCounters) sums() gpu.NVLink {
	sums := gpu.NVLink{TransmitBytes: c.totals[linkTransmit], ReceiveBytes: c.totals[linkReceive]}
	for i, f := range linkFields() {
		if count, ok := c.totals[i].Get(); ok && f.kind != "" {
			sums.Errors = append(sums.Errors, gpu.NVLinkErrors{Kind: f.kind, Count: count})
		}
	}

	return sums
}

// queryLinks queries the counters of all links, if the driver counts by link. It does not ask in
// MIG mode, in which no instance can use the links. If it did not ask, ok is false: the totals of
// the other fields hold.
func (r *gpuRead) queryLinks(q *querier) (sums gpu.NVLink, ok bool) {
	const call = "nvmlDeviceGetFieldValues(NVLink by link)"

	c := &r.state.links
	if !c.byLink || c.count == 0 || r.state.mode.enabled.Or(false) {
		return gpu.NVLink{}, false
	}

	if q.checkRefused(call, gpu.ReadingNVLink) != nil {
		return c.sums(), true
	}

	if q.recordReturn(call, gpu.ReadingNVLink, r.dev.GetFieldValues(c.fields())) != nil {
		return c.sums(), true
	}

	if err := c.add(call); err != nil && q.classifyError(call, gpu.ReadingNVLink, err) != nil {
		q.recordError(gpu.ReadingNVLink, err)
	}

	return c.sums(), true
}
