package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
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

// TestGzipMembers: concatenated members read as one text, as gzip -dc and Go's reader do by default.
func TestGzipMembers(t *testing.T) {
	pool := new(buffers)
	var out bytes.Buffer
	for _, part := range []string{"one\n", "", "two\n"} {
		if err := pool.compress(&out, []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got := gunzip(t, out.Bytes()); string(got) != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
}

func gunzip(t *testing.T, packed []byte) []byte {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(zr)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}
