package promtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

// fakePromtool stands in for promtool: a demoPast stores the files of which it is to make blocks,
// and answers its queries.
const fakePromtool = `#!/bin/sh
if [ "$1 $2" = "query range" ]; then
	exec curl --silent --fail --get --data "start=${3#*=}&end=${4#*=}&step=${5#*=}" --data-urlencode "query=$7" "$PAST/query"
fi
while [ $# -gt 2 ]; do shift; done
exec curl --silent --fail --get --data-urlencode "file=$1" "$PAST/import"
`

// demoPast is the storage of the demo's Prometheus, as far as promtool writes and reads it.
type demoPast struct {
	t  *testing.T
	mu sync.Mutex
	*Prometheus

	series map[string]map[uint64]*pastSeries // by file and hash of the labels
}

type pastSeries struct {
	labels labels.Labels
	times  []int64
}

// servePast serves an empty storage until the test ends.
func servePast(t *testing.T) (*demoPast, string) {
	t.Helper()

	// Blocks may be written of any time.
	opts := tsdb.DefaultOptions()
	opts.RetentionDuration = 0
	opts.OutOfOrderTimeWindow = (9 * 24 * time.Hour).Milliseconds()

	db, err := tsdb.Open(t.TempDir(), nil, nil, opts, tsdb.NewDBStats())
	if err != nil {
		t.Fatal(err)
	}

	past := &demoPast{t: t, Prometheus: newPrometheus(t, db), series: map[string]map[uint64]*pastSeries{}}
	server := httptest.NewServer(past)
	t.Cleanup(server.Close)

	return past, server.URL
}

func (d *demoPast) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()

	var err error
	if r.URL.Path == "/import" {
		err = d.importFile(r.FormValue("file"))
	} else {
		err = d.writeRange(w, r)
	}

	if err != nil {
		d.t.Errorf("%s: %v", r.URL, err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// importFile stores a file in OpenMetrics with timestamps, and notes what it has.
func (d *demoPast) importFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()

	name := filepath.Base(path)
	if d.series[name] == nil {
		d.series[name] = map[uint64]*pastSeries{}
	}

	var part bytes.Buffer

	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if lines.Text() == "# EOF" {
			return d.importPart(name, append(part.Bytes(), "# EOF\n"...))
		}

		part.Write(append(lines.Bytes(), '\n'))

		// We parse in parts, since the history of eight days has hundreds of megabytes.
		if part.Len() > 4<<20 {
			if err := d.importPart(name, append(part.Bytes(), "# EOF\n"...)); err != nil {
				return err
			}

			part.Reset()
		}
	}

	return errors.Join(lines.Err(), errors.New("no # EOF"))
}

func (d *demoPast) importPart(file string, text []byte) error {
	p := textparse.NewOpenMetricsParser(text, labels.NewSymbolTable())
	app := d.db.Appender(context.Background())

	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return app.Commit()
		}

		if err != nil {
			return errors.Join(err, app.Rollback())
		}

		if entry != textparse.EntrySeries {
			continue
		}

		var l labels.Labels
		p.Labels(&l)

		_, at, v := p.Series()
		if at == nil {
			return errors.Join(fmt.Errorf("%s has no timestamp", l), app.Rollback())
		}

		one := d.series[file][l.Hash()]
		if one == nil {
			one = &pastSeries{labels: l}
			d.series[file][l.Hash()] = one
		}

		one.times = append(one.times, *at)

		if _, err := app.Append(0, l, *at, v); err != nil {
			return errors.Join(err, app.Rollback())
		}
	}
}

// writeRange answers a range query in promtool's own format.
func (d *demoPast) writeRange(w io.Writer, r *http.Request) error {
	start, startErr := strconv.ParseInt(r.FormValue("start"), 10, 64)
	end, endErr := strconv.ParseInt(r.FormValue("end"), 10, 64)
	step, stepErr := time.ParseDuration(r.FormValue("step"))

	if err := errors.Join(startErr, endErr, stepErr); err != nil {
		return err
	}

	if points := (end - start) / int64(step.Seconds()); points > 11000 {
		return fmt.Errorf("%d points, more than Prometheus answers with", points)
	}

	q, err := d.promql.NewRangeQuery(r.Context(), d.db, nil, r.FormValue("query"), time.Unix(start, 0), time.Unix(end, 0), step)
	if err != nil {
		return err
	}
	defer q.Close()

	matrix, err := q.Exec(r.Context()).Matrix()
	if err != nil {
		return err
	}

	_, err = fmt.Fprintln(w, commonMatrix(matrix))

	return err
}

// commonMatrix returns a matrix as clients of the API get it.
func commonMatrix(matrix promql.Matrix) model.Matrix {
	common := make(model.Matrix, 0, len(matrix))

	for _, s := range matrix {
		stream := &model.SampleStream{Metric: model.Metric{}}
		s.Metric.Range(func(l labels.Label) { stream.Metric[model.LabelName(l.Name)] = model.LabelValue(l.Value) })

		for _, p := range s.Floats {
			stream.Values = append(stream.Values,
				model.SamplePair{Timestamp: model.Time(p.T), Value: model.SampleValue(p.F)})
		}

		common = append(common, stream)
	}

	return common
}

// of returns the series of a file that have a name.
func (d *demoPast) of(file, name string) []*pastSeries {
	d.mu.Lock()
	defer d.mu.Unlock()

	var found []*pastSeries

	for _, s := range d.series[file] {
		if s.labels.Get(model.MetricNameLabel) == name {
			found = append(found, s)
		}
	}

	return found
}
