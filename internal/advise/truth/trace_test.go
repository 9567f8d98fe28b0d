package truth

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// traceRow is what a workload did from a time until its next row.
type traceRow struct {
	time   time.Time
	memory float64 // bytes
	busy   float64
	// width and bandwidth are shares of the GPU's SMs and of its bandwidth that kernels used while
	// they ran.
	width, bandwidth gpu.Opt[float64]
}

// traced is a workload of a trace.
type traced struct {
	name string
	rows []traceRow
}

// traceColumns are those of a trace, with what a cell holds. One of the two of memory is needed,
// and all but the last two.
func traceColumns() map[string]string {
	return map[string]string{
		"time": "a time by RFC 3339, or Unix seconds", "workload": "a name", "memory_bytes": "bytes", "memory_mib": "MiB",
		"busy": "a share, 0 to 1", "width": "a share, 0 to 1", "bandwidth": "a share, 0 to 1",
	}
}

// byteOrderMark is that of UTF-8.
const byteOrderMark = "\ufeff"

// readTrace reads a trace as CSV. Errors name the line, the column and what was expected.
func readTrace(from io.Reader) ([]*traced, error) {
	// Spreadsheets begin a CSV file with a byte order mark, which would become part of the first name.
	buffered := bufio.NewReader(from)
	if mark, _ := buffered.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = buffered.Discard(len(byteOrderMark)) // it was peeked at, so that it is there
	}

	r := csv.NewReader(buffered)
	r.TrimLeadingSpace = true

	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("header: expected the names of columns: %w", err)
	}

	at, err := traceHeader(header)
	if err != nil {
		return nil, err
	}

	var list []*traced
	byName := map[string]*traced{}
	lastLine := map[string]int{}

	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			return nil, err // it names the line
		}

		line, _ := r.FieldPos(0)

		name, row, err := readRow(cells, at)
		if err != nil {
			return nil, fmt.Errorf("line %d, %w", line, err)
		}

		w := byName[name]
		if w == nil {
			w = &traced{name: name}
			byName[name], list = w, append(list, w)
		} else if before := w.rows[len(w.rows)-1].time; !row.time.After(before) {
			return nil, fmt.Errorf("line %d, column time: expected a time after that of line %d, %s, the last of %s",
				line, lastLine[name], before.Format(time.RFC3339), name)
		}

		w.rows = append(w.rows, row)
		lastLine[name] = line
	}

	if len(list) == 0 {
		return nil, errors.New("expected at least one line after the header")
	}

	return list, nil
}

// traceHeader returns where the columns are.
func traceHeader(header []string) (map[string]int, error) {
	at := map[string]int{}

	for i, name := range header {
		name = strings.TrimSpace(name)
		if _, known := traceColumns()[name]; !known {
			return nil, fmt.Errorf("line 1, column %q: expected time, workload, memory_bytes or memory_mib, busy, width, "+
				"bandwidth", name)
		}

		if _, twice := at[name]; twice {
			return nil, fmt.Errorf("line 1, column %q: is there twice", name)
		}

		at[name] = i
	}

	for _, name := range []string{"time", "workload", "busy"} {
		if _, ok := at[name]; !ok {
			return nil, fmt.Errorf("line 1: expected a column %q", name)
		}
	}

	_, bytes := at["memory_bytes"]

	_, mib := at["memory_mib"]
	if bytes == mib {
		return nil, errors.New(`line 1: expected one of the columns "memory_bytes" and "memory_mib"`)
	}

	return at, nil
}

// readRow reads the cells of a line. Errors begin with "column".
func readRow(cells []string, at map[string]int) (name string, row traceRow, err error) {
	number := func(column string, most float64) gpu.Opt[float64] {
		i, ok := at[column]
		if !ok || cells[i] == "" && (column == "width" || column == "bandwidth") {
			return gpu.None[float64]()
		}

		v, parseErr := strconv.ParseFloat(cells[i], 64)
		if parseErr != nil || !(v >= 0 && v <= most) {
			err = errors.Join(err, fmt.Errorf("column %s: %q, expected %s", column, cells[i], traceColumns()[column]))
		}

		return gpu.Some(v)
	}

	name = cells[at["workload"]]
	if name == "" {
		err = fmt.Errorf("column workload: %q, expected a name", name)
	}

	row = traceRow{busy: number("busy", 1).Or(0), width: number("width", 1), bandwidth: number("bandwidth", 1)}
	row.memory = number("memory_bytes", 1<<50).Or(0) + number("memory_mib", 1<<30).Or(0)*(1<<20)

	text := cells[at["time"]]
	if seconds, parseErr := strconv.ParseFloat(text, 64); parseErr == nil && math.Abs(seconds) < 1e11 {
		row.time = time.UnixMilli(int64(math.Round(seconds * 1000))).UTC()
	} else if row.time, parseErr = time.Parse(time.RFC3339, text); parseErr != nil {
		err = errors.Join(err, fmt.Errorf("column time: %q, expected %s", text, traceColumns()["time"]))
	}

	return name, row, err
}

// step returns the usual time between two rows of a trace.
func step(list []*traced) time.Duration {
	var gaps []time.Duration

	for _, w := range list {
		for i := 1; i < len(w.rows); i++ {
			gaps = append(gaps, w.rows[i].time.Sub(w.rows[i-1].time))
		}
	}

	if len(gaps) == 0 {
		return time.Minute
	}

	slices.Sort(gaps)

	return gaps[len(gaps)/2]
}

// TestTracesAreRead: both forms of time and memory, and cells of width and bandwidth that are not
// known.
func TestTracesAreRead(t *testing.T) {
	t.Parallel()

	got, err := readTrace(strings.NewReader("time, workload, memory_mib, busy, width, bandwidth\n" +
		"2026-03-02T00:00:00+01:00, a, 1024, 0.5, 0.25, 0.1\n" +
		"1772406060, b, 1, 1, , \n" +
		"1772406060.5, a, 0, 0, 1, 0\n"))
	if err != nil {
		t.Fatal(err)
	}

	at := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	none := gpu.None[float64]()

	for i := range got[0].rows {
		got[0].rows[i].time = got[0].rows[i].time.UTC()
	}

	cmptest.Equal(t, "rows", got[0].rows, []traceRow{
		{at, 1 << 30, 0.5, gpu.Some(0.25), gpu.Some(0.1)}, {at.Add(60500 * time.Millisecond), 0, 0, gpu.Some(1.), gpu.Some(0.)},
	})
	cmptest.Equal(t, "rows", got[1].rows, []traceRow{{at.Add(time.Minute), 1 << 20, 1, none, none}})

	for _, before := range []string{"", "\ufeff"} {
		got, err = readTrace(strings.NewReader(before + "busy,workload,memory_bytes,time\n0.5,a,7,0\n"))
		if err != nil || got[0].rows[0].memory != 7 || got[0].rows[0].width.Present() {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// TestTracesAreRefused: errors name line, column and what was expected.
func TestTracesAreRefused(t *testing.T) {
	t.Parallel()

	const header = "time,workload,memory_bytes,busy,width\n"
	for text, want := range map[string]string{
		"":                     "header: expected the names of columns",
		header:                 "expected at least one line",
		"time,workload,busy\n": `line 1: expected one of the columns "memory_bytes" and "memory_mib"`,
		"time,workload,busy,memory_bytes,memory_mib\n": `expected one of the columns`,
		"time,busy,memory_bytes\n":                     `line 1: expected a column "workload"`,
		"time,workload,memory_bytes,busy,busy\n":       `line 1, column "busy": is there twice`,
		"time,pod,memory_bytes,busy\n":                 `line 1, column "pod": expected time, workload, memory_bytes or`,
		header + "0,a,1,0.5,0.5\nnoon,a,1,0.5,0.5\n":   `line 3, column time: "noon", expected a time by RFC 3339, or Unix`,
		header + "0,a,1,50,0.5\n":                      `line 2, column busy: "50", expected a share, 0 to 1`,
		header + "0,a,1,,0.5\n":                        `line 2, column busy: "", expected a share, 0 to 1`,
		header + "0,a,1,0.5,NaN\n":                     `line 2, column width: "NaN", expected a share, 0 to 1`,
		header + "0,a,40 GiB,0.5,0.5\n":                `line 2, column memory_bytes: "40 GiB", expected bytes`,
		header + "0,,1,0.5,0.5\n":                      `line 2, column workload: "", expected a name`,
		header + "9,a,1,0,0\n5,b,1,0,0\n9,a,1,0,0\n":   "line 4, column time: expected a time after that of line 2",
		header + "0,a,1,0.5\n":                         "wrong number of fields",
	} {
		if _, err := readTrace(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
