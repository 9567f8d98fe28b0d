package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestNegotiateCoding(t *testing.T) {
	for _, test := range []struct {
		accept []string
		want   coding
	}{
		{nil, codingIdentity},
		{[]string{""}, codingIdentity},
		{[]string{"gzip"}, codingGzip},
		{[]string{"GZIP"}, codingGzip},
		{[]string{"x-gzip"}, codingGzip},
		{[]string{"deflate, br"}, codingIdentity},
		{[]string{"gzip, deflate, br, zstd"}, codingGzip},
		{[]string{"deflate", "gzip"}, codingGzip},
		{[]string{"gzip;q=0"}, codingIdentity},
		{[]string{"gzip; q=0.0, *"}, codingIdentity},
		{[]string{"gzip;q=0.5, identity;q=0.9"}, codingIdentity},
		{[]string{"gzip;q=0.9, identity;q=0.5"}, codingGzip},
		{[]string{"gzip;q=0.5, identity;q=0.5"}, codingGzip},
		{[]string{"identity;q=0, gzip;q=0.1"}, codingGzip},
		{[]string{"*"}, codingGzip},
		{[]string{"*;q=0"}, codingIdentity},
		{[]string{"identity, *;q=0"}, codingIdentity},
		{[]string{"gzip;q=much"}, codingIdentity},
		{[]string{"gzip;q=2"}, codingIdentity},
		{[]string{"gzip;level=9;q=0.3"}, codingGzip},
	} {
		h := http.Header{"Accept-Encoding": test.accept}
		if got := negotiateCoding(h); got != test.want {
			t.Errorf("Accept-Encoding %q: got %s, want %s", test.accept, got, test.want)
		}
	}
}

// TestGzipIsOneMember: whatever is shared and whatever is added, readers of one member find all of
// it.
func TestGzipIsOneMember(t *testing.T) {
	pool := new(buffers)

	long := strings.Repeat("nvidia_gpu_power_watts{gpu=\"0\"} 318.5\n", 5000)
	for _, shared := range []string{"", "one\n", long} {
		var head bytes.Buffer
		prefix := pool.gzipPrefix(&head, []byte(shared))

		for _, own := range []string{"", "two\n", long} { // answers share the prefix
			trailer := bodyTrailer{text: []byte(own)}
			if own != "" {
				var packed bytes.Buffer
				pool.deflate(&packed, trailer.text)
				trailer.packed = packed.Bytes()
			}

			if got := gunzip(t, slices.Concat(joinGzip(prefix, trailer)...)); string(got) != shared+own {
				t.Errorf("%d bytes and %d: got %d back", len(shared), len(own), len(got))
			}
		}

		var whole bytes.Buffer
		pool.gzip(&whole, []byte(shared))

		if got := gunzip(t, whole.Bytes()); string(got) != shared {
			t.Errorf("%d bytes: got %d back", len(shared), len(got))
		}
	}
}

// gunzip reads packed as many clients do: the first member, after which nothing may come.
func gunzip(t *testing.T, packed []byte) []byte {
	t.Helper()
	rest := bytes.NewReader(packed)

	zr, err := gzip.NewReader(rest)
	if err != nil {
		t.Fatal(err)
	}

	zr.Multistream(false)

	plain, err := io.ReadAll(zr)
	if err != nil {
		t.Fatal(err)
	}

	if rest.Len() > 0 {
		t.Errorf("%d bytes after the first gzip member", rest.Len())
	}

	return plain
}
