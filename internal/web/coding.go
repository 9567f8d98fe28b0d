package web

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// coding is an HTTP content coding.
type coding string

const (
	codingIdentity coding = "identity"
	codingGzip     coding = "gzip"
)

// negotiateCoding chooses the coding of an answer by Accept-Encoding (RFC 9110, 12.5.3): gzip where the client takes it
// and weighs it no less than identity, identity otherwise, even where the client excludes both, as servers may.
func negotiateCoding(h http.Header) coding {
	const unset = -1.0
	gzipQ, identityQ, anyQ := unset, unset, unset
	for _, line := range h.Values("Accept-Encoding") {
		for spec := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(spec, ";")
			q := quality(params)
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "gzip", "x-gzip":
				gzipQ = q
			case "identity":
				identityQ = q
			case "*":
				anyQ = q
			}
		}
	}
	if gzipQ == unset {
		gzipQ = anyQ
	}
	if gzipQ > 0 && gzipQ >= identityQ {
		return codingGzip
	}
	return codingIdentity
}

// quality reads the q parameter of a header's element: 1 where there is none, 0 where it cannot be read.
func quality(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(param, "=")
		if !strings.EqualFold(strings.TrimSpace(key), "q") {
			continue
		}
		q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || !(q >= 0 && q <= 1) {
			return 0
		}
		return q
	}
	return 1
}

// setCoding tells the client, and caches on the way, about the coding.
func setCoding(h http.Header, c coding) {
	h.Add("Vary", "Accept-Encoding")
	if c != codingIdentity {
		h.Set("Content-Encoding", string(c))
	}
}

// buffers lends memory for encoding. A buffer is returned emptied; nothing may refer to its bytes afterwards.
type buffers struct {
	pool  sync.Pool // of *bytes.Buffer
	gzips sync.Pool // of *gzip.Writer
}

func (b *buffers) get() *bytes.Buffer {
	if buf, ok := b.pool.Get().(*bytes.Buffer); ok {
		return buf
	}
	return new(bytes.Buffer)
}

func (b *buffers) put(buf *bytes.Buffer) {
	buf.Reset()
	b.pool.Put(buf)
}

// compress appends src to dst as one complete gzip member. Members may be concatenated (RFC 1952, 2.2).
func (b *buffers) compress(dst *bytes.Buffer, src []byte) error {
	zw, ok := b.gzips.Get().(*gzip.Writer)
	if !ok {
		var err error
		// Metrics compress well at the lowest level, and whoever scrapes first waits for it.
		if zw, err = gzip.NewWriterLevel(nil, gzip.BestSpeed); err != nil {
			return err
		}
	}
	defer b.gzips.Put(zw)
	zw.Reset(dst)
	if _, err := zw.Write(src); err != nil {
		return err
	}
	return zw.Close()
}
