package promtest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/common/model"
	histograms "github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/prometheus/prometheus/tsdb/tombstones"
)

// The functions below write what Prometheus has of a large fleet. What it stored of one simulated
// node is repeated over days, and written again for each other node under names of its own. We
// write chunks and index of blocks ourselves: a head that takes the samples one by one would need an
// hour. It takes the last hour alone: a query of what is now reads Prometheus' memory, no blocks.

// inHead is how much of the end is in Prometheus' memory: what dashboards ask of now and of an hour
// before. A server has two to three hours there.
const inHead = 70 * time.Minute

// sample is a sample of a stored series.
type sample struct {
	at        int64
	value     float64
	histogram *histograms.Histogram // of a native histogram
}

func (s sample) T() int64                       { return s.at }
func (s sample) ST() int64                      { return 0 }
func (s sample) F() float64                     { return s.value }
func (s sample) H() *histograms.Histogram       { return s.histogram }
func (s sample) FH() *histograms.FloatHistogram { return nil }
func (s sample) Copy() chunks.Sample            { return s }

func (s sample) Type() chunkenc.ValueType {
	if s.histogram != nil {
		return chunkenc.ValHistogram
	}

	return chunkenc.ValFloat
}

// storedSeries is a series with its samples of one period.
type storedSeries struct {
	labels  labels.Labels
	samples []sample
	period  time.Duration
	periods int // for which it is repeated, up to the last one
}

// isTime reports whether the values are times.
func (s storedSeries) isTime() bool {
	return strings.HasSuffix(s.labels.Get(model.MetricNameLabel), "timestamp_seconds")
}

// chunks returns the chunks of some periods up to a time: period 0 is the last one, 1 the one before.
func (s storedSeries) chunks(from, to int, until time.Time) ([]chunks.Meta, error) {
	var list []chunks.Sample

	for k := min(from, s.periods-1); k >= to; k-- {
		shift := time.Duration(k) * s.period

		for _, x := range s.samples {
			x.at -= shift.Milliseconds()
			if s.isTime() {
				x.value -= shift.Seconds()
			}

			if x.at > until.UnixMilli() {
				break
			}

			list = append(list, x)
		}
	}

	it := storage.NewSeriesToChunkEncoder(storage.NewListSeries(s.labels, list)).Iterator(nil)

	var metas []chunks.Meta
	for it.Next() {
		metas = append(metas, it.At())
	}

	return metas, it.Err()
}

// stored returns the series that have samples after a time, up to another one.
func (e *Prometheus) stored(t testing.TB, after, to time.Time) []storedSeries {
	t.Helper()

	q, err := e.db.Querier(after.UnixMilli()+1, to.UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()

	all := labels.MustNewMatcher(labels.MatchNotEqual, model.MetricNameLabel, "")
	set := q.Select(t.Context(), false, nil, all)

	var list []storedSeries

	for set.Next() {
		s := storedSeries{labels: set.At().Labels(), period: to.Sub(after)}
		it := set.At().Iterator(nil)

		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			x := sample{}

			if kind == chunkenc.ValFloat {
				x.at, x.value = it.At()
			} else {
				x.at, x.histogram = it.AtHistogram(nil)
			}

			s.samples = append(s.samples, x)
		}

		if it.Err() != nil {
			t.Fatal(it.Err())
		}

		list = append(list, s)
	}

	if set.Err() != nil {
		t.Fatal(set.Err())
	}

	return list
}

// renamed returns labels as another node of the same kind has them.
func renamed(l labels.Labels, node string) labels.Labels {
	b := labels.NewBuilder(l)

	l.Range(func(x labels.Label) {
		switch x.Name {
		case "instance":
			b.Set(x.Name, node)
		case "uuid", "UUID", "mig_uuid", "serial", "hostname", "Hostname", "pod", "exported_pod", "holder":
			b.Set(x.Name, x.Value+"-"+node)
		}
	})

	return b.Labels()
}

// copied is a series of a node of the fleet, which has the samples of the simulated node's.
type copied struct {
	labels labels.Labels
	of     *storedSeries
}

// copyNode returns the series under the names of a node.
func copyNode(list []storedSeries, node string) []copied {
	copies := make([]copied, 0, len(list))
	for i := range list {
		copies = append(copies, copied{renamed(list[i].labels, node), &list[i]})
	}

	return copies
}

// blockPeriods are the periods of two hours in a block: Prometheus compacts to 18 hours if it keeps
// 15 days, which is its default.
const blockPeriods = 9

// writeFleet writes the blocks of a fleet up to a time, and returns how many samples they have. The
// series must be sorted.
func writeFleet(dir string, fleet []copied, until time.Time) (samples int, err error) {
	periods := 0
	for _, c := range fleet {
		periods = max(periods, c.of.periods)
	}

	for to := 0; to < periods; to += blockPeriods {
		n, err := writeBlock(dir, fleet, min(to+blockPeriods, periods)-1, to, until)
		if err != nil {
			return 0, err
		}

		samples += n
	}

	return samples, nil
}

// writeBlock writes the block of some periods up to a time.
func writeBlock(dir string, fleet []copied, from, to int, until time.Time) (samples int, err error) {
	id := ulid.Make()
	dir = filepath.Join(dir, id.String())

	encoded := map[*storedSeries][]chunks.Meta{}
	symbols := map[string]bool{}

	for _, c := range fleet {
		if c.of.periods <= to {
			continue
		}

		c.labels.Range(func(l labels.Label) {
			symbols[l.Name] = true
			symbols[l.Value] = true
		})

		if _, ok := encoded[c.of]; ok {
			continue
		}

		if encoded[c.of], err = c.of.chunks(from, to, until); err != nil {
			return 0, err
		}
	}

	meta := tsdb.BlockMeta{ULID: id, MinTime: maxTime, Version: 1,
		Compaction: tsdb.BlockMetaCompaction{Level: 3, Sources: []ulid.ULID{id}}}
	if err := writeSeries(dir, fleet, encoded, symbols, &meta); err != nil {
		return 0, err
	}

	if _, err := tombstones.WriteFile(slog.New(slog.DiscardHandler), dir, tombstones.NewMemTombstones()); err != nil {
		return 0, err
	}

	text, err := json.Marshal(meta)
	if err != nil {
		return 0, err
	}

	return int(meta.Stats.NumSamples), os.WriteFile(filepath.Join(dir, "meta.json"), text, 0o600)
}

const maxTime = 1 << 62

// writeSeries writes chunks and index of a block, and counts what is in it.
func writeSeries(dir string, fleet []copied, encoded map[*storedSeries][]chunks.Meta, symbols map[string]bool,
	meta *tsdb.BlockMeta) (err error) {
	data, err := chunks.NewWriter(filepath.Join(dir, "chunks"))
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, data.Close()) }()

	idx, err := index.NewWriter(context.Background(), filepath.Join(dir, "index"))
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, idx.Close()) }()

	for _, symbol := range slices.Sorted(maps.Keys(symbols)) {
		if err := idx.AddSymbol(symbol); err != nil {
			return err
		}
	}

	for _, c := range fleet {
		metas := encoded[c.of]
		if len(metas) == 0 {
			continue
		}

		if err := data.WriteChunks(metas...); err != nil {
			return err
		}

		if err := idx.AddSeries(storage.SeriesRef(meta.Stats.NumSeries), c.labels, metas...); err != nil {
			return err
		}

		meta.Stats.NumSeries++
		meta.Stats.NumChunks += uint64(len(metas))
		meta.MinTime = min(meta.MinTime, metas[0].MinTime)
		meta.MaxTime = max(meta.MaxTime, metas[len(metas)-1].MaxTime+1) // it is exclusive

		for _, m := range metas {
			meta.Stats.NumSamples += uint64(m.Chunk.NumSamples())
		}
	}

	return nil
}

// appendFleet appends the samples of a fleet after a time, and returns how many these are.
func appendFleet(db *tsdb.DB, fleet []copied, after time.Time) (samples int, err error) {
	const atOnce = 10_000

	for part := range slices.Chunk(fleet, atOnce) {
		appender := db.Appender(context.Background())

		for _, c := range part {
			var ref storage.SeriesRef

			for _, x := range c.of.samples {
				if x.at <= after.UnixMilli() {
					continue
				}

				if x.histogram != nil {
					ref, err = appender.AppendHistogram(ref, c.labels, x.at, x.histogram, nil)
				} else {
					ref, err = appender.Append(ref, c.labels, x.at, x.value)
				}

				if err != nil {
					return 0, errors.Join(err, appender.Rollback())
				}

				samples++
			}
		}

		if err := appender.Commit(); err != nil {
			return 0, err
		}
	}

	return samples, nil
}
