package web

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
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

// answer sends a body that is encoded already, and tells the client, and caches on the way, about its coding.
func answer(w http.ResponseWriter, c coding, parts ...[]byte) {
	header := w.Header()
	header.Add("Vary", "Accept-Encoding")
	if c != codingIdentity {
		header.Set("Content-Encoding", string(c))
	}
	length := 0
	for _, part := range parts {
		length += len(part)
	}
	header.Set("Content-Length", strconv.Itoa(length))
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return // a client that is gone is not answered
		}
	}
}

// buffers lends memory for encoding. A buffer is returned emptied; nothing may refer to its bytes afterwards.
type buffers struct {
	pool      sync.Pool // of *bytes.Buffer
	deflaters sync.Pool // of *flate.Writer
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

// opening is the beginning of a body; its zero value is nothing yet. Under gzip its bytes are the beginning of a member,
// which gzipTrailer ends.
type opening struct {
	bytes []byte
	size  uint32 // of the plain text, modulo 2^32 as in the trailer of gzip
	sum   uint32 // CRC-32 of the plain text, under gzip
}

const (
	// gzipLevel is chosen by measurement, see docs/performance.md: a lone Prometheus waits for the compression on every scrape,
	// and higher levels take up to twice the time of all the rest for a fifth fewer bytes.
	gzipLevel = flate.BestSpeed
	// gzipHeader begins a member: deflate, no flags, no time, no hint, unknown system (RFC 1952, 2.3).
	gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	// deflateEnd is the last block of a deflate stream, with nothing in it (RFC 1951, 3.2.6).
	deflateEnd = "\x03\x00"
)

// openGzip appends to dst the beginning of a gzip member with all of text in it, up to a byte boundary.
//
// RFC 1952 (2.2) lets members be concatenated, but curl, browsers and Python's zlib stop at the end of the first. A body
// is one member therefore, and the beginning of it is what answers can share.
func (b *buffers) openGzip(dst *bytes.Buffer, text []byte) opening {
	if len(text) == 0 {
		return opening{}
	}
	dst.WriteString(gzipHeader)
	b.deflate(dst, text)
	return opening{bytes: dst.Bytes(), size: uint32(len(text)), sum: crc32.ChecksumIEEE(text)}
}

// gzip appends to dst a gzip member with all of text in it.
func (b *buffers) gzip(dst *bytes.Buffer, text []byte) {
	open := b.openGzip(dst, text)
	if len(text) == 0 {
		dst.WriteString(gzipHeader)
	}
	dst.Write(gzipTrailer(open.sum, open.size))
}

// closeGzip returns the parts of the gzip member that open begins, with all of an ending in it.
func closeGzip(open opening, end ending) [][]byte {
	begin := open.bytes
	if len(begin) == 0 {
		begin = []byte(gzipHeader)
	}
	sum := crc32.Update(open.sum, crc32.IEEETable, end.text)
	return [][]byte{begin, end.packed, gzipTrailer(sum, open.size+uint32(len(end.text)))}
}

// gzipTrailer returns what ends a member whose last block ends at a byte boundary.
func gzipTrailer(sum, size uint32) []byte {
	trailer := append(make([]byte, 0, len(deflateEnd)+8), deflateEnd...)
	trailer = binary.LittleEndian.AppendUint32(trailer, sum)
	return binary.LittleEndian.AppendUint32(trailer, size)
}

// deflate appends text to dst in blocks of their own, which refer to nothing before them, up to a byte boundary. The stream
// goes on after them.
func (b *buffers) deflate(dst *bytes.Buffer, text []byte) {
	zw, ok := b.deflaters.Get().(*flate.Writer)
	var err error
	if !ok {
		zw, err = flate.NewWriter(dst, gzipLevel)
	} else {
		zw.Reset(dst)
	}
	if err == nil {
		_, err = zw.Write(text)
	}
	if err == nil {
		err = zw.Flush()
	}
	if err != nil {
		panic(err) // writing to memory does not fail
	}
	b.deflaters.Put(zw)
}
